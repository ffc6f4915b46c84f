"""What every use of llama.cpp's C interface needs: the version guard, its log, its callbacks, its return codes.

llama-cpp-python mirrors C structs by hand, so another version of it can corrupt memory without a word: only the tested
one is accepted. llama.cpp's log goes to the logger `sqale_edge.llama`; file descriptors are left alone.
"""

from __future__ import annotations

import collections
import ctypes
import logging
import sys
from typing import TYPE_CHECKING, Any

import llama_cpp
from llama_cpp import _ggml

from sqale_edge.errors import Cancelled, ContextOverflowError, DecodeError, ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TESTED_VERSION = "0.3.36"

_log = logging.getLogger("sqale_edge.llama")
# llama.cpp calls "info" what only its developers want to see. Source: enum ggml_log_level in ggml.h.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
_ERROR, _CONTINUED = 4, 5


def check_version(installed: str) -> None:
    """Raise ModelLoadError unless `installed` is the llama-cpp-python that this package was tested with."""
    if installed != TESTED_VERSION:
        raise ModelLoadError(
            f"llama-cpp-python {installed} is installed, but sqale-edge was tested with {TESTED_VERSION} only",
            hint=f"pip install llama-cpp-python=={TESTED_VERSION}",
        )


class _LogBridge:
    """Turns llama.cpp's log pieces into lines for `logging`, and remembers the last errors."""

    def __init__(self) -> None:
        self._level = 0
        self._line = ""
        self.errors: collections.deque[str] = collections.deque(maxlen=8)

    def write(self, level: int, text: bytes, _user_data: Any) -> None:
        """One piece; a line ends with its newline, and may come in several pieces."""
        if level != _CONTINUED:
            self._level = level
        self._line += text.decode("utf-8", "replace")
        if not self._line.endswith("\n"):
            return
        line, self._line = self._line.strip(), ""
        if self._level == _ERROR:
            self.errors.append(line)
        if line:
            _log.log(_LEVELS.get(self._level, logging.DEBUG), "%s", line)


_bridge = _LogBridge()
# Kept for the life of the process: llama.cpp calls it whenever it likes, and a collected callback would crash.
_log_callback = llama_cpp.llama_log_callback(_bridge.write)


def initialise() -> None:
    """Check the version, take over the log, start llama.cpp. Safe to call again."""
    check_version(llama_cpp.__version__)
    llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def forget_errors() -> None:
    """Start afresh before a call that `last_error` may have to explain."""
    _bridge.errors.clear()


def last_error() -> str:
    """Why the last call failed, in llama.cpp's words, its function names left out; may be empty."""
    if not _bridge.errors:
        return ""
    # The first line is the cause ("llama_model_load: error loading model: ..."), the later ones repeat that it failed.
    return _bridge.errors[0].rpartition("error loading model: ")[2].removeprefix("llama_model_load: ")


def check_decode(code: int) -> None:
    """Raise what a return code of `llama_decode` means.

    0 is success. Source: the comment on llama_decode in llama.h.
    """
    if code == 0:
        return
    if code == 1:
        raise ContextOverflowError(
            "the context is full: llama.cpp found no place for the next tokens",
            hint="load the model with a larger n_ctx",
        )
    if code == 2:
        raise Cancelled("the evaluation was cancelled")
    detail = "an invalid batch" if code == -1 else last_error() or "a fatal error"
    raise DecodeError(f"llama.cpp failed to evaluate tokens: {detail} (code {code})")


class AbortFlag:
    """Ends what contexts compute, from any thread; it needs no Python while llama.cpp is at work.

    llama.cpp asks hundreds of times a token; a Python function would take the GIL each time and stall whenever the host
    program is busy. The C library's `strlen` is asked instead: of a one-character string it is 1, of an empty one 0.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        library = ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)
        self._callback = ctypes.cast(library.strlen, llama_cpp.ggml_abort_callback)

    @property
    def is_set(self) -> bool:
        """Whether what is computed, and what is begun, ends with `Cancelled`."""
        return self._text[0] != b"\x00"

    def set(self) -> None:
        """End it."""
        self._text[0] = b"\x01"

    def clear(self) -> None:
        """Let it go on."""
        self._text[0] = b"\x00"

    def attach_to(self, params: Any) -> None:
        """Let contexts that are made with `params` heed it; keep it as long as they live."""
        params.abort_callback = self._callback
        params.abort_callback_data = ctypes.addressof(self._text)


def make_context(model: Any, params: Any, path: Path) -> Any:
    """A context of llama.cpp's `model`, which was loaded from `path`; whoever asked for it frees it.

    Raises:
        ModelLoadError: There is none, most likely for want of memory.
    """
    forget_errors()
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        reason = last_error() or "most likely memory does not suffice"
        raise ModelLoadError(
            f"no context of {params.n_ctx} tokens could be made for {str(path)!r}: {reason}",
            hint="free some memory, or choose a smaller n_ctx (SQALE_EDGE_N_CTX); sqale-edge doctor --model FILE says "
            "what is needed",
        )
    return context


def fill_batch(batch: Any, tokens: Sequence[int], start: int) -> None:
    """Put `tokens`, which stand from position `start` on in sequence 0, into `batch`, with logits behind each."""
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index], batch.pos[index] = token, start + index
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, True


def read_text(call: Any, *args: Any) -> str | None:
    """What a llama.cpp function of the form `f(*args, buffer, size) -> length` writes.

    None where it answers with a negative length.
    """
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = call(*args, buffer, size)
        if length < 0:
            return None
        if length < size:
            return buffer.raw[:length].decode("utf-8", "replace")
        size = length + 1


def list_devices() -> list[str]:
    """What processors and GPUs llama.cpp sees, in its words; empty where its libraries do not tell (Windows)."""
    library = _ggml.libggml
    try:
        library.ggml_backend_dev_count.restype = ctypes.c_size_t
        library.ggml_backend_dev_get.restype = ctypes.c_void_p
        library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
        library.ggml_backend_dev_description.restype = ctypes.c_char_p
        library.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    except AttributeError:
        return []
    devices = map(library.ggml_backend_dev_get, range(library.ggml_backend_dev_count()))
    return [(library.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace") for device in devices]
