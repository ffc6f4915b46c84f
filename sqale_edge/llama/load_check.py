"""Does a GGUF file load, and does it decode? The last step of a conversion, in as little memory as llama.cpp needs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from sqale_edge.errors import DecodeError, ModelLoadError
from sqale_edge.llama import bindings
from sqale_edge.llama.file_check import check_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROMPT = b"SELECT 1"
_N_CTX = 64


def check_loads(path: Path) -> dict[str, Any]:
    """Load the file, evaluate a prompt, take the likeliest token, evaluate that. Returns what was seen, as JSON types.

    Raises:
        ModelLoadError: llama.cpp cannot load the file.
        DecodeError: It cannot evaluate it, or what it computes is not finite.
    """
    with mapped_model(path) as model:
        return _decode(model, path)


@contextlib.contextmanager
def mapped_model(path: Path) -> Iterator[Any]:
    """llama.cpp's model of a file, for the block; its weights stay where the system maps them, on the CPU.

    Raises:
        ModelLoadError: llama.cpp cannot load the file.
    """
    bindings.initialise()
    check_file(path)
    bindings.forget_errors()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
    params.use_extra_bufts = False  # no repacked copies of the weights: they would double what is in memory
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelLoadError(f"{path.name} cannot be loaded: {bindings.last_error() or 'llama.cpp gave no reason'}")
    try:
        yield model
    finally:
        llama_cpp.llama_model_free(model)


def _decode(model: Any, path: Path) -> dict[str, Any]:
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = _N_CTX
    params.n_threads = params.n_threads_batch = 1  # a few tokens: more threads would only wait for each other
    context = bindings.make_context(model, params, path)
    try:
        tokens = (llama_cpp.llama_token * _N_CTX)()
        n_prompt = llama_cpp.llama_tokenize(vocabulary, _PROMPT, len(_PROMPT), tokens, _N_CTX, True, True)
        if n_prompt < 1:
            raise DecodeError(f"{path.name} turns {_PROMPT.decode()!r} into no tokens: its vocabulary is damaged")
        n_vocab = llama_cpp.llama_vocab_n_tokens(vocabulary)
        first = _take_likeliest(context, tokens, n_prompt, n_vocab, path)
        tokens[0] = first
        _take_likeliest(context, tokens, 1, n_vocab, path)
    finally:
        llama_cpp.llama_free(context)
    return {"n_vocab": n_vocab, "n_prompt": n_prompt, "token": first}


def _take_likeliest(context: Any, tokens: Any, n_tokens: int, n_vocab: int, path: Path) -> int:
    """Evaluate the first `n_tokens` of `tokens`; the likeliest token after them."""
    bindings.check_decode(llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, n_tokens)))
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), shape=(n_vocab,))
    if not np.isfinite(logits).all():
        raise DecodeError(f"{path.name} loads, but what it computes is not finite: its weights are damaged")
    return int(logits.argmax())
