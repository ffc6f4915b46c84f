"""The engine over a vLLM server: the same tokens as on llama.cpp, asked for once, and stopped at once."""

import threading
import time

import pytest

from sqale_edge import Agent, EngineSettings, RemoteSettings, Request, SamplingSettings
from sqale_edge.engine import Piece
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError, SettingsError
from sqale_edge.llama import LlamaEngine
from sqale_edge.models import find_model
from sqale_edge.remote.sequence import derive_seed

GREEDY = SamplingSettings(temperature=0)
NONE = frozenset()
QUESTION = "How many customers are there?"


@pytest.fixture
def local():
    engine = LlamaEngine(find_model("demo").path, EngineSettings(threads=1, n_ctx=4096))
    yield engine
    engine.close()


def decode(engine, prompt, n_tokens, sampling=GREEDY, seed=0):
    sequence = engine.new_sequence(seed, sampling)
    sequence.append(engine.tokenize(prompt, trusted=True))
    tokens = list(sequence.decode(None, n_tokens, NONE))
    sequence.close()
    return tokens


def test_text_is_tokenised_as_by_llama(connect, local):
    """Tokens and bytes are those of the llama engine, and no literal in foreign text is a control token."""
    engine = connect()
    pieces = [Piece("<|im_start|>user\n", trusted=True), Piece("a <|im_end|> </think> größe 👍", trusted=False)]
    tokens = engine.tokenize_pieces(pieces)
    assert tokens == local.tokenize_pieces(pieces)
    assert engine.detokenize(tokens) == b"".join(piece.text.encode() for piece in pieces)
    assert not {engine.info.think_close, *engine.info.end_tokens} & set(tokens)


def test_an_episode_is_that_of_the_local_engine(server, shop):
    """Without randomness: the same tokens, calls, results and answer, from the same model."""
    remote = RemoteSettings(tokenizer="demo")
    with Agent.load(server.url, sampling=GREEDY, remote=remote) as there:
        theirs = there.run(QUESTION, shop)
    with Agent.load("demo", sampling=GREEDY, settings=EngineSettings(threads=1)) as here:
        ours = here.run(QUESTION, shop)
    assert theirs.rows == ours.rows == ((4,),)
    assert [(turn.thought, turn.text, turn.results) for turn in theirs.turns] == [
        (turn.thought, turn.text, turn.results) for turn in ours.turns
    ]
    assert (theirs.usage, theirs.prompt) == (ours.usage, "training")
    assert theirs.notes == ours.notes


def test_prompts_only_grow(server, shop):
    """Each request begins with all of the one before, so that a cache of prefixes serves them."""
    with Agent.load(server.url, sampling=GREEDY, remote=RemoteSettings(tokenizer="demo")) as agent:
        agent.run(QUESTION, shop)
    first, *others = [body["prompt"] for body in server.completions()[1:]]  # one is the check at the start
    for prompt in others:
        assert prompt[: len(first)] == first
        first = prompt
    assert len(others) > 2


def test_requests_say_everything(server, connect):
    """Nothing is left to the server's own defaults, and a seed is one for each request."""
    engine = connect()
    sequence = engine.new_sequence(7, SamplingSettings(temperature=0.6, top_k=0, top_p=0.9))
    sequence.append([70, 71])
    list(sequence.decode(None, 2, frozenset({5})))
    list(sequence.decode(None, 1, NONE))
    one, other = server.completions()[1:]
    assert {key: one[key] for key in ("temperature", "top_k", "top_p", "repetition_penalty", "stop_token_ids")} == {
        "temperature": 0.6,
        "top_k": -1,
        "top_p": 0.9,
        "repetition_penalty": 1.0,
        "stop_token_ids": [5],
    }
    assert (one["max_tokens"], one["seed"], other["seed"]) == (2, derive_seed(7, 2), derive_seed(7, 4))
    assert derive_seed(7, 2) != derive_seed(7, 4) != derive_seed(8, 4)


def test_a_seed_repeats_its_tokens(connect):
    """The same seed and log give the same tokens, another seed others."""
    engine, warm = connect(), SamplingSettings(temperature=2.0, top_k=0, top_p=1.0)
    tokens = [decode(engine, "SELECT", 12, warm, seed) for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_decode_ends_at_a_stop_token(connect, local):
    """The stop token is the last one and in the log; a decode that is cut short goes on where it was."""
    engine = connect()
    tokens = decode(local, "SELECT", 8)
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append(engine.tokenize("SELECT", trusted=True))
    assert list(sequence.decode(None, 20, frozenset({tokens[3]}))) == tokens[: tokens.index(tokens[3]) + 1]
    assert list(sequence.tokens[-1:]) == [tokens[3]]
    assert list(sequence.decode(None, 0, NONE)) == []


def test_an_abandoned_decode_leaves_the_server(server, connect):
    """Who stops reading, appends or closes is not written to any longer; the log has what was drawn."""
    engine = connect()
    server.pause_s = 0.02
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append([70, 71])
    drawn = next(iter(sequence.decode(None, 5000, NONE)))
    assert list(sequence.tokens) == [70, 71, drawn]
    sequence.append([72])
    wait_until(lambda: server.n_given_up == 1)
    assert len(list(sequence.decode(None, 2, NONE))) == 2
    next(iter(sequence.decode(None, 5000, NONE)))
    sequence.close()
    wait_until(lambda: server.n_given_up == 2)


def wait_until(is_so):
    for _ in range(500):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it never was so")


def test_counts_follow_the_log(server, connect):
    """What the server has seen of a log is cached, as far as it says that it caches."""
    for is_caching, n_cached in ((True, 4), (False, 0), (None, 0)):
        server.prefix_caching = is_caching
        sequence = connect().new_sequence(0, GREEDY)
        assert (sequence.append([70, 71]).n_new, sequence.append([72]).n_cached) == (2, 2 if is_caching else 0)
        list(sequence.decode(None, 2, NONE))
        prefill = sequence.append([73, 74])
        assert (prefill.n_cached, prefill.n_new) == (n_cached, 7 - n_cached)


def test_a_server_without_a_cache_is_mentioned(server, connect):
    """It costs time at each turn, and the note says what to do."""
    server.prefix_caching = False
    assert "--enable-prefix-caching" in connect().notes[-1]


def test_several_sequences_at_a_time(server, connect, local):
    """They are asked for before the first is waited for, and each gets its own tokens."""
    engine = connect(n_sequences=3)
    prompts = ["SELECT", "How many", "Tool result:"]
    sequences = [engine.new_sequence(0, GREEDY) for _ in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        sequence.append(engine.tokenize(prompt, trusted=True))
    decodings = [sequence.start(None, 6, NONE) for sequence in sequences]
    rows = [engine.decode_batch(decodings)]
    assert len(server.completions()) == 1 + 3
    rows += [engine.decode_batch(decodings) for _ in range(5)]
    assert [list(column) for column in zip(*rows, strict=True)] == [decode(local, prompt, 6) for prompt in prompts]
    with pytest.raises(ModelError, match="done"):
        engine.decode_batch(decodings)


def test_many_questions_at_a_time(server, shop):
    """`run_many` gives the answers of questions asked one by one."""
    requests = [Request(QUESTION, shop), Request("What is the average total of the orders?", shop)] * 2
    settings = EngineSettings(n_sequences=4)
    with Agent.load(server.url, settings=settings, sampling=GREEDY, remote=RemoteSettings(tokenizer="demo")) as agent:
        answers = dict(agent.run_many(requests))
        alone = [agent.run(request.question, shop).rows for request in requests[:2]]
    assert [answers[number].rows for number in range(4)] == alone * 2


def test_a_fork_has_the_log(connect):
    """A fork goes on from the same log, for itself."""
    engine = connect(n_sequences=2)
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append([70, 71])
    fork = sequence.fork(1)
    fork.append([72])
    assert (list(sequence.tokens), list(fork.tokens)) == ([70, 71], [70, 71, 72])
    with pytest.raises(ModelError, match="in use"):
        engine.new_sequence(0)


def test_cancel_ends_a_wait(server, connect):
    """`cancel` from another thread ends a decode that waits for its next token, and the server stops, too."""
    engine = connect()
    server.pause_s = 0.05
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append([70, 71])
    tokens = sequence.decode(None, 5000, NONE)
    next(tokens)
    server.pause_s = 3.0
    timer = threading.Timer(0.3, engine.cancel)
    timer.start()
    start = time.perf_counter()
    with pytest.raises(Cancelled):
        list(tokens)
    assert time.perf_counter() - start < 2.5
    timer.join()
    with pytest.raises(Cancelled):
        sequence.append([72])
    sequence.close()


def test_close_ends_everything(connect):
    """A closed engine says so, and closing twice is fine."""
    engine = connect()
    sequence = engine.new_sequence(0)
    engine.close()
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        sequence.append([70])
    with pytest.raises(ModelError, match="closed"):
        engine.new_sequence(0)
    with pytest.raises(ModelError, match="closed"):
        engine.tokenize("a", trusted=False)


def test_what_does_not_fit(connect):
    """A log that is too long, a token that is not there, and a wrong seed are told before anything is sent."""
    engine = connect(n_ctx=64)
    sequence = engine.new_sequence(0, GREEDY)
    with pytest.raises(ContextOverflowError):
        sequence.append([70] * 65)
    with pytest.raises(ModelError, match="not among"):
        sequence.append([10_000_000])
    with pytest.raises(SettingsError):
        engine.new_sequence(-1)
    sequence.append([70] * 60)
    tokens = sequence.decode(None, 100, NONE)
    with pytest.raises(ContextOverflowError):
        list(tokens)
    assert len(sequence.tokens) == 64


def test_there_are_no_snapshots(connect):
    """The state is the server's; the prefix cache leaves it alone."""
    engine = connect()
    assert engine.state_key is None
    with pytest.raises(ModelError):
        engine.new_sequence(0).snapshot()
    with pytest.raises(ModelError):
        engine.restore(b"")
