"""`sqale-edge eval`: how right are predictions, or a model?"""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqale_edge import benchmarks
from sqale_edge._version import __version__
from sqale_edge.benchmarks.forms import QUESTION_FORMS
from sqale_edge.benchmarks.predictions import PREDICTION_FORMS
from sqale_edge.benchmarks.results_file import is_results_file
from sqale_edge.benchmarks.rules import RULES
from sqale_edge.benchmarks.submissions import submission_form
from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.eval_predictions import Target
from sqale_edge.cli.eval_text import list_counts, show_document, show_test
from sqale_edge.cli.eval_work import ask_model, score
from sqale_edge.cli.options import PATH, SECONDS, SEED, databases_option, load_options, remote_options
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.models import is_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqale_edge.benchmarks import Outcome, Question, Results
    from sqale_edge.settings import GpuLayers

_VERSIONS = {"sqale_edge": __version__, "sqlite": sqlite3.sqlite_version}


@click.command()
@click.argument("questions", type=PATH)
@click.option("-p", "--predictions", type=PATH, metavar="FILE", help="The SQL to judge, or a model's results.")
@click.option(
    "--compare", nargs=2, type=PATH, metavar="A B", help="Two files of predictions or results to judge side by side."
)
@click.option("-m", "--model", help="Ask this model: a name in the store, a GGUF file, demo, or a server, http://...")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="With --model: put the answers into FILE; what is in it is not asked again. [default: QUESTIONS.MODEL.jsonl, "
    "in the current folder]",
)
@databases_option
@click.option("--gold", type=PATH, metavar="PATH", help="What is right, if QUESTIONS does not say so.")
@click.option("--difficulty", type=PATH, metavar="FILE", help="BIRD's difficulties, if QUESTIONS lacks them.")
@click.option("--form", type=click.Choice(QUESTION_FORMS), help="Of QUESTIONS. [default: what the file looks like]")
@click.option(
    "--predictions-form",
    type=click.Choice(PREDICTION_FORMS),
    help="Of the predictions that are read or written. [default: what the file looks like; the benchmark's own]",
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
    type=SECONDS,
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds for each SQL statement.",
)
@click.option("--sample", "n_sample", type=click.IntRange(1), metavar="N", help="Take N questions by chance.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Take the first N questions.")
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="The same seed takes the same sample, and gives a model's same answers.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Questions that the model is asked at a time: faster, takes more memory. [default: 1]",
)
@click.option(
    "--votes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="K",
    help="Let the model answer each question K times, and take what most of its answers agree on.",
)
@load_options
@remote_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with each question's outcome.")
@click.option(
    "--report",
    type=PATH,
    metavar="FOLDER",
    help="Put a report there: report.html with drawings and what went wrong, report.md, report.json.",
)
@click.option(
    "--write-predictions",
    "write_to",
    type=PATH,
    metavar="FILE",
    help="With --model, or a model's results: write its SQL as the benchmark takes it as a submission.",
)
@click.option("--overwrite", is_flag=True, help="Replace a report, or a file of predictions, that exists.")
def eval(  # noqa: A001 - the command's name
    questions: Path,
    *,
    predictions: Path | None,
    compare: tuple[Path, Path] | None,
    model: str | None,
    output: Path | None,
    databases: Path | None,
    gold: Path | None,
    difficulty: Path | None,
    form: str | None,
    predictions_form: str | None,
    rules: tuple[str, ...],
    timeout: float,
    n_sample: int | None,
    limit: int | None,
    seed: int,
    parallel: int | None,
    votes: int,
    gpu_layers: GpuLayers | None,
    threads: int | None,
    no_prefix_cache: bool,
    tokenizer: str | None,
    as_json: bool,
    report: Path | None,
    write_to: Path | None,
    overwrite: bool,
) -> int:
    """Judge predicted SQL, or a model, by what it gives on the databases of QUESTIONS: a benchmark's file, JSON lines.

    \b
    Examples:
      sqale-edge eval questions.jsonl --predictions predictions.jsonl
      sqale-edge eval dev.json --predictions predict_dev.json --databases dev_databases --timeout 30 --json
      sqale-edge eval questions.jsonl --model model.gguf --sample 100 --output results.jsonl --report report
    """
    _check_usage((predictions, compare, model), (n_sample, limit), (votes, parallel), write_to)
    if report:
        benchmarks.check_folder(report, overwrite=overwrite)
    everything = benchmarks.read_questions(questions, form=form, databases=databases, gold=gold, difficulty=difficulty)
    chosen = benchmarks.sample(everything, n_sample, seed) if n_sample else everything[:limit]
    files = [predictions] if predictions else list(compare or ())
    if model:
        files = [output or Path(f"{questions.stem}.{_short_name(model)}.jsonl")]
    target = write_to and Target(write_to, predictions_form or submission_form(everything[0].form), overwrite)
    if target:
        target.check([questions, gold, difficulty, *files])
    if model:
        loading = {"n_sequences": votes if votes > 1 else parallel, "gpu_layers": gpu_layers, "threads": threads}
        ask_model(
            model,
            everything,
            chosen,
            files[0],
            seed=seed,
            n_votes=votes,
            loading=loading,
            no_prefix_cache=no_prefix_cache,
            tokenizer=tokenizer,
        )
    given = [_read(file, everything, predictions_form) for file in files]
    if target:
        target.write(everything, given[0].results)
    all_rules = benchmarks.choose_rules(chosen[0].form, rules)
    outcomes = score(chosen, [one.sql for one in given], all_rules, timeout)
    settings = {"timeout_s": timeout, "sample": n_sample, "limit": limit, "seed": seed if n_sample else None}
    about = {"questions": str(questions), "form": chosen[0].form, "settings": settings, **_VERSIONS}
    documents = [
        about | one.about | benchmarks.summarize(its_outcomes, all_rules) | one.analyze(its_outcomes, all_rules)
        for one, its_outcomes in zip(given, outcomes, strict=True)
    ]
    pair = _make_pair(documents, outcomes, all_rules)
    if report:
        judged = [
            benchmarks.Judged(document, its_outcomes, one.sql, one.results.answers if one.results else {})
            for document, its_outcomes, one in zip(documents, outcomes, given, strict=True)
        ]
        benchmarks.write_report(report, chosen, judged, all_rules, pair or documents[0], overwrite=overwrite)
    if as_json:
        write_out(dump_json(pair or documents[0], indent=2))
    else:
        parts = [part for document in documents for part in show_document(document, all_rules)]
        write_out("\n\n".join([*parts, *([show_test(pair["mcnemar"], pair["pairs"])] if pair else [])]))
    _note_unasked(documents)
    code = _exit_code(documents[0], databases)
    if report:
        click.echo(printable(f"The report is {str(report / 'report.html')!r}."), err=True)
    return code


def _short_name(model: str) -> str:
    """What a file of its answers is called after."""
    return re.sub(r"[^\w.-]+", "-", model.partition("://")[2]).strip("-") if is_address(model) else Path(model).stem


@dataclasses.dataclass(frozen=True)
class _Given:
    """A file to judge: its SQL by the ids of questions, what the report says of it, and a model's answers in it."""

    sql: Mapping[str, str | None]
    about: dict[str, Any]
    results: Results | None = None

    def analyze(self, outcomes: Sequence[Outcome], rules: Sequence[str]) -> dict[str, Any]:
        """What a results file adds to the document."""
        return {"analysis": benchmarks.analyze(outcomes, self.results, rules)} if self.results else {}


def _read(file: Path, questions: Sequence[Question], form: str | None) -> _Given:
    about: dict[str, Any] = {"file": str(file)}
    if is_results_file(file):
        results = benchmarks.read_results(file, questions)
        about |= {"file_form": "results", "n_unknown": 0, "run": dataclasses.asdict(results.run)}
        return _Given(results.sql, about, results)
    given = benchmarks.read_predictions(file, questions, form=form)
    return _Given(given.sql, about | {"file_form": given.form, "n_unknown": len(given.unknown)})


def _check_usage(
    sources: tuple[object, object, object],
    parts: tuple[int | None, int | None],
    at_a_time: tuple[int, int | None],
    write_to: Path | None,
) -> None:
    """Raise for options that do not go together.

    Args:
        sources: --predictions, --compare, --model.
        parts: --sample, --limit.
        at_a_time: --votes, --parallel.
        write_to: --write-predictions.
    """
    if sources.count(None) != 2:
        raise click.UsageError("give either --predictions FILE, or --compare A B, or --model M")
    if all(parts):
        raise click.UsageError("give either --sample N or --limit N")
    if at_a_time[0] > 1 and at_a_time[1]:
        raise click.UsageError("give either --votes K or --parallel N: the candidates of a vote are asked at a time")
    if write_to and sources[1]:
        raise click.UsageError("--write-predictions writes one file: leave out --compare")


def _make_pair(
    documents: Sequence[dict[str, Any]], outcomes: Sequence[Sequence[Outcome]], rules: Sequence[str]
) -> dict[str, Any]:
    """The document of two files that are compared; empty for a single one."""
    if len(documents) < 2:
        return {}
    return {
        "a": documents[0],
        "b": documents[1],
        "pairs": benchmarks.count_pairs(outcomes[0], outcomes[1]),
        "mcnemar": benchmarks.compare(outcomes[0], outcomes[1], rules),
    }


def _note_unasked(documents: Sequence[dict[str, Any]]) -> None:
    """Say which runs were not asked all of these questions, as they look bad without a reason."""
    for document in documents:
        if document["file_form"] == "results" and (n_left := document["predictions"].get("missing")):
            note = f"{n_left} of {document['n']} questions were not asked in {document['file']!r}, and count as wrong"
            how = "judge those that were with its --sample and --seed, or --limit"
            click.echo(printable(f"Note: {note}; {how}."), err=True)


def _exit_code(document: dict[str, Any], databases: Path | None) -> int:
    """3, with the reason, if not one question can be scored."""
    if document["n_scorable"]:
        return 0
    reason = f"none of the {document['n']} questions can be scored: {list_counts(document['gold'])}"
    detail = next((outcome["detail"] for outcome in document["outcomes"] if outcome["detail"]), "")
    fix = (
        " Name the folder of the databases with --databases."
        if "no_database" in document["gold"] and not databases
        else ""
    )
    click.echo(printable(f"No answer: {reason}{f'; {detail}' if detail else ''}.{fix}"), err=True)
    return EXIT_NO_ANSWER
