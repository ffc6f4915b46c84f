"""Plots of a document as PNG files; they need matplotlib, the extra `bench`."""

from __future__ import annotations

import contextlib
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

_DPI = 150
_BAR, _SAMPLE = "#9ecae1", "#08519c"


def draw_plots(document: dict[str, Any], folder: Path) -> list[Path] | None:
    """Write a plot for each measurement with times into `folder`, and return the files; None without matplotlib.

    A file of the same name is replaced.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, result in document["measurements"].items():
        bars = [
            (f"{figure['name']}: {contender}", one["samples_s"])
            for figure in result["figures"]
            for contender, one in figure["contenders"].items()
        ]
        if not bars:
            continue
        plot = Figure(figsize=(8, 1.2 + 0.3 * len(bars)), layout="constrained")
        axes = plot.subplots()
        places = range(len(bars), 0, -1)
        axes.barh(places, [statistics.median(samples) for _, samples in bars], color=_BAR, height=0.6)
        for place, (_, samples) in zip(places, bars, strict=True):
            axes.plot(samples, [place] * len(samples), ".", color=_SAMPLE, markersize=4)
        axes.set_yticks(places, [label for label, _ in bars], fontsize=7)
        axes.set_xlabel("seconds (bar: median, points: samples)")
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(f"{name}: {document['model']['file']}, {document['machine']['cpu']}", fontsize=9)
        path = folder / f"speed-{name}.png"
        save_plot(plot, path)
        paths.append(path)
    return paths


def save_plot(plot: Figure, path: Path) -> None:
    """Write a PNG file, whole or not at all."""
    try:
        plot.savefig(path, dpi=_DPI)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
