"""How fast memory is, on the spot: the ceiling of decoding, which reads all weights for each token.

The arrays are several times larger than the last cache, and each thread has a part of them, as in llama.cpp.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_BYTES = 256 << 20
_CACHES = 2  # arrays are so many times as large as the last cache
_ARRAYS = 3
_BLOCK = 1 << 24  # numbers that are written between two checks


def choose_array_bytes(available_bytes: int | None, cache_bytes: int | None) -> tuple[int, bool]:
    """Bytes for one of three arrays, and whether that is enough to be sure that no cache holds them."""
    wanted = max(LEAST_BYTES, _CACHES * (cache_bytes or 0))
    limit = wanted if available_bytes is None else available_bytes // (2 * _ARRAYS)
    return min(wanted, limit), limit >= wanted


def last_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Size of the largest cache; None where the system does not say."""
    sizes = []
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1))
        except (OSError, ValueError):
            continue
    return max(sizes, default=None)


def measure_bandwidth(
    array_bytes: int,
    n_threads: int,
    *,
    n_rounds: int = 5,
    seconds: float = 10.0,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Bytes a second of reading, of copying and of a triad `a = b + c`; bytes that are read and written both count.

    What a store reads before it writes does not count, so that the figures are on the low side.

    Args:
        array_bytes: Of one of three arrays.
        n_threads: Each has a part of them.
        n_rounds: Samples.
        seconds: No round begins later than this, but for the first.
        check: Called now and then; what it raises ends it.
    """
    import numpy as np  # noqa: PLC0415 - keeps the import light

    n_items = array_bytes // 4 // n_threads
    parts = [[np.empty(n_items, np.float32) for _ in range(_ARRAYS)] for _ in range(n_threads)]
    for part in parts:
        for value, array in enumerate(part):
            for first in range(0, n_items, _BLOCK):
                check()
                array[first : first + _BLOCK] = value
    kernels: dict[str, tuple[int, Callable[..., object]]] = {
        "read": (1, lambda _a, b, _c: np.dot(b, b)),
        "copy": (2, lambda a, b, _c: np.copyto(a, b)),
        "triad": (3, lambda a, b, c: np.add(b, c, out=a)),
    }
    rates: dict[str, list[float]] = {name: [] for name in kernels}
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(n_threads) as pool:
        for number in range(-1, n_rounds):
            if number > 0 and time.perf_counter() > end:
                break
            for name, (n_arrays, kernel) in kernels.items():
                check()
                start = time.perf_counter()
                list(pool.map(lambda part, run=kernel: run(*part), parts))
                if number >= 0:
                    rates[name].append(n_arrays * n_items * 4 * n_threads / (time.perf_counter() - start))
    return {f"{name}_bytes_per_s": values for name, values in rates.items()}
