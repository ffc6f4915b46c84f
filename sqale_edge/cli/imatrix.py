"""`sqale-edge imatrix`: an importance matrix out of transcripts."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import PATH
from sqale_edge.cli.text import dump_json, printable, write_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.convert.imatrix import Imatrix
    from sqale_edge.llama.activations import ActivationRun


@click.command()
@click.argument("transcripts", nargs=-1, required=True, type=PATH)
@click.option(
    "-m",
    "--model",
    required=True,
    envvar="SQALE_EDGE_MODEL",
    show_envvar=True,
    help="A name in the store, a GGUF file, or demo; best not quantized, of type BF16.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    metavar="FILE",
    help="A .gguf file, or a .dat file in llama.cpp's older form.",
)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Stop after N tokens. [default: all there are]")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@click.option("--threads", type=click.IntRange(1, 512), help="CPU threads. [default: all that this process may use]")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as one JSON document.")
def imatrix(
    transcripts: tuple[Path, ...],
    *,
    model: str,
    output: Path,
    max_tokens: int | None,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compute an importance matrix for `convert --imatrix` from TRANSCRIPTS, and print the path of its file.

    TRANSCRIPTS are results of `eval --output`, episodes of `ask --format json`, token logs, or plain text. The model
    reads them once, on the CPU. The file is one that llama.cpp's own tools take, too.

    \b
    Examples:
      sqale-edge imatrix results.jsonl -m sqale-bf16 -o imatrix.gguf
      sqale-edge convert qwen3.5-2b-grpo-sqale -o fast.gguf --recipe q4-fast --imatrix imatrix.gguf
    """
    from sqale_edge.convert.imatrix import check_output  # noqa: PLC0415 - keeps --help light
    from sqale_edge.llama.activations import ActivationRun  # noqa: PLC0415
    from sqale_edge.models import find_model  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    if output.suffix not in (".gguf", ".dat"):
        raise click.UsageError(printable(f"the output {str(output)!r} ends neither in .gguf nor in .dat"))
    check_output(output, overwrite=overwrite)
    n_ctx = EngineSettings.from_environment().n_ctx
    logs = _read_logs(transcripts, model, n_ctx, max_tokens)
    run = ActivationRun(find_model(model).path, n_ctx=n_ctx, threads=threads)
    _evaluate(run, logs)
    matrix = _write(run, logs, transcripts, output, overwrite=overwrite)
    n_tokens = sum(map(len, logs))
    about = f"{len(matrix.entries)} matrices, {n_tokens:,} tokens in {len(logs)} transcripts"
    click.echo(printable(f"{output}: {about}"), err=True)
    report: dict[str, Any] = {"path": str(output), "n_matrices": len(matrix.entries), "n_tokens": n_tokens}
    write_out(dump_json(report | {"n_transcripts": len(logs)}, indent=2) if as_json else str(output))


def _read_logs(transcripts: tuple[Path, ...], model: str, n_ctx: int, max_tokens: int | None) -> list[list[int]]:
    """The token logs, each cut to the context, and together to `max_tokens`."""
    from sqale_edge.llama.model import LlamaModel  # noqa: PLC0415 - keeps --help light
    from sqale_edge.models import find_model  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415
    from sqale_edge.transcripts import read_transcripts  # noqa: PLC0415

    file = find_model(model)
    opened = LlamaModel(file.path, EngineSettings(gpu_layers="off"), only_vocabulary=True)
    try:
        info = file.complete(opened.describe(n_ctx))
        found = (log for path in transcripts for log in read_transcripts(path, info, opened.vocabulary.tokenize))
        logs, n_left = [], max_tokens or sys.maxsize
        for log in found:
            if n_left <= 0:
                break
            logs.append(log[: min(n_ctx, n_left)])
            n_left -= len(logs[-1])
    finally:
        opened.close()
    if not any(logs):
        raise click.UsageError("the transcripts hold no episode that was asked, and no text")
    return logs


def _evaluate(run: ActivationRun, logs: list[list[int]]) -> None:
    """Let the model read the logs, with a bar where stderr is a terminal."""

    def work() -> Iterator[int]:
        return run.run(logs)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar,
        contextlib.closing(iterate_in_background(work, run.stop)) as steps,
    ):
        task = bar.add_task("tokens", total=sum(map(len, logs)))
        for n_done in steps:
            bar.advance(task, n_done)


def _write(
    run: ActivationRun, logs: list[list[int]], transcripts: tuple[Path, ...], output: Path, *, overwrite: bool
) -> Imatrix:
    from sqale_edge.convert.imatrix import make_imatrix  # noqa: PLC0415 - keeps --help light

    matrix = make_imatrix(run.sums.squares, run.sums.counts, [path.name for path in transcripts], len(logs))
    matrix.write(output, overwrite=overwrite)
    return matrix
