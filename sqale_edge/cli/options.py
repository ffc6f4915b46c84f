"""Options that several commands share, written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sqale_edge.settings import GpuLayers

F = TypeVar("F", bound=Callable[..., Any])


class _GpuLayersType(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on
    name = "auto|off|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GpuLayers:
        if value in ("auto", "off"):
            return value  # type: ignore[no-any-return] # one of the two words
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not auto, off or a number of layers", param, ctx)


def load_options(command: F) -> F:
    """How a model is loaded."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1, 512),
            help="CPU threads. [default: the cores that this process may use; one in `demo`]",
        ),
        click.option("--gpu-layers", type=_GpuLayersType(), help="Layers to offload to a GPU. [default: auto]"),
        click.option(
            "--no-prefix-cache",
            is_flag=True,
            help="Evaluate what all questions share anew, and keep nothing of it; the answers are the same.",
        ),
    ):
        command = option(command)
    return command


def model_options(command: F) -> F:
    """How a model is chosen and loaded."""
    choose = click.option(
        "-m",
        "--model",
        required=True,
        envvar="SQALE_EDGE_MODEL",
        show_envvar=True,
        help="A GGUF file; or demo, the small model of this package.",
    )
    return choose(load_options(command))
