"""The engine on a real hybrid model: each token evaluated once, and every fast path equal to the plain one."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint

from sqale_edge import EngineSettings, SamplingSettings
from sqale_edge.errors import Cancelled, ContextOverflowError, DecodeError, ModelError, SettingsError
from sqale_edge.llama import LlamaEngine, bindings

if TYPE_CHECKING:
    from sqale_edge.engine import Decoding

GREEDY = SamplingSettings(temperature=0)
SAMPLED = SamplingSettings(temperature=1.0, top_k=40, top_p=0.9)
NO_STOP: frozenset[int] = frozenset()


def prompt_of(engine: LlamaEngine, text: str = "How many customers are there?") -> list[int]:
    return engine.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n", trusted=True)


def decode(sequence, n_tokens: int) -> list[int]:
    return list(sequence.decode(None, n_tokens, NO_STOP))


def test_each_turn_evaluates_exactly_the_new_tokens(engine):
    """Turn after turn, llama.cpp's own counter grows by the new tokens and by nothing else."""
    sequence = engine.new_sequence(0, GREEDY)
    for turn in range(4):
        before, n_log = engine.count_evaluated(), len(sequence)
        new = prompt_of(engine, f"question number {turn}")
        prefill = sequence.append(new)
        n_pending = 1 if turn else 0  # the last token of the turn before was drawn, but not evaluated
        assert prefill.n_new == len(new) + n_pending
        assert prefill.n_cached == n_log - n_pending
        assert engine.count_evaluated() - before == prefill.n_new
        before = engine.count_evaluated()
        decode(sequence, 7)
        assert engine.count_evaluated() - before == 6


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_warm_equals_cold(engine, sampling):
    """A log that grew over turns continues exactly as one that is evaluated from its first token, also with a seed."""
    warm = engine.new_sequence(7, sampling)
    for turn in range(3):
        warm.append(prompt_of(engine, f"turn {turn}"))
        decode(warm, 9)
    log = warm.tokens
    cold = engine.new_sequence(7, sampling)
    cold.append(log)
    assert decode(warm, 12) == decode(cold, 12)


@pytest.mark.parametrize("n_batch", [1, 7, 512])
def test_any_batch_size_gives_the_same_tokens(qwen_gguf, engine, n_batch):
    """Prefilling in pieces of any size ends in the same state."""
    prompt = prompt_of(engine, "x" * 60)
    whole = engine.new_sequence(0, GREEDY)
    whole.append(prompt)
    expected = decode(whole, 8)
    other = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=512, n_batch=n_batch, threads=1))
    sequence = other.new_sequence(0, GREEDY)
    assert sequence.append(prompt).n_new == len(prompt)
    assert decode(sequence, 8) == expected
    other.close()


def test_seeds_are_exact(engine):
    """Seed 0 is a seed like any other: it repeats, and other seeds differ from it."""
    outputs = []
    for seed in (0, 0, 1, 2**64 - 1):
        sequence = engine.new_sequence(seed, SAMPLED)
        sequence.append(prompt_of(engine))
        outputs.append(decode(sequence, 24))
        sequence.close()
    assert outputs[0] == outputs[1]
    assert len({tuple(output) for output in outputs}) == 3


def test_a_fork_equals_a_fresh_run(engine):
    """A fork continues as a fresh sequence of its seed does, and leaves its origin as it was."""
    prompt = prompt_of(engine)
    origin = engine.new_sequence(1, SAMPLED)
    origin.append(prompt)
    before = engine.count_evaluated()
    fork = origin.fork(2)
    assert engine.count_evaluated() == before
    forked = decode(fork, 16)
    continued = decode(origin, 16)
    origin.close()
    fork.close()
    for seed, seen in ((2, forked), (1, continued)):
        fresh = engine.new_sequence(seed, SAMPLED)
        fresh.append(prompt)
        assert decode(fresh, 16) == seen
        fresh.close()


def test_a_fork_in_the_middle_of_a_turn_equals_a_fresh_run(engine):
    """A fork also takes over a token that was drawn but not evaluated yet."""
    origin = engine.new_sequence(1, SAMPLED)
    origin.append(prompt_of(engine))
    decode(origin, 5)
    fork = origin.fork(1)
    assert decode(fork, 10) == decode(origin, 10)


@pytest.mark.parametrize("n_decoded", [0, 5])
def test_restore_equals_never_having_stopped(engine, n_decoded):
    """A snapshot restored in place of its sequence goes on token for token, and evaluates nothing again."""
    sequence = engine.new_sequence(3, SAMPLED)
    sequence.append(prompt_of(engine))
    decode(sequence, n_decoded)
    snapshot = sequence.snapshot()
    expected = decode(sequence, 12)
    sequence.close()
    before = engine.count_evaluated()
    restored = engine.restore(snapshot)
    assert engine.count_evaluated() == before
    assert decode(restored, 12) == expected


def test_a_snapshot_survives_a_restart(qwen_gguf, engine):
    """Another engine with the same model takes the snapshot."""
    sequence = engine.new_sequence(3, SAMPLED)
    sequence.append(prompt_of(engine))
    snapshot = sequence.snapshot()
    other = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=1024, threads=1))
    assert decode(other.restore(snapshot), 12) == decode(sequence, 12)
    other.close()


def test_a_loaded_snapshot_goes_on_with_the_sequences_own_seed(engine):
    """Log and state are the snapshot's, seed and sampling settings the sequence's."""
    origin = engine.new_sequence(1, GREEDY)
    origin.append(prompt_of(engine))
    snapshot = origin.snapshot()
    loaded = engine.new_sequence(2, SAMPLED)
    before = engine.count_evaluated()
    for tokens in (origin.tokens[1:], origin.tokens[:-1], (*origin.tokens, 1), ()):
        with pytest.raises(ModelError, match="another log"):
            loaded.load(snapshot, tokens)
    loaded.load(snapshot, origin.tokens)
    assert (loaded.tokens, engine.count_evaluated()) == (origin.tokens, before)
    fresh = engine.new_sequence(2, SAMPLED)
    fresh.append(prompt_of(engine))
    assert decode(loaded, 16) == decode(fresh, 16)
    with pytest.raises(ModelError, match="not empty"):
        fresh.load(snapshot, origin.tokens)


def test_a_state_that_llama_cpp_refuses_leaves_the_sequence_empty(engine):
    """Half a state, a state and a half, none: the sequence can be used as if nothing had been tried."""
    origin = engine.new_sequence(0, GREEDY)
    origin.append(prompt_of(engine))
    expected = decode(origin, 8)
    state = bytes(engine.read_state(origin))
    sequence = engine.new_sequence(0, GREEDY)
    for bad in (state[: len(state) // 2], state + state[:100], b"", bytes(len(state))):
        with pytest.raises(ModelError, match="does not accept"):
            engine.write_state(sequence, memoryview(bad))
    sequence.append(prompt_of(engine))
    assert decode(sequence, 8) == expected


DAMAGES = {
    "a flipped bit": (
        lambda good: good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :],
        "damaged",
    ),
    "cut": (lambda good: good[:-1], "damaged"),
    "cut in the header": (lambda good: good[:25], "not a snapshot"),
    "something else": (lambda _: b"SELECT 1", "not a snapshot"),
    "nothing": (lambda _: b"", "not a snapshot"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_an_error(engine, damage):
    """Bytes that are not exactly a snapshot are refused before llama.cpp sees them, and take no place."""
    spoil, message = DAMAGES[damage]
    sequence = engine.new_sequence(0)
    sequence.append(prompt_of(engine))
    with pytest.raises(ModelError, match=message):
        engine.restore(spoil(sequence.snapshot()))
    engine.new_sequence(0)
    engine.new_sequence(0)


def test_a_snapshot_of_another_model_is_refused(engine, tmp_path):
    """Also one of the same name, shape and size: its weights are others."""
    convert_checkpoint(write_checkpoint(tmp_path / "checkpoint", seed=99), tmp_path / "qwen.gguf", quant="BF16")
    other = LlamaEngine(tmp_path / "qwen.gguf", EngineSettings(n_ctx=256, threads=1))
    sequence = engine.new_sequence(0)
    sequence.append(prompt_of(engine))
    assert other.info.name == engine.info.name
    with pytest.raises(ModelError, match="of another model"):
        other.restore(sequence.snapshot())
    other.close()


def test_a_batch_of_sequences_equals_single_runs(engine):
    """Sequences that decode in one batch draw what each of them draws alone."""
    alone = []
    for seed in (1, 2, 3):
        sequence = engine.new_sequence(seed, SAMPLED)
        sequence.append(prompt_of(engine, f"question {seed}"))
        alone.append(decode(sequence, 12))
        sequence.close()
    decodings: list[Decoding] = []
    for seed in (1, 2, 3):
        sequence = engine.new_sequence(seed, SAMPLED)
        sequence.append(prompt_of(engine, f"question {seed}"))
        decodings.append(sequence.start(None, 12, NO_STOP))
    outputs = [engine.decode_batch(decodings) for _ in range(12)]
    assert all(decoding.is_done for decoding in decodings)
    assert [list(column) for column in zip(*outputs, strict=True)] == alone


def test_a_finished_sequence_gives_its_place_back(engine):
    """As many sequences as the engine was made for exist at once; a closed one makes room for a clean new one."""
    first = engine.new_sequence(0, GREEDY)
    first.append(prompt_of(engine))
    expected = decode(first, 8)
    engine.new_sequence(0)
    engine.new_sequence(0)
    with pytest.raises(ModelError, match="all 3 sequences"):
        engine.new_sequence(0)
    first.close()
    first.close()
    again = engine.new_sequence(0, GREEDY)
    again.append(prompt_of(engine))
    assert decode(again, 8) == expected


def test_budgets_and_stop_tokens(engine):
    """A decode ends after its last allowed token, or with a stop token, which is in the log."""
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append(prompt_of(engine))
    assert decode(sequence, 0) == []
    tokens = decode(sequence, 6)
    assert len(tokens) == 6
    other = engine.new_sequence(0, GREEDY)
    other.append(prompt_of(engine))
    stopped = list(other.decode(None, 6, frozenset({tokens[2]})))
    assert stopped == tokens[: tokens.index(tokens[2]) + 1]
    assert other.tokens[-1] == tokens[2]


def test_the_context_is_never_overrun(qwen_gguf):
    """What does not fit is refused before anything is evaluated, and the sequence can go on with less."""
    small = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=64, threads=1))
    sequence = small.new_sequence(0, GREEDY)
    before = small.count_evaluated()
    with pytest.raises(ContextOverflowError, match="do not fit into a context of 64"):
        sequence.append([5] * 65)
    assert small.count_evaluated() == before
    assert len(sequence) == 0
    sequence.append([5] * 60)
    with pytest.raises(ContextOverflowError):
        decode(sequence, 10)
    assert len(sequence) == 64
    small.close()


def test_foreign_token_ids_are_refused(engine):
    """An id outside the vocabulary is an error, not a read past the end of a table."""
    sequence = engine.new_sequence(0)
    for bad in (-1, engine.info.n_vocab, 2**31):
        with pytest.raises(ModelError, match="not in the vocabulary"):
            sequence.append([1, bad])
    assert len(sequence) == 0


def test_an_empty_sequence_cannot_be_decoded(engine):
    """Without a prompt there are no logits to draw from."""
    with pytest.raises(ModelError, match="append a prompt first"):
        decode(engine.new_sequence(0), 1)


def prefill_without_end(engine, sequence) -> None:
    while True:  # only a cancel stops it
        sequence.append([7] * 1000)
        sequence.close()
        sequence = engine.new_sequence(0, GREEDY)


class TestCancel:
    """A cancel ends within one token, and leaves no trace in what follows."""

    def test_between_two_tokens(self, engine):
        """The next token is not drawn any more."""
        sequence = engine.new_sequence(0, GREEDY)
        sequence.append(prompt_of(engine))
        tokens = sequence.decode(None, 100, NO_STOP)
        next(tokens)
        engine.cancel()
        with pytest.raises(Cancelled):
            next(tokens)
        with pytest.raises(Cancelled):
            sequence.append([1])

    def test_while_llama_cpp_computes(self, engine):
        """A long prefill is aborted in the middle of a batch, and the next question equals a cold one."""
        expected_sequence = engine.new_sequence(0, GREEDY)
        expected_sequence.append(prompt_of(engine))
        expected = decode(expected_sequence, 8)
        expected_sequence.close()
        sequence = engine.new_sequence(0, GREEDY)
        n_before = engine.count_evaluated()
        canceller = threading.Timer(0.05, engine.cancel)
        canceller.start()
        with pytest.raises(Cancelled):
            prefill_without_end(engine, sequence)
        canceller.join()
        assert engine.count_evaluated() > n_before
        sequence.close()
        after = engine.new_sequence(0, GREEDY)
        after.append(prompt_of(engine))
        assert decode(after, 8) == expected

    @pytest.mark.skipif(sys.platform == "win32", reason="the timer's signal is POSIX's")
    def test_a_signal_handler_can_cancel_and_close_anywhere(self, engine):
        """It finds the thread in the middle of anything, with the engine's own locks held; nothing waits for itself."""
        before = signal.signal(signal.SIGALRM, lambda *_: engine.cancel())
        n_cancelled = 0
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for _ in range(300):
                sequence = engine.new_sequence(0, GREEDY)
                try:
                    sequence.append(prompt_of(engine, "a"))
                    decode(sequence, 3)
                except Cancelled:
                    n_cancelled += 1
                sequence.close()
            signal.signal(signal.SIGALRM, lambda *_: engine.close())
            with pytest.raises(ModelError):
                prefill_without_end(engine, engine.new_sequence(0, GREEDY))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert n_cancelled > 0

    def test_without_a_sequence_it_does_nothing(self, engine):
        """A cancel that comes too late does not hit the next question."""
        engine.cancel()
        sequence = engine.new_sequence(0, GREEDY)
        sequence.append(prompt_of(engine))
        assert len(decode(sequence, 4)) == 4


def test_a_closed_engine_says_so(qwen_gguf):
    """After close, sequences are closed and new ones are refused; closing again is harmless."""
    engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=256, threads=1))
    sequence = engine.new_sequence(0)
    sequence.append([1])
    decoding = sequence.start(None, 5, NO_STOP)
    engine.close()
    engine.close()
    engine.cancel()
    with pytest.raises(ModelError, match="closed"):
        sequence.append([1])
    sequence.close()
    uses = [
        lambda: sequence.fork(0),
        lambda: list(sequence.decode(None, 2, NO_STOP)),
        lambda: engine.decode_batch([decoding]),
        sequence.snapshot,
        lambda: engine.new_sequence(0),
        lambda: engine.tokenize("a", trusted=True),
        lambda: engine.detokenize([1]),
        lambda: engine.compile_grammar("root ::= [a]"),
        engine.count_evaluated,
        lambda: engine.restore(b""),
    ]
    for use in uses:
        with pytest.raises(ModelError):
            use()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", None])
def test_what_is_no_seed_is_an_error(engine, seed):
    """Named at once, and no place is taken."""
    for _ in range(5):
        with pytest.raises(SettingsError, match="seed is"):
            engine.new_sequence(seed)
    engine.new_sequence(2**64 - 1).close()


def test_closing_waits_for_the_thread_that_decodes(qwen_gguf):
    """It is stopped within a token; nothing is freed under it."""
    for _ in range(5):
        engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=4096, threads=1))
        sequence = engine.new_sequence(0, GREEDY)
        sequence.append(prompt_of(engine))
        begun, ends = threading.Event(), []

        def work(sequence=sequence, begun=begun, ends=ends):
            try:
                for _ in sequence.decode(None, 4000, NO_STOP):
                    begun.set()
            except ModelError as error:
                ends.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        engine.close()
        thread.join(60)
        assert not thread.is_alive()
        assert len(ends) == 1


def test_closing_from_inside_waits_for_the_step_to_end(engine):
    """As a signal handler that interrupts a step does: the step ends, then the model is freed."""
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append(prompt_of(engine))
    draw = sequence.draw

    def close_and_draw(decoding):
        engine.close()
        return draw(decoding)

    sequence.draw = close_and_draw
    assert len(engine.decode_batch([sequence.start(None, 5, NO_STOP)])) == 1
    with pytest.raises(ModelError, match="closed"):
        engine.tokenize("a", trusted=True)


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, ContextOverflowError), (2, Cancelled), (-1, DecodeError), (-2, DecodeError), (-3, DecodeError)],
)
def test_every_return_code_has_its_error(code, error):
    """llama_decode's return codes map to one error type each; success raises nothing."""
    bindings.check_decode(0)
    with pytest.raises(error):
        bindings.check_decode(code)
