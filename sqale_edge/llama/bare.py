"""`llama_decode` and nothing else: what every way of decoding is measured against."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import llama_cpp

from sqale_edge.llama import bindings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqale_edge.llama.engine import LlamaEngine
    from sqale_edge.llama.sequence import LlamaSequence


def decode_bare(engine: LlamaEngine, sequence: LlamaSequence, tokens: Sequence[int]) -> float:
    """Evaluate `tokens` behind `sequence`, one at a time, and do nothing with the logits; the seconds that it took.

    The sequence does not know of it: it can only be closed afterwards.

    Raises:
        Cancelled: The engine was cancelled meanwhile.
        DecodeError: llama.cpp failed.
    """
    context = engine._context  # noqa: SLF001 - the same context, so that nothing else differs
    batch = llama_cpp.llama_batch_init(1, 0, 1)
    try:
        batch.n_tokens = 1
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, sequence.seq_id, True
        start = time.perf_counter()
        for position, token in enumerate(tokens, len(sequence)):
            batch.token[0], batch.pos[0] = token, position
            bindings.check_decode(llama_cpp.llama_decode(context, batch))
            llama_cpp.llama_synchronize(context)
        return time.perf_counter() - start
    finally:
        llama_cpp.llama_batch_free(batch)
