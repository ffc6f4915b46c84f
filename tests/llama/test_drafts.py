"""Drafted tokens: fewer steps, and the tokens that come without them."""

from __future__ import annotations

import numpy as np
import pytest
from plain_llama import write_mamba_gguf

from sqale_edge import Agent, EngineSettings, SamplingSettings
from sqale_edge.grammar import tool_call_grammar, tool_call_phrases
from sqale_edge.llama import LlamaEngine
from sqale_edge.llama.drafts import PromptLookup, guess_phrase
from sqale_edge.llama.quantize import quantize_file
from sqale_edge.models import find_model
from sqale_edge.tools import TOOLS

GREEDY = SamplingSettings(temperature=0)
SAMPLED = SamplingSettings(temperature=1.0, top_k=40, top_p=0.9)
NO_STOP: frozenset[int] = frozenset()
QUESTIONS = ("How many customers are there?", "Count the orders.", "What is the average total of the orders?")


@pytest.fixture(scope="module")
def exact_gguf(tmp_path_factory):
    """The demo model, whose logs repeat themselves; in float32, so that a batch of another shape changes nothing."""
    path = tmp_path_factory.mktemp("exact") / "f32.gguf"
    quantize_file(find_model("demo").path, path, "F32")
    return path


@pytest.fixture(scope="module")
def plain(exact_gguf):
    """Without drafts."""
    engine = LlamaEngine(exact_gguf, EngineSettings(n_ctx=1_024, n_sequences=3, threads=1))
    warm_up(engine)
    yield engine
    engine.close()


@pytest.fixture(params=[7, 15])
def drafting(exact_gguf, request):
    """With drafts of two lengths."""
    engine = LlamaEngine(exact_gguf, EngineSettings(n_ctx=1_024, n_sequences=3, n_draft=request.param, threads=1))
    warm_up(engine)
    yield engine
    engine.close()


def prompt_of(engine, text=QUESTIONS[0]):
    """A first prompt as an agent writes it, twice, so that something repeats."""
    turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\nWhich tables are there?</think>\n\n"
    return engine.tokenize(f'{turn}{{"tool": "list_tables"}}<|im_end|>\n{turn}', trusted=True)


def warm_up(engine):
    """From now on differences of `count_evaluated` are exact."""
    sequence = engine.new_sequence(0)
    sequence.append([1, 2, 3])
    decode(sequence, 2)
    sequence.close()


def decode(sequence, n_tokens):
    return list(sequence.decode(None, n_tokens, NO_STOP))


def test_what_followed_before_is_guessed():
    """The longest guess that fits, behind the last place where the end of the log stood before."""
    log = [*range(1, 21), 99, *range(1, 9)]
    assert PromptLookup().guess(log, 5) == []
    assert PromptLookup().guess(log, 12) == [*range(9, 21)]
    later = [*log, 50, 51, 52, 53, 54, 55, 56, *range(3, 9)]
    assert PromptLookup().guess(later, 6) == [50, 51, 52, 53, 54, 55]


def test_nothing_is_guessed_where_nothing_repeats():
    """A log of different tokens, a short one, an empty one; and the end of a log does not find itself."""
    lookup = PromptLookup()
    assert [lookup.guess([*range(n)], 15) for n in range(40)] == [[]] * 40


def test_a_growing_log_is_looked_up_as_a_whole_one_is():
    """What was seen before is not forgotten and not seen twice."""
    log = [*range(30), *range(3, 20), *range(100, 110), *range(5, 14)]
    growing = PromptLookup()
    for n in range(len(log) + 1):
        assert growing.guess(log[:n], 15) == PromptLookup().guess(log[:n], 15)


def test_after_a_useless_guess_more_has_to_repeat():
    """And after a good one less is enough again."""
    log = [*range(40), *range(10, 18)]
    lookup = PromptLookup()
    assert lookup.guess(log, 8)
    lookup.learn(8, 1)
    assert not lookup.guess(log, 8)
    assert lookup.guess([*log, *range(18, 27)], 8)
    lookup.learn(8, 8)
    assert lookup.guess([*log, *range(18, 27), 77, *range(10, 18)], 8)


def test_the_form_of_a_call_is_guessed_as_far_as_all_calls_agree():
    """Behind the longest start that was written; nothing where the next token is open, or too little is left."""
    phrases = [[1, 2, 3, 4, 50, 6, 7, 8], [1, 2, 3, 4, 60, 6, 7, 9], [1, 2, 3, 4, 60, 61]]
    assert guess_phrase([1], phrases, 15) == [2, 3, 4]
    assert guess_phrase([9, 9, 1], phrases, 15) == [2, 3, 4]
    assert guess_phrase([1, 2, 3, 4, 50], phrases, 15) == [6, 7, 8]
    assert guess_phrase([1, 2, 3, 4, 50], phrases, 2) == []
    for written in ([], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 60], [5], [1, 3]):
        assert guess_phrase(written, phrases, 15) == []
    assert guess_phrase([1], [], 15) == []


def test_phrases_are_starts_of_calls_that_the_grammar_accepts(exact_gguf):
    """Each of them, and the tokens that a model would write."""
    engine = LlamaEngine(exact_gguf, EngineSettings(n_ctx=256, threads=1))
    phrases = tool_call_phrases(TOOLS)
    assert phrases[0] == '{"tool": "list_tables"'
    assert phrases[1] == '{"tool": "describe_table", "args": {"table_name": "'
    grammar = engine.compile_grammar(tool_call_grammar(TOOLS), phrases)
    for phrase, tokens in zip(phrases, grammar.phrases, strict=True):
        state = grammar.start()
        for token in tokens:
            assert state.allows(np.array([token]))[0]
            state.accept(token)
        assert engine.detokenize(tokens).decode() == phrase
    engine.close()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("seed", range(2))
def test_the_tokens_are_those_without_drafts(plain, drafting, sampling, seed):
    """Token for token, whether guesses turn out right or wrong; each position is evaluated as often as it says."""
    sequences = [engine.new_sequence(seed, sampling) for engine in (plain, drafting)]
    prompt = prompt_of(plain)
    for sequence in sequences:
        sequence.append(prompt)
    before = drafting.count_evaluated()
    tokens, drafted = (decode(sequence, 120) for sequence in sequences)
    n_evaluated = drafting.count_evaluated() - before
    assert drafted == tokens
    n_open = len(sequences[1].guesses)
    assert n_evaluated == sequences[1].n_evaluated + n_open - len(prompt) + n_wrong(drafting) - n_open
    for sequence in sequences:
        sequence.close()


@pytest.mark.parametrize("n_right", [0, 1, 5])
def test_wrong_guesses_leave_nothing_behind(plain, drafting, n_right):
    """In each step so many right ones and a wrong one behind them: the same tokens, and the same logits afterwards."""
    reference, sequence = (engine.new_sequence(0, SAMPLED) for engine in (plain, drafting))
    for one in (reference, sequence):
        one.append(prompt_of(plain))
    tokens = decode(reference, 60)

    def guess(decoding, n_most):
        n_most = min(n_most, decoding.max_tokens - decoding.n_decoded - 1)
        right = tokens[decoding.n_decoded : decoding.n_decoded + n_right]
        wrong = (tokens[min(decoding.n_decoded + n_right, len(tokens) - 1)] + 1) % plain.info.n_vocab
        return [*right, wrong][:n_most]

    sequence.guess = guess
    n_wrong_before, n_right_before = n_wrong(drafting), drafting.n_guesses_right
    assert decode(sequence, 60) == tokens
    assert n_wrong(drafting) - n_wrong_before >= 58 // (n_right + 1)
    assert (drafting.n_guesses_right - n_right_before > 0) == (n_right > 0)
    for one in (reference, sequence):
        one.append(prompt_of(plain, QUESTIONS[1]))
    assert np.allclose(reference.logits, sequence.logits, atol=1e-3)
    assert decode(sequence, 20) == decode(reference, 20)
    for one in (reference, sequence):
        one.close()


def n_wrong(engine):
    """Guesses that were evaluated and not drawn."""
    return engine.n_guessed - engine.n_guesses_right


def test_episodes_are_those_without_drafts(exact_gguf, shop):
    """Of the real agent, with its grammar: the same turns, answers and counts; right guesses save a step each."""
    found, n_steps = [], []
    for n_draft in (0, 15):
        engine = CountingEngine(exact_gguf, EngineSettings(n_ctx=4_096, n_draft=n_draft, threads=1))
        with Agent(engine, sampling=GREEDY) as agent:
            episodes = [agent.run(question, shop) for question in QUESTIONS]
            found.append([(episode.turns, episode.rows, episode.usage) for episode in episodes])
            n_right = engine.n_guesses_right
            n_steps.append(engine.n_steps)
    assert found[0] == found[1]
    assert n_right > 0
    assert (
        n_steps[0] - n_steps[1] <= n_right <= n_steps[0] - n_steps[1] + sum(2 * len(turns) for turns, _, _ in found[0])
    )


class CountingEngine(LlamaEngine):
    """Counts the steps in which something was evaluated."""

    n_steps = 0

    def decode_batch(self, decodings):
        n_before = self.count_evaluated()
        tokens = super().decode_batch(decodings)
        self.n_steps += self.count_evaluated() > n_before
        return tokens


def guess_nonsense(_decoding, n_most):
    """In the place of a sequence's own guesses: these are never right."""
    return [7, 8, 9, 10][:n_most]


@pytest.mark.parametrize("n_decoded", [1, 9, 23, 40])
def test_what_comes_after_open_guesses_is_as_if_there_were_none(plain, drafting, n_decoded):
    """Appending, forking, a snapshot, and another sequence's steps take guesses back that are not confirmed."""
    found, n_open, logits = [], [], []
    for engine in (plain, drafting):
        sequence = engine.new_sequence(3, SAMPLED)
        sequence.guess = guess_nonsense
        sequence.append(prompt_of(engine))
        tokens = decode(sequence, n_decoded)
        n_open.append(len(sequence.guesses))
        twin = sequence.fork(4)
        tokens += decode(twin, 12)
        logits.append([twin.logits])
        twin.close()
        other = engine.new_sequence(5, SAMPLED)
        other.append(prompt_of(engine, QUESTIONS[1]))
        tokens += decode(other, 5)
        late = sequence.fork(6)  # nothing of it was evaluated since its guesses were taken back
        tokens += decode(late, 8)
        logits[-1].append(late.logits)
        late.close()
        prefill = sequence.append(prompt_of(engine, QUESTIONS[2]))
        tokens += decode(sequence, 20)
        restored = engine.restore(sequence.snapshot())
        tokens += decode(restored, 12)
        logits[-1].append(restored.logits)
        together = [one.start(None, 8, NO_STOP) for one in (sequence, other)]
        for _ in range(8):
            tokens += engine.decode_batch(together)
        found.append((tokens, prefill.n_new + prefill.n_cached))
        for one in (sequence, other, restored):
            logits[-1].append(one.logits)
            one.close()
    assert found[0] == found[1]
    assert np.allclose(logits[0], logits[1], atol=0.02)
    assert (n_open[0], n_open[1] > 0) == (0, n_decoded > 1)  # the first token is drawn from what the prompt left


def test_models_that_cannot_go_back_draft_nothing(tmp_path):
    """llama.cpp keeps earlier states of a Mamba's layers for nobody: it is decoded as without drafts, and no worse."""
    path, found = write_mamba_gguf(tmp_path / "mamba.gguf"), []
    for n_draft in (0, None):
        engine = LlamaEngine(path, EngineSettings(n_ctx=512, n_draft=n_draft, threads=1))
        sequence = engine.new_sequence(1, SAMPLED)
        sequence.guess = guess_nonsense
        sequence.append(engine.tokenize("SELECT name FROM customers; " * 8, trusted=False))
        found.append(decode(sequence, 60))
        assert engine.n_guessed == 0
        engine.close()
    assert found[0] == found[1]


def test_a_guess_of_which_all_was_drawn_counts(exact_gguf):
    """After a useless one less has to repeat again before the next is made, though nothing was taken back."""
    engine = LlamaEngine(exact_gguf, EngineSettings(n_ctx=512, n_draft=7, threads=1))
    sequence = engine.new_sequence(0, GREEDY)
    decoding = sequence.start(None, 200, NO_STOP)
    sequence.append([*range(40), *range(10, 18)])
    assert sequence.guess(decoding, 7)
    sequence.take_guesses([(99, None)] * 7)
    sequence.drop_guesses()
    sequence.append([50, *range(20, 28)])
    assert not sequence.guess(decoding, 7)
    sequence.append(range(28, 36))
    guessed = sequence.guess(decoding, 7)
    assert guessed == [36, 37, 38, 39, 10, 11, 12]
    sequence.take_guesses([(token, sequence.logits) for token in guessed])
    sequence._tokens += guessed
    assert sequence.confirm_guesses() == 7
    sequence.append([51, *range(12, 20)])
    assert sequence.guess(decoding, 7)
    engine.close()


def test_the_context_is_never_overrun_by_guesses(exact_gguf):
    """The last token that fits is drawn, and none is guessed behind it."""
    engine = LlamaEngine(exact_gguf, EngineSettings(n_ctx=256, n_draft=15, threads=1))
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append(prompt_of(engine))
    n_free = 256 - len(sequence)
    assert len(decode(sequence, n_free)) == n_free
    engine.close()
