"""`sqale-edge drift`: how far are quantized files from what they were made of, and llama.cpp from other engines?"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import MODEL, PATH, SEED, databases_option, engine_options, join_options
from sqale_edge.cli.session import Session
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.errors import BenchmarkError, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqale_edge.benchmarks import Question
    from sqale_edge.settings import EngineSettings, GpuLayers


@click.group()
def drift() -> None:
    """Measure what quantization costs, token by token, on real episodes; and how far engines are from each other.

    \b
    Examples:
      sqale-edge drift run CHECKPOINT questions.jsonl --folder drift --vllm vllm-env/bin/python
      sqale-edge drift record questions.jsonl --model bf16.gguf -o logs.jsonl
      sqale-edge drift measure logs.jsonl bf16.gguf q8_0.gguf q4_k_m.gguf
    """


# Which questions are asked.
_question_options = join_options(
    databases_option,
    click.option("--sample", "n_sample", type=click.IntRange(1), metavar="N", help="Ask N of them, by chance."),
    click.option("--seed", type=SEED, default=0, show_default=True, help="Of every episode."),
)
# Where figures go.
_output_options = join_options(
    click.option(
        "-o",
        "--output",
        type=PATH,
        metavar="FILE",
        default=Path("drift.jsonl"),
        show_default=True,
        help="Add the figures to FILE, as lines of JSON; what is in it is not measured again.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the documents as JSON lines, not tables."),
)
_plot_option = click.option(
    "--plot", type=PATH, metavar="FILE", help="Draw the figures into FILE, as PNG; needs matplotlib."
)
_tokens_option = click.option(
    "--tokens",
    "n_tokens",
    type=click.IntRange(2),
    metavar="N",
    help="Measure the first logs that have no more than N tokens together. [default: all]",
)


@drift.command()
@click.argument("checkpoint", type=PATH)
@click.argument("questions", type=PATH)
@click.option(
    "--folder",
    type=PATH,
    default=Path("drift"),
    show_default=True,
    help="For files, logs and reference outputs; what is in it is used again.",
)
@click.option("-q", "--quant", "quants", multiple=True, metavar="TYPE", help="Also this file type; repeat.")
@click.option("--add", "models", multiple=True, type=PATH, metavar="FILE", help="Also this GGUF file of it; repeat.")
@click.option("--vllm", metavar="PYTHON", help="An interpreter that has vLLM, for its reference outputs.")
@click.option("--transformers", metavar="PYTHON", help="One that has transformers and torch, for those in FP32.")
@_tokens_option
@_question_options
@_output_options
@_plot_option
@engine_options
def run(
    checkpoint: Path,
    questions: Path,
    *,
    folder: Path,
    quants: tuple[str, ...],
    models: tuple[Path, ...],
    vllm: str | None,
    transformers: str | None,
    n_tokens: int | None,
    databases: Path | None,
    n_sample: int | None,
    seed: int,
    output: Path,
    plot: Path | None,
    as_json: bool,
    gpu_layers: GpuLayers | None,
    threads: int | None,
) -> None:
    """Everything at once: make the files of CHECKPOINT, ask QUESTIONS, compute references, measure, compare episodes.

    CHECKPOINT is a Hugging Face folder; or a GGUF file that is not quantized, of which there are no references.
    Stopped at any time, the same command goes on.

    \b
    Example:
      sqale-edge drift run qwen3.5-2b-grpo-sqale dev.json --sample 50 --vllm vllm-env/bin/python
    """
    from sqale_edge.benchmarks.drift import QUANTS, DriftPlan, DriftRun  # noqa: PLC0415 - keeps --help light

    everything, chosen = _read_questions(questions, databases, n_sample, seed)
    pythons = {name: python for name, python in (("vllm", vllm), ("transformers", transformers)) if python}
    plan = DriftPlan(
        checkpoint=checkpoint,
        questions=everything,
        chosen=chosen,
        folder=folder,
        output=output,
        quants=quants or QUANTS,
        models=models,
        pythons=pythons,
        n_tokens=n_tokens,
        settings=_make_settings(gpu_layers, threads),
        seed=seed,
    )
    measurement = DriftRun(plan)
    documents = _show_steps(measurement.steps, measurement.stop)
    _show(documents, output, plot, as_json=as_json)


@drift.command()
@click.argument("questions", type=PATH)
@click.option("-m", "--model", type=MODEL, required=True, help="A name in the store, a GGUF file, or demo.")
@click.option("-o", "--output", type=PATH, required=True, metavar="FILE", help="The file of logs, which is added to.")
@_question_options
@engine_options
def record(
    questions: Path,
    *,
    model: str,
    output: Path,
    databases: Path | None,
    n_sample: int | None,
    seed: int,
    gpu_layers: GpuLayers | None,
    threads: int | None,
) -> None:
    """Ask QUESTIONS, as eval does, and keep each episode's tokens and what they are. Stopped, it goes on.

    \b
    Example:
      sqale-edge drift record dev.json --databases dev_databases --sample 50 --model sqale -o logs.jsonl
    """
    from sqale_edge.benchmarks.drift import LogsFile, describe_recording, record_logs  # noqa: PLC0415
    from sqale_edge.models import find_model  # noqa: PLC0415 - keeps --help light
    from sqale_edge.settings import EpisodeLimits  # noqa: PLC0415

    everything, chosen = _read_questions(questions, databases, n_sample, seed)
    settings = _make_settings(gpu_layers, threads)
    path = find_model(model).path
    session = Session(model, settings, EpisodeLimits.from_environment(), no_prefix_cache=False)

    def is_stopped() -> bool:
        return session.is_stopped

    def work() -> Iterator[str]:
        yield f"loading {path.name}"
        with session.load_agent() as agent:
            head = describe_recording(agent, path, everything, settings=settings, seed=seed, should_stop=is_stopped)
            with LogsFile(output, head) as file:
                for question, log in record_logs(agent, chosen, file, seed=seed, should_stop=is_stopped):
                    what = f"{len(log.tokens)} tokens" if log else "not asked: too long, or no database"
                    yield f"{len(file.ids)} of {len(chosen)}: {question.id}, {what}"

    _show_steps(work, session.stop)


@drift.command()
@click.argument("logs", type=PATH)
@click.argument("base", type=PATH)
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "--reference", "references", multiple=True, type=PATH, metavar="FOLDER", help="Reference outputs; repeat."
)
@click.option(
    "--batch",
    "n_batch",
    type=click.IntRange(2, 4096),
    default=64,
    show_default=True,
    help="Positions that are evaluated at a time, of every file: it moves the last bits.",
)
@_tokens_option
@_output_options
@_plot_option
@engine_options
def measure(
    logs: Path,
    base: Path,
    files: tuple[Path, ...],
    *,
    references: tuple[Path, ...],
    n_batch: int,
    n_tokens: int | None,
    output: Path,
    plot: Path | None,
    as_json: bool,
    gpu_layers: GpuLayers | None,
    threads: int | None,
) -> None:
    """Hold GGUF FILES against BASE, which is not quantized, and all of them against reference outputs, on LOGS.

    \b
    Example:
      sqale-edge drift measure logs.jsonl bf16.gguf q8_0.gguf q4_k_m.gguf --reference vllm --reference fp32
    """
    from sqale_edge.benchmarks.drift import DriftBench  # noqa: PLC0415 - keeps --help light

    bench = DriftBench(
        logs,
        base,
        files,
        references,
        n_tokens=n_tokens,
        settings=_make_settings(gpu_layers, threads),
        n_batch=n_batch,
    )
    _show(_show_steps(lambda: bench.run_into(output), bench.stop), output, plot, as_json=as_json)


@drift.command()
@click.argument("one", type=PATH)
@click.argument("other", type=PATH)
@_output_options
def part(one: Path, other: Path, *, output: Path, as_json: bool) -> None:
    """Say at which turn episodes part: two files of logs, recorded with two models, the same questions and one seed.

    \b
    Example:
      sqale-edge drift part bf16.logs.jsonl q4_k_m.logs.jsonl
    """
    from sqale_edge.benchmarks.drift import compare_logs, read_logs  # noqa: PLC0415 - keeps --help light
    from sqale_edge.benchmarks.speed.results import append_document  # noqa: PLC0415

    document = compare_logs(read_logs(one), read_logs(other))
    append_document(document, output)
    _show([document], output, None, as_json=as_json)


@drift.command()
@click.argument("results", type=PATH, default=Path("benchmarks/results/drift.jsonl"))
@_plot_option
def show(results: Path, *, plot: Path | None) -> None:
    """Show the newest figures of a file of RESULTS as tables.

    \b
    Example:
      sqale-edge drift show drift.jsonl --plot drift.png
    """
    from sqale_edge.benchmarks.files import BROKEN_JSON, read_lines  # noqa: PLC0415 - keeps --help light

    try:
        documents = [json.loads(line) for line in read_lines(results)]
        _show(documents, None, plot, as_json=False)
    except BROKEN_JSON as error:
        raise BenchmarkError(
            f"{str(results)!r} is no file of drift results", path=results, hint="make one with sqale-edge drift run"
        ) from error


def _read_questions(
    path: Path, databases: Path | None, n_sample: int | None, seed: int
) -> tuple[list[Question], list[Question]]:
    from sqale_edge import benchmarks  # noqa: PLC0415 - keeps --help light

    everything = benchmarks.read_questions(path, databases=databases)
    return everything, benchmarks.sample(everything, n_sample, seed) if n_sample else everything


def _make_settings(gpu_layers: GpuLayers | None, threads: int | None) -> EngineSettings:
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415 - keeps --help light

    return EngineSettings.from_environment(gpu_layers=gpu_layers, threads=threads)


def _show_steps(work: Callable[[], Iterator[Any]], stop: Callable[[], None]) -> list[dict[str, Any]]:
    """Do the work: its lines go to stderr, over each other where that is a terminal; its documents are returned."""
    documents = []
    is_terminal = sys.stderr.isatty()
    try:
        with contextlib.closing(iterate_in_background(work, stop)) as steps:
            for step in steps:
                if not isinstance(step, str):
                    documents.append(step)
                elif is_terminal:
                    click.echo(f"\r\x1b[K{printable(step)[:78]}", err=True, nl=False)
                else:
                    click.echo(printable(step), err=True)
    except Cancelled:
        click.echo("What is done is kept; the same command goes on from there.", err=True)
        raise
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
    return documents


def _show(documents: list[dict[str, Any]], output: Path | None, plot: Path | None, *, as_json: bool) -> None:
    from sqale_edge.benchmarks.drift import draw_plot, write_markdown  # noqa: PLC0415 - keeps --help light

    if output:
        click.echo(printable(f"The figures are in {output}."), err=True)
    if plot and not draw_plot(documents, plot):
        click.echo("No plot: matplotlib is not installed (pip install 'sqale-edge[bench]').", err=True)
    write_out("\n".join(map(dump_json, documents)) if as_json else write_markdown(documents).rstrip("\n"))
