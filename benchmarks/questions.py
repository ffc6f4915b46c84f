"""The questions of a benchmark with what is right, whatever form their file has.

The form is taken from the file itself; `forms` has a reader for each. A question whose database is not there is kept:
it is counted when gold is run. What is right may stand in a second file, see `gold_files`.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import BenchmarkError

from . import gold_files
from .databases import USUAL_FOLDERS, find_database
from .files import clip, read_records
from .forms import FORMS, detect_form
from .sqale_parquet import is_sqale, read_sqale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .question import Question


def read_questions(
    path: str | Path,
    *,
    form: str | None = None,
    databases: str | Path | None = None,
    gold: str | Path | None = None,
    difficulty: str | Path | None = None,
) -> list[Question]:
    """The questions of a file, in its order.

    Args:
        path: A file of one of FORMS, or the name of one of SQaLe's datasets.
        form: Its form, or `sqale`; None finds it out.
        databases: The folder with the databases, or the one database of all questions. Without it they are looked for
            relative to the file, and in the folders that the benchmarks use.
        gold: What is right, where another file says so: BIRD's or Spider's gold lines, EHRSQL 2024's labels, Spider
            2's folder of results. The last two have a usual place, which is looked at without it.
        difficulty: BIRD's JSON lines with `question_id` and `difficulty`.

    Raises:
        BenchmarkError: A file is missing or broken, ids occur twice, or two files do not belong together.
    """
    path = Path(path)
    if form == "sqale" or (form is None and is_sqale(path)):
        questions = read_sqale(path)
    else:
        records = read_records(path)
        form = form or detect_form(path, records[0])
        questions = [_read(path, form, record, position) for position, record in enumerate(records)]
    other = Path(gold) if gold else None
    if form == "spider2":
        questions = gold_files.find_results(path, questions, other)
    elif form == "ehrsql2024":
        questions = gold_files.read_labels(path, questions, other)
    elif other:
        questions = gold_files.read_gold_lines(other, questions)
    if difficulty:
        questions = gold_files.read_difficulties(Path(difficulty), questions)
    _check_ids(path, questions)
    folders = [Path(databases)] if databases else [path.parent / folder for folder in USUAL_FOLDERS]
    return [dataclasses.replace(question, db=find_database(str(question.db), folders)) for question in questions]


def sample(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """`n` of the questions, or all if there are fewer, in their order; the same ones for the same seed."""
    chosen = random.Random(seed).sample(range(len(questions)), min(n, len(questions)))  # noqa: S311 - no secret
    return [questions[position] for position in sorted(chosen)]


def _read(path: Path, form: str, record: dict[str, object], position: int) -> Question:
    place = f"{str(path)!r}: question {position + 1}"
    try:
        question = FORMS[form](record, position)
    except KeyError as error:
        raise BenchmarkError(
            f"{place} has no field {error} (read as {form})",
            path=path,
            hint="correct the file, or name its form with --form",
        ) from error
    except (TypeError, ValueError) as error:
        raise BenchmarkError(f"{place} (read as {form}): {error}", path=path) from error
    for text in (question.question, question.evidence, question.difficulty):
        if not isinstance(text, str):
            raise BenchmarkError(f"{place}: {clip(text)} is not a text", path=path)
    return question


def _check_ids(path: Path, questions: Sequence[Question]) -> None:
    seen: dict[str, int] = {}
    for number, question in enumerate(questions, 1):
        if question.id in seen:
            raise BenchmarkError(
                f"{str(path)!r}: questions {seen[question.id]} and {number} have the same id {clip(question.id)}",
                path=path,
                hint="each question needs an id of its own",
            )
        seen[question.id] = number
