"""`sqale-edge imatrix`: an importance matrix out of transcripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sqale_edge.cli.options import MODEL, PATH
from sqale_edge.cli.steps import run_counted
from sqale_edge.cli.text import dump_json, printable, write_out

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.models import ModelFile


@click.command()
@click.argument("transcripts", nargs=-1, required=True, type=PATH)
@click.option(
    "-m",
    "--model",
    type=MODEL,
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
    from sqale_edge.convert.imatrix import check_output, make_imatrix  # noqa: PLC0415 - keeps --help light
    from sqale_edge.llama.activations import ActivationRun  # noqa: PLC0415
    from sqale_edge.models import find_model  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    if output.suffix not in (".gguf", ".dat"):
        raise click.UsageError(printable(f"the output {str(output)!r} ends neither in .gguf nor in .dat"))
    check_output(output, overwrite=overwrite)
    n_ctx, file = EngineSettings.from_environment().n_ctx, find_model(model)
    logs = _read_logs(transcripts, file, n_ctx, max_tokens)
    n_tokens = sum(map(len, logs))
    run = ActivationRun(file.path, n_ctx=n_ctx, threads=threads)
    run_counted("tokens", lambda: run.run(logs), run.stop, n_tokens)
    matrix = make_imatrix(run.sums.squares, run.sums.counts, [path.name for path in transcripts], len(logs))
    matrix.write(output, overwrite=overwrite)
    about = f"{len(matrix.entries)} matrices, {n_tokens:,} tokens in {len(logs)} transcripts"
    click.echo(printable(f"{output}: {about}"), err=True)
    report = {
        "path": str(output),
        "n_matrices": len(matrix.entries),
        "n_tokens": n_tokens,
        "n_transcripts": len(logs),
    }
    write_out(dump_json(report, indent=2) if as_json else str(output))


def _read_logs(transcripts: tuple[Path, ...], file: ModelFile, n_ctx: int, max_tokens: int | None) -> list[list[int]]:
    """The token logs, each cut to the context, and together to `max_tokens`."""
    from sqale_edge.llama.model import LlamaModel  # noqa: PLC0415 - keeps --help light
    from sqale_edge.transcripts import read_transcripts  # noqa: PLC0415

    logs, n_left = [], max_tokens or sys.maxsize
    with LlamaModel.without_weights(file.path) as model:
        info = file.complete(model.describe(n_ctx))
        found = (log for path in transcripts for log in read_transcripts(path, info, model.vocabulary.tokenize))
        for log in found:
            if n_left <= 0:
                break
            logs.append(log[: min(n_ctx, n_left)])
            n_left -= len(logs[-1])
    if not any(logs):
        raise click.UsageError("the transcripts hold no episode that was asked, and no text")
    return logs
