"""How much memory a model will take, before it is loaded, and how much there is.

Platform-specific, like `threads.py`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import ModelLoadError
from sqale_edge.llama.threads import own_cgroups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqale_edge.llama.gguf_header import Header
    from sqale_edge.settings import EngineSettings

_F16, _F32 = 2, 4
_GIB = 1 << 30
_PROGRAM_BYTES = 120 << 20  # Python, NumPy, llama.cpp and a vocabulary of 248,320 tokens, measured


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a model will take.

    Attributes:
        weights_bytes: The tensors; with `use_mmap` the file and its repacked copies can both be resident.
        kv_cache_bytes: Keys and values of the attention layers, for all sequences.
        recurrent_state_bytes: The state of the recurrent layers, for all sequences.
        compute_bytes: llama.cpp's buffers while it evaluates one batch; the least certain part.
        program_bytes: Everything else in the process.
    """

    weights_bytes: int
    kv_cache_bytes: int
    recurrent_state_bytes: int
    compute_bytes: int
    program_bytes: int = _PROGRAM_BYTES

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return sum(getattr(self, field.name) for field in dataclasses.fields(self))


def estimate_memory(metadata: Mapping[str, str], file_bytes: int, settings: EngineSettings) -> MemoryEstimate:
    """What loading a GGUF with these `metadata` and of `file_bytes` will take.

    Within a tenth for a 2B Qwen3.5 at Q4_K_M, as measured.
    """

    def number(key: str, default: int = 0) -> int:
        # Some models have one value a layer, "[8, 8, 4]"; the largest bounds them.
        text = metadata.get(f"{metadata.get('general.architecture')}.{key}", "").strip("[]")
        values = [int(part) for part in text.split(",") if part.strip().isdigit()]
        return max(values, default=default)

    n_layers, n_embd, n_heads = number("block_count"), number("embedding_length"), number("attention.head_count", 1)
    interval = number("full_attention_interval", 1)
    n_attention = n_layers // max(1, interval)
    head_width = n_embd // max(1, n_heads)
    width = number("attention.head_count_kv", n_heads) * (
        number("attention.key_length", head_width) + number("attention.value_length", head_width)
    )
    n_cells = settings.n_ctx * settings.n_sequences
    inner, state_size = number("ssm.inner_size"), number("ssm.state_size")
    convolution = (number("ssm.conv_kernel", 1) - 1) * (inner + 2 * number("ssm.group_count") * state_size)
    return MemoryEstimate(
        weights_bytes=file_bytes,
        kv_cache_bytes=n_attention * n_cells * width * _F16,
        recurrent_state_bytes=(n_layers - n_attention)
        * (convolution + inner * state_size)
        * _F32
        * settings.n_sequences
        * (1 + settings.n_guesses),
        compute_bytes=settings.n_batch * 4 * (number("feed_forward_length") + n_embd) * _F32,
    )


def check_fits(path: Path, header: Header, settings: EngineSettings, available_bytes: int | None) -> None:
    """Raise ModelLoadError unless the model will fit into `available_bytes`; None means that nobody knows.

    Swapping takes minutes for each token, and the machine with it.
    """
    # The part of the program that is there already makes up for what the estimate leaves out.
    needed_bytes = estimate_memory(_as_metadata(header.values), path.stat().st_size, settings).total_bytes
    if available_bytes is None or needed_bytes <= available_bytes:
        return
    raise ModelLoadError(
        f"{str(path)!r} takes about {needed_bytes / _GIB:.1f} GiB of memory, with a context of {settings.n_ctx} for "
        f"each of {settings.n_sequences} sequences, and {available_bytes / _GIB:.1f} GiB are available",
        hint="close other programs, take a smaller file, fewer --votes or less --parallel, or lower SQALE_EDGE_N_CTX; "
        "SQALE_EDGE_CHECK_MEMORY=0 loads it nevertheless",
    )


def _as_metadata(values: Mapping[str, Any]) -> dict[str, str]:
    """A header's values as llama.cpp gives them: all as text."""
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for key, value in values.items()
    }


def available_memory() -> int | None:
    """Bytes that this process can still take without swapping; None where the system does not say."""
    if sys.platform != "linux":
        return None
    rooms = [_read_available(), *(read_cgroup_room(group) for group in own_cgroups())]
    return min((room for room in rooms if room is not None), default=None)


def _read_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def read_cgroup_room(group: Path) -> int | None:
    """What a control group still allows, files in its page cache left out; None where it sets no limit."""
    try:
        room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return room + sum(int(statistics.get(f"{which}_file", 0)) for which in ("active", "inactive"))
    except (OSError, ValueError):
        return None  # no control group, or "max"
