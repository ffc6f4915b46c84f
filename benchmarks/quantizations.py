"""Recipes and file types side by side: size, speed, drift from the source, and accuracy.

    python -P -m sqale_edge.benchmarks.quantizations model-BF16.gguf --folder made --imatrix imatrix.gguf

makes a file of every recipe and of the usual file types, measures each, and prints a table. What is done is kept in
`FOLDER/quantizations.jsonl`, one line for each file and thing that was measured, and never done again: after Ctrl-C the
same command goes on. `--logs` adds the drift on token logs that `sqale-edge drift record` wrote. `--questions` adds
execution accuracy: each model is asked them as `sqale-edge eval` does it.

Speed is measured in rounds, in which the files take turns, so that a change of the machine's pace meets them all; the
table has the medians. `sqale-edge bench` says more about one file.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError, SqaleEdgeError
from sqale_edge.new_files import partial_name, put_in_place, write_to_disk

from .asking import ask_questions, describe_run
from .drift import DriftBench
from .files import read_bytes
from .line_file import LineFile
from .questions import read_questions
from .results_file import ResultsFile
from .rules import choose_rules
from .scoring import score
from .speed import Bench, Plan
from .speed.surroundings import describe_machine, describe_versions, now
from .summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqale_edge.convert.imatrix import Imatrix
    from sqale_edge.convert.outputs import Output

FORM = "sqale-edge quantizations 1"
TYPES = ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0")
N_ROUNDS = 3
SPEEDS = {  # column, and the figure and contender of the benchmark of speed
    "prefill_tok_per_s": ("prefill at 0", "prefill"),
    "decode_tok_per_s": ("decode at 0", "decode_grammar"),
}
_RESULTS_NAME = "quantizations.jsonl"
_N_CTX = 4096
_MOST_S = 3600.0  # for a round of a file; what is done in it is fixed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is made and measured.

    Attributes:
        source: A GGUF file that is not quantized; it is measured, too.
        folder: Where the files and results go; made if it is not there.
        quants, recipes: File types, and names or files of recipes.
        imatrix: For every file whose recipe can use one; recipes that need one are left out without it.
        questions: A file of questions; None measures no accuracy.
        databases: Their folder, as for `eval`.
        n_questions: The first so many of them; None is all.
        speed: Measure it, in rounds; about 30 s for each file and round of a 2B model.
        threads: For everything; None is the default of each.
        logs: Token logs on which each file is held against the source; None measures no drift.
    """

    source: Path
    folder: Path
    quants: tuple[str, ...] = TYPES
    recipes: tuple[str | Path, ...] = ()
    imatrix: Path | None = None
    questions: Path | None = None
    databases: Path | None = None
    n_questions: int | None = None
    speed: bool = True
    threads: int | None = None
    logs: Path | None = None


class _Records(LineFile):
    """The file of what is done. Close it, or use it in a `with` statement.

    Attributes:
        head: What the first start said of the source, the machine and the versions.
        records: One for each file and thing that was measured.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        content = read_bytes(path) if path.exists() else b""
        n_whole = content.rfind(b"\n") + 1
        try:
            self.head, *self.records = [json.loads(line) for line in content[:n_whole].splitlines()] or [head]
            same = {key: self.head[key] for key in ("form", "source_sha256", "imatrix_sha256")}
        except (ValueError, LookupError, TypeError) as error:
            raise BenchmarkError(f"{str(path)!r} is damaged", path=path, hint="take another folder") from error
        if same != {key: head[key] for key in same}:
            raise BenchmarkError(
                f"{str(path)!r} is about another model or importance matrix", path=path, hint="take another folder"
            )
        super().__init__(path, n_whole, hint="what it has is kept, and the same command goes on")
        if not n_whole:
            self.write(head)

    def find(self, label: str, part: str, key: str) -> dict[str, Any] | None:
        """What was measured of a file that was made in the same way."""
        found = (one for one in self.records if (one["label"], one["part"], one["key"]) == (label, part, key))
        return next(found, None)

    def add(self, label: str, part: str, key: str, values: dict[str, Any]) -> None:
        """Keep `values`."""
        record = {"label": label, "part": part, "key": key, "at": now(), "values": values}
        self.write(record)
        self.records.append(record)


def compare_quantizations(comparison: Comparison) -> Iterator[str | dict[str, Any]]:
    """Yield a line for each thing that is being done, and the document with everything last.

    Raises:
        ConversionError: The source, a recipe or the importance matrix cannot be used.
        BenchmarkError: The folder holds results of something else, or questions cannot be read.
        Else what loading and asking a model raise.
    """
    from sqale_edge.convert.imatrix import Imatrix  # noqa: PLC0415 - not a light import

    plan = comparison
    matrix = Imatrix.read(plan.imatrix) if plan.imatrix else None
    outputs, left_out = _list_outputs(plan, matrix)
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkError(f"{str(plan.folder)!r} cannot be used: {error.strerror}", path=plan.folder) from error
    head = {
        "form": FORM,
        "source": plan.source.name,
        "source_sha256": _digest(plan.source),
        "imatrix_sha256": matrix.sha256 if matrix else None,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
    yield from (f"{label}: left out: {why}" for label, why in left_out.items())
    rows: dict[str, dict[str, Any]] = {}
    with _Records(plan.folder / _RESULTS_NAME, head) as records:
        # Part by part, and not file by file: in a round of speed the files take turns.
        for (part, measure), output in itertools.product(_list_parts(plan).items(), outputs):
            path = plan.source if output is None else plan.folder / f"{plan.source.stem}-{output.label}.gguf"
            label = "source" if output is None else output.label
            key = output.recipe.digest if output and output.recipe else label
            found = records.find(label, part, key)
            # A file that is gone, or that another recipe of this name has replaced, is made again.
            is_lost = part == "file" and found and not (path.exists() and _digest(path) == found["values"]["sha256"])
            if found is None or is_lost:
                yield f"{label}: {part}"
                records.add(label, part, key, measure(output, path))
                found = records.records[-1]
            _add_to(rows.setdefault(label, {"label": label, "file": path.name}), found["values"])
        yield records.head | {"rows": [_summarize(row) for row in rows.values()], "left_out": left_out}


def _add_to(row: dict[str, Any], values: dict[str, Any]) -> None:
    """Put `values` into a row; what is measured in rounds becomes a list."""
    for name, value in values.items():
        row[name] = [*row.get(name, []), value] if name in SPEEDS else value


def _summarize(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the medians of its rounds, and the rounds beside them."""
    rounds = {name: values for name, values in row.items() if name in SPEEDS}
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return row | medians | ({"speed_rounds": rounds} if rounds else {})


def _list_outputs(plan: Comparison, matrix: Imatrix | None) -> tuple[list[Output | None], dict[str, str]]:
    """The files to make, the source (None) first, ready to be quantized; and what is left out, with the reasons."""
    from sqale_edge.convert.gguf_file import GgufFile  # noqa: PLC0415 - not a light import
    from sqale_edge.convert.outputs import complete_outputs, list_outputs  # noqa: PLC0415
    from sqale_edge.convert.recipe import list_recipes  # noqa: PLC0415

    shapes = {name: tensor.shape for name, tensor in GgufFile.read(plan.source).tensors.items()}
    wanted = list_outputs(plan.quants, plan.recipes or list_recipes())
    # The stock types are what they are without a matrix.
    outputs: list[Output | None] = [None]
    left_out = {}
    for output in wanted:
        use = output.recipe.imatrix if output.recipe else "unused"
        if use == "required" and not matrix:
            left_out[output.label] = "it needs an importance matrix"
            continue
        outputs += complete_outputs([output], shapes, matrix if use != "unused" else None)
    return outputs, left_out


def _list_parts(plan: Comparison) -> dict[str, Callable[[Output | None, Path], dict[str, Any]]]:
    """What is measured of each file, by its name, in this order."""
    parts: dict[str, Callable[[Output | None, Path], dict[str, Any]]] = {"file": functools.partial(_make_file, plan)}
    if plan.speed:
        for number in range(1, N_ROUNDS + 1):
            parts[f"speed, round {number} of {N_ROUNDS}"] = lambda _, path: _measure_speed(plan, path)
    if plan.questions:
        what = f"{plan.n_questions or 'all'} questions of {plan.questions.name}, {_digest(plan.questions)[:12]}"
        parts[f"accuracy, {what}"] = lambda _, path: _measure_accuracy(plan, path)
    if plan.logs:
        parts[f"drift on {plan.logs.name}, {_digest(plan.logs)[:12]}"] = functools.partial(_measure_drift, plan)
    return parts


def _make_file(plan: Comparison, output: Output | None, path: Path) -> dict[str, Any]:
    """Quantize, unless it is the source; what the file is."""
    from sqale_edge.convert import verify_file  # noqa: PLC0415 - not a light import
    from sqale_edge.convert.gguf_file import GgufFile  # noqa: PLC0415
    from sqale_edge.convert.quantizing import quantize  # noqa: PLC0415

    values: dict[str, Any] = {}
    if output:
        with partial_name(path) as partial:
            start = time.perf_counter()
            quantize(plan.source, partial, output, threads=plan.threads)
            values["quantize_s"] = time.perf_counter() - start
            verify_file(partial)
            write_to_disk(partial)
            put_in_place(partial, path, overwrite=True)
    tensors = GgufFile.read(path).tensors.values()
    n_weights = sum(math.prod(tensor.shape) for tensor in tensors)
    return values | {
        "sha256": _digest(path),
        "file_bytes": path.stat().st_size,
        "bits_per_weight": 8 * sum(tensor.n_bytes for tensor in tensors) / n_weights,
    }


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BenchmarkError(f"{str(path)!r} cannot be read: {error.strerror}", path=path) from error


def _measure_speed(plan: Comparison, path: Path) -> dict[str, Any]:
    """Tokens a second behind no history: prefilled in batches, and decoded one by one with the grammar."""
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    settings = EngineSettings.from_environment(threads=plan.threads, n_ctx=_N_CTX)
    speed = Plan(seconds=_MOST_S, n_rounds=1, depths=(0,), n_prefill=256, n_decode=24, with_peers=False)
    *_, document = Bench(path, settings, speed, only=("decoding",)).run()
    assert isinstance(document, dict), "the last thing is the document"
    figures = {figure["name"]: figure for figure in document["measurements"]["decoding"]["figures"]}
    return {
        column: figures[name]["contenders"][contender]["tok_per_s"]
        for column, (name, contender) in SPEEDS.items()
        if name in figures
    }


def _measure_accuracy(plan: Comparison, path: Path) -> dict[str, Any]:
    """Execution accuracy by the strict rule; answers are kept beside the file, and none is asked for twice."""
    from sqale_edge.agent import Agent  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    assert plan.questions, "they are given"
    everything = read_questions(plan.questions, databases=plan.databases)
    chosen = everything[: plan.n_questions]
    settings = EngineSettings.from_environment(threads=plan.threads)
    with Agent.load(path, settings=settings) as agent:
        run = describe_run(agent, everything, model=str(path), settings=settings, seed=0)
        with ResultsFile(plan.folder / f"{path.stem}.results.jsonl", run) as results:
            for _ in ask_questions(agent, chosen, results):
                pass
            answers = {key: answer.sql for key, answer in results.answers.items()}
    rules = choose_rules(everything[0].form)
    summary = summarize([outcome for (outcome,) in score(chosen, [answers], rules)], rules)
    strict = summary["strict"]
    return {
        "n_scorable": summary["n_scorable"],
        "accuracy": strict["accuracy"],
        "accuracy_interval": strict["interval"],
    }


def _measure_drift(plan: Comparison, output: Output | None, path: Path) -> dict[str, Any]:
    """Mean KL divergence from the source in nats, of the tokens that a model writes and of all; the same top token."""
    if output is None:  # it is the source
        return {}
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    assert plan.logs, "they are given"
    settings = EngineSettings.from_environment(threads=plan.threads)
    *_, document = DriftBench(plan.logs, plan.source, [path], settings=settings).run()
    assert isinstance(document, dict), "the last thing is the document of the last file"
    (against,) = document["against"].values()
    return {
        "kl_written": against["written"]["kl"]["mean"],
        "kl_all": against["all"]["kl"]["mean"],
        "same_top_token": against["written"]["top1_agreement"],
    }


# Columns: key, head, and how a value is written.
_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("file_bytes", "MB", lambda value: f"{value / 1e6:,.1f}"),
    ("bits_per_weight", "bits a weight", lambda value: f"{value:.2f}"),
    ("quantize_s", "quantized in s", lambda value: f"{value:.1f}"),
    ("prefill_tok_per_s", "prefill tok/s", lambda value: f"{value:,.0f}"),
    ("decode_tok_per_s", "decode tok/s", lambda value: f"{value:,.1f}"),
    ("kl_written", "KL of written tokens", lambda value: f"{value:.2g}"),
    ("kl_all", "KL of all", lambda value: f"{value:.2g}"),
    ("same_top_token", "same top token", lambda value: f"{value:.2%}"),
    ("accuracy", "accuracy", lambda value: f"{value:.1%}"),
    ("accuracy_interval", "95 %", lambda value: f"{value[0]:.1%} to {value[1]:.1%}"),
)


def write_table(document: dict[str, Any]) -> str:
    """The document's rows as a Markdown table; columns that no file has are left out."""
    rows: Sequence[dict[str, Any]] = document["rows"]
    shown = [column for column in _COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    head = f"| | {' | '.join(name for _, name, _ in shown)} |\n|---|{'---|' * len(shown)}"
    lines = []
    for row in rows:
        cells = [show(row[key]) if row.get(key) is not None else "" for key, _, show in shown]
        lines.append(f"| {row['label']} | {' | '.join(cells)} |")
    matrix = document["imatrix_sha256"]
    about = [f"Source: {document['source']}, SHA-256 {document['source_sha256']}."]
    about += [f"Importance matrix: SHA-256 {matrix}."] if matrix else []
    about += [f"Left out: {label}: {why}." for label, why in document["left_out"].items()]
    machine, versions = document["machine"], document["versions"]
    about.append(f"{machine['cpu']}, {machine['allowed_cpus']} CPUs; sqale-edge {versions['sqale_edge']}.")
    return "\n".join([head, *lines, "", " ".join(about)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: lines of progress on stderr, the table on stdout."""
    parser = argparse.ArgumentParser(
        prog="python -P -m sqale_edge.benchmarks.quantizations",
        description="Make files of every recipe and measure them; what is done is kept, and not done again.",
    )
    parser.add_argument("source", type=Path, help="a GGUF file that is not quantized")
    parser.add_argument("--folder", type=Path, required=True, help="for the files and the results")
    parser.add_argument("--quant", action="append", metavar="TYPE", help=f"as often as wanted; else {', '.join(TYPES)}")
    parser.add_argument("--recipe", action="append", metavar="NAME|FILE", help="as often as wanted; else all there are")
    parser.add_argument("--imatrix", type=Path, metavar="FILE", help="an importance matrix of the model")
    parser.add_argument("--logs", type=Path, metavar="FILE", help="token logs: measure drift, too")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="measure execution accuracy, too")
    parser.add_argument("--databases", type=Path, metavar="FOLDER", help="of the questions")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N questions")
    parser.add_argument("--no-speed", action="store_true", help="measure no speed")
    parser.add_argument("--threads", type=int, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    given = parser.parse_args(arguments)
    comparison = Comparison(
        source=given.source,
        folder=given.folder,
        quants=tuple(given.quant or TYPES),
        recipes=tuple(given.recipe or ()),
        imatrix=given.imatrix,
        questions=given.questions,
        databases=given.databases,
        n_questions=given.limit,
        speed=not given.no_speed,
        threads=given.threads,
        logs=given.logs,
    )
    try:
        for step in compare_quantizations(comparison):
            if isinstance(step, str):
                sys.stderr.write(f"{step}\n")
            else:
                sys.stdout.write((json.dumps(step, indent=2) if given.json else write_table(step)) + "\n")
    except SqaleEdgeError as error:
        sys.stderr.write(f"Error: {error}. {f'Fix: {error.hint}.' if error.hint else ''}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Cancelled: what is done is kept, and the same command goes on.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
