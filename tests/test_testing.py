"""The public test double behaves as an engine does, and its documented examples run."""

from __future__ import annotations

import doctest
import inspect
import sqlite3
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqale_edge.agent
import sqale_edge.testing
from sqale_edge import Agent, Database
from sqale_edge.engine import Decoding, Engine, Piece, TokenSequence
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError
from sqale_edge.llama import LlamaEngine
from sqale_edge.llama.sequence import LlamaSequence
from sqale_edge.testing import ScriptedEngine, ScriptedSequence, make_shop


@pytest.mark.parametrize("module", [sqale_edge.testing, sqale_edge.agent])
def test_the_documented_examples_run(module, tmp_path, monkeypatch):
    """Word for word, with the results that the docstrings show."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 2) == (0, True)


@pytest.mark.parametrize(
    ("interface", "implementation"),
    [
        (Engine, ScriptedEngine),
        (Engine, LlamaEngine),
        (TokenSequence, ScriptedSequence),
        (TokenSequence, LlamaSequence),
    ],
)
def test_the_double_has_the_interface_of_the_real_one(interface, implementation):
    """Every method of the interface, with the same parameters."""
    names = [name for name in vars(interface) if not name.startswith("_") and callable(vars(interface)[name])]
    assert len(names) > 4
    for name in names:
        expected = list(inspect.signature(vars(interface)[name]).parameters)
        assert list(inspect.signature(getattr(implementation, name)).parameters) == expected


@pytest.fixture(params=["scripted", "llama"])
def any_engine(request):
    """Either engine; both have room for a few thousand tokens."""
    if request.param == "llama":
        return request.getfixturevalue("engine")
    return ScriptedEngine(["a" * 5000], thinks=True, n_ctx=4096)


def decode(sequence, n_tokens: int) -> list[int]:
    return list(sequence.decode(None, n_tokens, frozenset()))


def test_either_engine_counts_only_new_tokens(any_engine):
    """The token drawn last is evaluated with what comes after it; the log is prompt, output, prompt."""
    sequence = any_engine.new_sequence(0)
    prompt = any_engine.tokenize("How many?", trusted=False)
    first = sequence.append(prompt)
    assert (first.n_new, first.n_cached) == (len(prompt), 0)
    drawn = decode(sequence, 3)
    second = sequence.append(prompt)
    assert (second.n_new, second.n_cached) == (len(prompt) + 1, len(prompt) + 2)
    assert tuple(sequence.tokens) == (*prompt, *drawn, *prompt)
    sequence.close()


def test_either_engine_refuses_what_does_not_fit(any_engine):
    """Before anything is evaluated, for prompts and for decoded tokens."""
    sequence = any_engine.new_sequence(0)
    word = any_engine.tokenize("a", trusted=False)
    with pytest.raises(ContextOverflowError, match="4097 more"):
        sequence.append(word * 4097)
    assert sequence.append(word * 4094).n_new == 4094
    assert len(decode(sequence, 2)) == 2
    with pytest.raises(ContextOverflowError):
        decode(sequence, 1)
    sequence.close()


def test_either_engine_stops_at_stop_tokens_and_counts(any_engine):
    """`is_done` at a stop token or at the last token; a decoding that is done cannot go on."""
    sequence = any_engine.new_sequence(0)
    sequence.append(any_engine.tokenize("a", trusted=False))
    decoding: Decoding = sequence.start(None, 2, frozenset())
    any_engine.decode_batch([decoding])
    assert (decoding.n_decoded, decoding.is_done) == (1, False)
    any_engine.decode_batch([decoding])
    assert (decoding.n_decoded, decoding.is_done) == (2, True)
    with pytest.raises(ModelError, match="done"):
        any_engine.decode_batch([decoding])
    everything = frozenset(range(any_engine.info.n_vocab))
    assert len(list(sequence.decode(None, 5, everything))) == 1
    assert list(sequence.decode(None, 0, everything)) == []
    sequence.close()


def test_either_engine_cancels_what_exists_now(any_engine):
    """Such a sequence only raises; the next one works."""
    cancelled = any_engine.new_sequence(0)
    cancelled.append(any_engine.tokenize("a", trusted=False))
    any_engine.cancel()
    for use in (lambda: cancelled.append([1]), lambda: decode(cancelled, 1), lambda: cancelled.fork(1)):
        with pytest.raises(Cancelled):
            use()
    cancelled.close()
    following = any_engine.new_sequence(0)
    following.append(any_engine.tokenize("a", trusted=False))
    assert len(decode(following, 1)) == 1
    following.close()


def test_either_engine_forks(any_engine):
    """The twin has the same log, and goes its own way."""
    sequence = any_engine.new_sequence(0)
    sequence.append(any_engine.tokenize("abc", trusted=False))
    twin = sequence.fork(0)
    assert tuple(twin.tokens) == tuple(sequence.tokens)
    assert decode(twin, 4) == decode(sequence, 4)
    twin.append(any_engine.tokenize("d", trusted=False))
    assert len(twin.tokens) == len(sequence.tokens) + 1
    twin.close()
    sequence.close()


def test_either_engine_is_closed_for_good(any_engine):
    """Closing twice is allowed, using what is closed is an error."""
    sequence = any_engine.new_sequence(0)
    sequence.close()
    sequence.close()
    with pytest.raises(ModelError, match="closed"):
        sequence.append([1])
    left_open = any_engine.new_sequence(0)
    any_engine.close()
    any_engine.close()
    with pytest.raises(ModelError, match="closed"):
        any_engine.new_sequence(0)
    with pytest.raises(ModelError, match="closed"):
        left_open.append([1])


MARKUP = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
TEXT = st.lists(st.sampled_from([*MARKUP, "<", ">", "|", "think"]) | st.text(max_size=3)).map("".join)


@given(TEXT)
def test_only_trusted_text_can_hold_markup(text):
    """In other text it is plain characters; the text comes back either way."""
    engine = ScriptedEngine([])
    untrusted = engine.tokenize(text, trusted=False)
    assert all(token < 256 for token in untrusted)
    assert engine.detokenize(untrusted) == engine.detokenize(engine.tokenize(text, trusted=True)) == text.encode()
    pieces = [Piece("<think>", trusted=True), Piece(text, trusted=False), Piece("</think>", trusted=True)]
    assert sum(token >= 256 for token in engine.tokenize_pieces(pieces)) == 2


@pytest.mark.parametrize("literal", MARKUP)
def test_trusted_markup_is_one_token(literal):
    """As in the real vocabularies."""
    assert len(ScriptedEngine([]).tokenize(literal, trusted=True)) == 1


def test_a_script_can_decide_by_what_it_has_read(shop):
    """A function gets the log's text so far and returns the turn's text."""
    seen = []

    def decide(log: str) -> str:
        seen.append(log)
        return '{"tool": "submit_sql", "args": {"sql": "SELECT count(*) FROM %s"}}' % (
            "orders" if "orders" in log.rpartition("Tool result:")[2] else "nothing"
        )

    assert Agent(ScriptedEngine(['{"tool": "list_tables"}', decide])).run("How many orders?", shop).rows == ((6,),)
    assert seen[0].endswith("<|im_start|>assistant\n")


def test_each_sequence_plays_the_script_from_its_start(shop):
    """So one agent can be asked several times, and votes can be tested."""
    engine = ScriptedEngine(['{"tool": "submit_sql", "args": {"sql": "SELECT 1"}}'])
    agent = Agent(engine)
    assert agent.run("one?", shop).sql == agent.run("two?", shop).sql == "SELECT 1"
    assert ["one?" in sequence.log_text for sequence in engine.sequences] == [True, False]


def test_a_script_that_is_too_short_says_so(shop):
    """The test fails with a sentence, not with a puzzle."""
    with pytest.raises(ModelError, match="the script has 1 turns, and another one is asked for"):
        Agent(ScriptedEngine(['{"tool": "list_tables"}'])).run("How many?", shop)


def test_a_turn_that_is_too_short_says_so():
    """A decode that does not stop at the turn's end runs out of script."""
    sequence = ScriptedEngine(["ab"]).new_sequence(0)
    with pytest.raises(ModelError, match="turn has ended"):
        decode(sequence, 4)


def test_a_scripted_engine_has_no_snapshots():
    """Asking for one, or for a sequence out of one, is an error."""
    engine = ScriptedEngine([])
    with pytest.raises(ModelError, match="no snapshots"):
        engine.new_sequence(0).snapshot()
    with pytest.raises(ModelError, match="no snapshots"):
        engine.restore(b"x")
    with pytest.raises(ModelError, match="no snapshots"):
        engine.new_sequence(0).load(b"x", [1])
    assert engine.state_key is None


def test_the_sample_database_is_a_real_file(tmp_path):
    """Two tables, a foreign key, a NULL of each kind; where it is asked for."""
    path = make_shop(str(tmp_path / "shop.sqlite"))
    assert path == tmp_path / "shop.sqlite"
    with Database.open(path) as database:
        counts = database.query(
            "SELECT (SELECT count(*) FROM customers), (SELECT count(*) FROM orders),"
            " (SELECT count(*) FROM customers WHERE city IS NULL), (SELECT count(*) FROM orders WHERE total IS NULL)",
            max_rows=1,
        )
    assert counts.rows == ((4, 6, 1, 1),)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
