"""Options that several commands share, written once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sqale_edge.errors import StoreError
from sqale_edge.models import advise_on_models
from sqale_edge.settings import MAX_SECONDS

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


class _Seconds(click.FloatRange):
    """A limit in seconds. `nan` is in no range and out of none: it would be a limit that never ends anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


class _ModelName(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on
    """A model's name, path or address; where none is given, the error names what is here."""

    name = "text"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        del param, ctx
        try:
            return f"Fix: {advise_on_models()}"
        except StoreError as error:
            return f"The models that are here cannot be listed: {error}"


class _NamedPath(click.Path):
    """A path that says something: an empty text, such as a variable that is not set, would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


MODEL = _ModelName()
SECONDS = _Seconds(0, MAX_SECONDS, min_open=True)
SEED = click.IntRange(0, 2**64 - 1)
PATH = _NamedPath(path_type=Path)


def join_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that adds several options, which help shows in this order."""

    def add_all(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add_all


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
databases_option = click.option(
    "--databases",
    type=PATH,
    metavar="PATH",
    help="The folder with the databases, or the one database. [default: beside QUESTIONS]",
)
# How an engine computes.
engine_options = join_options(
    click.option("--gpu-layers", type=_GpuLayersType(), help="Layers to offload to a GPU. [default: auto]"),
    click.option(
        "--threads",
        type=click.IntRange(1, 512),
        help="CPU threads. [default: what bench --tune found, else the cores; one in `demo`]",
    ),
)
# How a model is loaded.
load_options = join_options(
    click.option(
        "--no-prefix-cache",
        is_flag=True,
        help="Evaluate what all questions share anew, and keep nothing of it; the answers are the same.",
    ),
    engine_options,
)
# What is needed here of a model that runs in a server.
remote_options = click.option(
    "--tokenizer",
    envvar="SQALE_EDGE_TOKENIZER",
    show_envvar=True,
    metavar="MODEL",
    help="With http://...: the same model as a name in the store, a GGUF file or a checkpoint's folder, for its "
    "vocabulary and training prompt. [default: what the server says it serves, if that is here]",
)
# How a model is chosen and loaded.
model_options = join_options(
    click.option(
        "-m",
        "--model",
        type=MODEL,
        required=True,
        envvar="SQALE_EDGE_MODEL",
        show_envvar=True,
        help="A name in the store (see `models list`), a GGUF file, demo, the small model of this package, or the "
        "address of a vLLM server, http://...",
    ),
    remote_options,
    load_options,
)
