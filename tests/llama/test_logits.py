"""Logits behind every token: those that decoding gives, in blocks, whatever was evaluated before."""

import numpy as np
import pytest

from sqale_edge import EngineSettings
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError
from sqale_edge.llama import LlamaEngine
from sqale_edge.llama.logits import LogitsModel, digest_vocabulary

TOKENS = [5, 17, 260, 300, 11, 42, 7, 99, 123, 5, 6]


def settings(n_batch=4):
    return EngineSettings(n_ctx=64, n_batch=n_batch, threads=1, threads_batch=1)


@pytest.fixture(scope="module")
def model(qwen_gguf):
    with LogitsModel(qwen_gguf, settings()) as model:
        yield model


def test_a_row_for_each_token_in_blocks(model):
    """No block has more than `n_batch` rows, and all have the whole vocabulary: memory is bounded by it."""
    blocks = list(model.evaluate(TOKENS))
    assert [len(block) for block in blocks] == [4, 4, 3]
    assert {block.shape[1] for block in blocks} == {model.n_vocab}


def test_the_rows_are_those_of_decoding(model, qwen_gguf):
    """Row r is what the engine draws the token after token r from, but for the last bits."""
    rows = np.concatenate(list(model.evaluate(TOKENS)))
    engine = LlamaEngine(qwen_gguf, settings())
    sequence = engine.new_sequence(0)
    for row, token in zip(rows, TOKENS, strict=True):
        sequence.append([token])
        assert np.abs(sequence.logits - row).max() < 0.05
    engine.close()


def test_the_same_again(model):
    """Nothing of a log is left for the next one, also where it was not read to its end."""
    first = np.concatenate(list(model.evaluate(TOKENS)))
    next(model.evaluate(TOKENS[::-1]))
    assert (np.concatenate(list(model.evaluate(TOKENS))) == first).all()


def test_what_cannot_be_evaluated_is_an_error(model):
    """An id beyond the vocabulary, and more tokens than the context holds."""
    with pytest.raises(ModelError, match="not in the vocabulary"):
        next(model.evaluate([model.n_vocab]))
    with pytest.raises(ContextOverflowError, match="65 tokens"):
        next(model.evaluate([1] * 65))


def test_cancel(qwen_gguf):
    """It ends the evaluation between two blocks."""
    with LogitsModel(qwen_gguf, settings()) as model:
        blocks = model.evaluate(TOKENS)
        next(blocks)
        model.cancel()
        with pytest.raises(Cancelled):
            next(blocks)


def test_the_digest_of_a_vocabulary_is_that_of_the_checkpoint(qwen_gguf, model):
    """As `reference_vllm` computes it from `tokenizer.json`."""
    from sqale_edge.benchmarks.reference_vllm import digest_vocabulary as digest_of_folder

    assert digest_vocabulary(qwen_gguf) == (model.vocabulary_sha256, model.n_vocab)
    assert digest_of_folder(qwen_gguf.parent / "checkpoint") == model.vocabulary_sha256
