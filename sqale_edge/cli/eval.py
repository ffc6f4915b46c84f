"""`sqale-edge eval`: how right are predictions?"""

from __future__ import annotations

import contextlib
import io
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sqale_edge import benchmarks
from sqale_edge._version import __version__
from sqale_edge.benchmarks.forms import QUESTION_FORMS
from sqale_edge.benchmarks.predictions import PREDICTION_FORMS
from sqale_edge.benchmarks.rules import RULES
from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.text import dump_json, printable, write_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqale_edge.benchmarks import Outcome, Predictions, Question

_FILE = click.Path(path_type=Path)
_UNFOLDED = 1_000  # characters


@click.command()
@click.argument("questions", type=_FILE)
@click.option("-p", "--predictions", type=_FILE, metavar="FILE", help="The SQL to judge.")
@click.option("--compare", nargs=2, type=_FILE, metavar="A B", help="Two files of predictions to judge side by side.")
@click.option(
    "--databases",
    type=_FILE,
    metavar="PATH",
    help="The folder with the databases, or the one database. [default: beside QUESTIONS]",
)
@click.option("--gold", type=_FILE, metavar="PATH", help="What is right, if QUESTIONS does not say so.")
@click.option("--difficulty", type=_FILE, metavar="FILE", help="BIRD's difficulties, if QUESTIONS lacks them.")
@click.option("--form", type=click.Choice(QUESTION_FORMS), help="Of QUESTIONS. [default: what the file looks like]")
@click.option(
    "--predictions-form",
    type=click.Choice(PREDICTION_FORMS),
    help="Of the predictions. [default: what the file looks like]",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    type=click.Choice(list(RULES)),
    help="Judge by this, too, besides bird, strict and the benchmark's own rule.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds for each SQL statement.",
)
@click.option("--sample", "n_sample", type=click.IntRange(1), metavar="N", help="Take N questions only.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which N: the same ones for the same seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with each question's outcome.")
def eval(  # noqa: A001 - the command's name
    questions: Path,
    *,
    predictions: Path | None,
    compare: tuple[Path, Path] | None,
    databases: Path | None,
    gold: Path | None,
    difficulty: Path | None,
    form: str | None,
    predictions_form: str | None,
    rules: tuple[str, ...],
    timeout: float,
    n_sample: int | None,
    seed: int,
    as_json: bool,
) -> int:
    """Judge predicted SQL by what it gives on the databases of QUESTIONS, a benchmark's file or JSON lines.

    \b
    Examples:
      sqale-edge eval questions.jsonl --predictions predictions.jsonl
      sqale-edge eval dev.json --predictions predict_dev.json --databases dev_databases --timeout 30 --json
    """
    if (predictions is None) == (compare is None):
        raise click.UsageError("give either --predictions FILE, or --compare A B")
    everything = benchmarks.read_questions(questions, form=form, databases=databases, gold=gold, difficulty=difficulty)
    files = [predictions] if predictions else list(compare or ())
    given = [benchmarks.read_predictions(file, everything, form=predictions_form) for file in files]
    chosen = benchmarks.sample(everything, n_sample, seed) if n_sample else everything
    all_rules = benchmarks.choose_rules(chosen[0].form, rules)
    outcomes = _score(chosen, given, all_rules, timeout)
    settings = {"timeout_s": timeout, "sample": n_sample, "seed": seed if n_sample else None}
    about = {"questions": str(questions), "form": chosen[0].form, "settings": settings, **_VERSIONS}
    documents = [
        {**about, "file": str(file), "file_form": one.form, "n_unknown": len(one.unknown)}
        | benchmarks.summarize(its_outcomes, all_rules)
        for file, one, its_outcomes in zip(files, given, outcomes, strict=True)
    ]
    pair: dict[str, Any] = {}
    if compare:
        pair = {
            "a": documents[0],
            "b": documents[1],
            "mcnemar": benchmarks.compare(outcomes[0], outcomes[1], all_rules),
        }
    if as_json:
        write_out(dump_json(pair or documents[0], indent=2))
    else:
        parts = [part for document in documents for part in _show(document, all_rules)]
        write_out("\n\n".join([*parts, *([_show_test(pair["mcnemar"])] if pair else [])]))
    return _exit_code(documents[0], databases)


_VERSIONS = {"sqale_edge": __version__, "sqlite": sqlite3.sqlite_version}


def _score(
    questions: Sequence[Question], given: Sequence[Predictions], rules: Sequence[str], timeout_s: float
) -> list[tuple[Outcome, ...]]:
    """The outcomes of each file of predictions, with a progress bar where stderr is a terminal."""
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    def work() -> Iterator[tuple[Outcome, ...]]:
        sql = [predictions.sql for predictions in given]
        return benchmarks.score(questions, sql, rules, timeout_s=timeout_s, should_stop=lambda: is_stopped)

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outcomes = []
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        contextlib.closing(iterate_in_background(work, stop)) as found,
    ):
        task = bar.add_task("questions", total=len(questions))
        for outcome in found:
            outcomes.append(outcome)
            bar.advance(task)
    return list(zip(*outcomes, strict=True))


def _show(document: dict[str, Any], rules: Sequence[str]) -> list[str]:
    """The report of one file of predictions for a person."""
    unscorable = {state: n for state, n in document["gold"].items() if state != "scorable"}
    lines = [f"{document['file']}: {document['n_scorable']} of {document['n']} questions can be scored"]
    if unscorable:
        lines.append(f"  not: {_list_counts(unscorable)}")
    lines.append(f"  predictions: {_list_counts(document['predictions']) or 'none'}")
    if document["n_unknown"]:
        lines.append(f"  {document['n_unknown']} predictions are for no question here")
    table = _make_table("rule", "right", "accuracy", "95 % interval", "of all")
    for rule in rules:
        rate = document[rule]
        low, high = rate["interval"]
        table.add_row(
            rule,
            str(rate["n_right"]),
            _percent(rate["accuracy"]),
            f"{low:.1%} to {high:.1%}",
            _percent(rate["accuracy_of_all"]),
        )
    parts = ["\n".join(map(printable, lines)), _render(table)]
    for key, title in (("by_difficulty", "difficulty"), ("by_n_tables", "tables")):
        if len(document[key]) > 1:
            table = _make_table(title, "n", *rules)
            for name, counts in document[key].items():
                table.add_row(Text(printable(name)), str(counts["n"]), *(_percent(counts[rule]) for rule in rules))
            parts.append(_render(table))
    parts += [
        f"{rule}: reliability " + ", ".join(f"RS({name}) {value:.1%}" for name, value in scores.items())
        for rule in rules
        if (scores := document[rule].get("reliability"))
    ]
    return parts


def _show_test(tests: dict[str, dict[str, Any]]) -> str:
    table = _make_table("rule", "both right", "only A", "only B", "neither", "McNemar's p")
    for rule, test in tests.items():
        counts = [str(test[name]) for name in ("both", "only_a", "only_b", "neither")]
        table.add_row(rule, *counts, f"{test['p']:.4f}")
    return _render(table)


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _make_table(first: str, *others: str) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _render(table: Table) -> str:
    console = Console(file=io.StringIO(), width=_UNFOLDED, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined] # a StringIO


def _exit_code(document: dict[str, Any], databases: Path | None) -> int:
    """3, with the reason, if not one question can be scored."""
    if document["n_scorable"]:
        return 0
    reason = f"none of the {document['n']} questions can be scored: {_list_counts(document['gold'])}"
    detail = next((outcome["detail"] for outcome in document["outcomes"] if outcome["detail"]), "")
    fix = (
        " Name the folder of the databases with --databases."
        if "no_database" in document["gold"] and not databases
        else ""
    )
    click.echo(printable(f"No answer: {reason}{f'; {detail}' if detail else ''}.{fix}"), err=True)
    return EXIT_NO_ANSWER
