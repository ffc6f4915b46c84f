"""One quantized file out of an unquantized one, in a child process that can be stopped."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge.errors import ModelError, QuantizationError
from sqale_edge.llama.worker import run_in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .outputs import Output


def quantize(
    source: Path, target: Path, output: Output, *, threads: int | None = None, on_wait: Callable[[], None] | None = None
) -> None:
    """Quantize `source`, which is not, into the new file `target`.

    Args:
        source: A GGUF file.
        target: In a folder where another file may lie meanwhile, with `.npz` behind its name.
        output: Of `complete_outputs`, with the tensors of `source`.
        threads: None takes as many as this process has CPUs.
        on_wait: Called every tenth of a second; what it raises stops the work.

    Raises:
        QuantizationError: llama.cpp refuses the file, or the disk is full.
    """
    how: dict[str, Any] = {"mix": dataclasses.asdict(output.mix)}
    importance = target.with_name(f"{target.name}.npz")
    try:
        if output.importance:
            arrays: dict[str, Any] = dict(output.importance)
            np.savez(importance, **arrays)
            how["importance"] = str(importance.absolute())
        args = (str(source.absolute()), str(target.absolute()), output.file_type, threads, how)
        run_in_child("quantize", *args, on_wait=on_wait)
    except ModelError as error:
        raise QuantizationError(
            f"{target.name} could not be quantized: {error}", path=target, hint=error.hint
        ) from error
    except OSError as error:
        raise QuantizationError(f"{str(importance)!r} cannot be written: {error.strerror}", path=target) from error
    finally:
        with contextlib.suppress(OSError):
            importance.unlink(missing_ok=True)
