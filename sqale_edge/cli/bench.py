"""`sqale-edge bench`: how fast is it here, and with how many threads?"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqale_edge.benchmarks.speed import (
    NAMES,
    QUICK,
    Bench,
    Plan,
    append_document,
    candidate_threads,
    draw_plots,
    make_tuning,
    tune,
    write_markdown,
)
from sqale_edge.benchmarks.speed.tune import SECONDS
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import engine_options
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.settings import EngineSettings, GpuLayers

_TUNING_N_CTX = 1024  # a few hundred tokens are all that is evaluated


def _check_finite(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of minutes")
    return value


@click.command()
@click.option(
    "-m",
    "--model",
    default="demo",
    show_default=True,
    envvar="SQALE_EDGE_MODEL",
    show_envvar=True,
    help="A GGUF file; or demo, the small model of this package, whose figures say little about others.",
)
@click.option("--tune", "is_tuning", is_flag=True, help="Find the best number of threads, and use it from now on.")
@click.option("--quick", is_flag=True, help="Fewer and shorter samples: minutes, and only a first impression.")
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), metavar="NAME", help=f"Only this of: {', '.join(NAMES)}. Repeat."
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, 10_000, min_open=True),
    callback=_check_finite,
    metavar="N",
    help="What it may take together. [default: 30; 3 with --quick; a third with --tune]",
)
@click.option("--no-peers", is_flag=True, help="Leave out llama-cpp-python's own call and llama.cpp's server.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Add the figures to FILE, as a line of JSON.",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Draw the figures into FOLDER, as PNG files; needs matplotlib.",
)
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the tables.")
def bench(
    *,
    model: str,
    is_tuning: bool,
    quick: bool,
    only: tuple[str, ...],
    minutes: float | None,
    no_peers: bool,
    output: Path | None,
    plots: Path | None,
    gpu_layers: GpuLayers | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure speed and memory on this machine: prefill, decode, first token, whole episodes, votes, beside others.

    \b
    Examples:
      sqale-edge bench --model model.gguf --quick
      sqale-edge bench --model model.gguf --tune
    """
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415 - keeps --help light

    settings = EngineSettings.from_environment(gpu_layers=gpu_layers, threads=threads)
    if is_tuning:
        if quick or only or no_peers or output or plots:
            raise click.UsageError("--tune finds threads alone: leave out --quick, --only, --no-peers, -o and --plots")
        _tune(model, settings, seconds=minutes * 60 if minutes else SECONDS, as_json=as_json)
        return
    plan = QUICK if quick else Plan()
    seconds = minutes * 60 if minutes else plan.seconds
    plan = dataclasses.replace(plan, seconds=seconds, with_peers=not no_peers)
    speed = Bench(model, settings, plan, only)
    document: dict[str, Any] | None = None
    with contextlib.closing(iterate_in_background(speed.run, speed.stop)) as events:
        for event in events:
            if isinstance(event, str):
                click.echo(printable(f"{event} ..."), err=True)
            else:
                document = event
    if document is None:
        raise Cancelled("the benchmark was stopped")
    try:
        write_out(dump_json(document) if as_json else write_markdown(document).rstrip("\n"))
    finally:  # a reader that has gone, a full disk: nothing of it costs the figures
        if output:
            append_document(document, output)
            click.echo(printable(f"The figures were added to {output}."), err=True)
    if plots:
        drawn = draw_plots(document, plots)
        said = "No plots: matplotlib is not installed (pip install 'sqale-edge[bench]')."
        click.echo(said if drawn is None else printable(f"{len(drawn)} plots are in {plots}."), err=True)


def _tune(model: str, settings: EngineSettings, *, seconds: float, as_json: bool) -> None:
    """Measure, keep the best, and say what was found."""
    from sqale_edge.models import DEMO  # noqa: PLC0415 - keeps --help light

    if model == DEMO:
        raise click.UsageError("--tune needs a real model: the demo model is too small to tell. Name one with --model")
    if settings.threads or settings.threads_batch:
        raise click.UsageError("--tune finds the number of threads: leave out --threads and SQALE_EDGE_THREADS*")
    tuning = Bench(model, dataclasses.replace(settings, n_ctx=_TUNING_N_CTX))
    found: dict[str, Any] = {}

    def work() -> Iterator[dict[str, Any]]:
        from sqale_edge.llama.threads import allowed_cpus, physical_cores  # noqa: PLC0415
        from sqale_edge.llama.tuning import write_tuning  # noqa: PLC0415

        with tuning.load(n_ctx=_TUNING_N_CTX, n_sequences=2, n_draft=0) as engine:
            tuned = tune(
                engine, candidate_threads(allowed_cpus(), physical_cores()), seconds=seconds, check=tuning.check
            )
            name = engine.info.name
        tuning.check()
        path = write_tuning(make_tuning(tuned, name))
        yield {**tuned.to_dict(), "model": name, "file": str(path)}

    click.echo(f"Loading, then measuring for about {seconds:.3g} s ...", err=True)
    with contextlib.closing(iterate_in_background(work, tuning.stop)) as events:
        for event in events:
            found = event
    if not found:
        raise Cancelled("the measurement was stopped")
    write_out(dump_json(found) if as_json else _show_tuned(found))


def _show_tuned(found: dict[str, Any]) -> str:
    lines = [f"{'threads':>8} {'decode':>14} {'prefill':>14}"]
    for n, one in found["decode"].items():
        rates = (f"{one['tok_per_s']:.4g} tok/s", f"{found['prefill'][n]['tok_per_s']:.4g} tok/s")
        lines.append(f"{n:>8} {rates[0]:>14} {rates[1]:>14}")
    best = f"Best: {found['threads']} to decode, {found['threads_batch']} to prefill"
    return printable("\n".join([*lines, f"{best}; used from now on, and kept in {found['file']}"]))
