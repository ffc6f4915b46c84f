"""Predicted SQL, in the forms that the benchmarks take as submissions; `submissions` writes them.

| form | file |
|---|---|
| `bird` | a JSON object: `"0": "SQL<tab>----- bird -----<tab>db_id"`; the key is the id, or the position from 0 |
| `spider` | a line of SQL for each question, in their order |
| `ehrsql` | a JSON object of ids and SQL; `null` where there is no answer |
| `spider2` | a folder with a file `ID.sql` for each question |
| `jsonl` | JSON lines `{"id", "sql"}`; CSV and a JSON list with these names are read, too |

A prediction belongs to a question by its id. Where a form has positions only, their number must be that of the
questions, and a database that is named must be the question's: a file with a line too few is an error, not a shift.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError

from .files import cannot_read, check_id, clip, read_content, read_lines, read_records, read_text
from .forms import as_answer
from .gold_files import split_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .question import Question

BIRD_MARK = "\t----- bird -----\t"
"""What BIRD puts between a statement and the name of its database."""

_BIRD_END = re.compile(rf"{BIRD_MARK}([^'\"\t\n]*)\Z")  # the same text inside a literal is not meant
PREDICTION_FORMS = ("bird", "spider", "ehrsql", "spider2", "jsonl")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """A file of predictions.

    Attributes:
        form: One of PREDICTION_FORMS.
        sql: By the ids of the questions; None where the file says that there is no answer.
        unknown: Ids that no question has.
    """

    form: str
    sql: Mapping[str, str | None]
    unknown: tuple[str, ...] = ()


def read_predictions(path: str | Path, questions: Sequence[Question], *, form: str | None = None) -> Predictions:
    """The predictions of a file, or a folder, for all questions of a benchmark, not for a sample of them.

    Raises:
        BenchmarkError: The file is missing, broken, or not one for these questions.
    """
    path = Path(path)
    form = form or _detect_form(path)
    if form == "spider":
        lines = split_lines(path, read_lines(path), questions)
        return Predictions(form, {q.id: as_answer(line) for q, line in zip(questions, lines, strict=True)})
    if form == "jsonl":
        found = _read_records(path)
    elif form == "spider2":
        found = _read_folder(path, questions)
    else:
        content = read_content(path)
        if not isinstance(content, dict):
            raise BenchmarkError(
                f"{str(path)!r} is no JSON object, which the form {form} is", path=path, hint=_FORM_HINT
            )
        found = {
            key: None if sql == 0 and form == "bird" else _check_sql(path, key, sql) for key, sql in content.items()
        }
    if form == "bird":
        found = _by_question(path, found, questions)
    known = {question.id for question in questions}
    unknown = tuple(key for key in found if key not in known)
    if found and len(unknown) == len(found):
        raise BenchmarkError(
            f"{str(path)!r} is for other questions: its first id is {clip(unknown[0])}, theirs {clip(questions[0].id)}",
            path=path,
            hint="give the predictions of these questions",
        )
    return Predictions(form, {key: sql for key, sql in found.items() if key in known}, unknown)


_FORM_HINT = "name another form with --predictions-form, or correct the file"


def _detect_form(path: Path) -> str:
    if path.is_dir():
        return "spider2"
    text = read_text(path).lstrip()
    if text[:1] not in ("[", "{"):
        header = text.partition("\n")[0].split(",")
        return "jsonl" if {"id", "sql"} <= {name.strip().strip('"') for name in header} else "spider"
    content = read_content(path)
    if isinstance(content, list) or content.keys() >= {"id", "sql"}:
        return "jsonl"
    return "bird" if any(map(_is_birds, content.values())) else "ehrsql"


def _is_birds(sql: Any) -> bool:
    return bool(_BIRD_END.search(sql)) if isinstance(sql, str) else type(sql) is int and sql == 0


def _check_sql(path: Path, key: str, sql: Any) -> str | None:
    if sql is not None and not isinstance(sql, str):
        raise BenchmarkError(f"{str(path)!r}: the SQL of {clip(key)} is {clip(sql)}, but must be a text", path=path)
    return as_answer(sql)


def _read_folder(path: Path, questions: Sequence[Question]) -> dict[str, str | None]:
    try:
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix == ".sql"}
    except OSError as error:
        raise cannot_read(path, error) from error
    if not files:
        raise BenchmarkError(
            f"{str(path)!r} has no file with SQL, such as '{questions[0].id}.sql'",
            path=path,
            hint="name another folder; results as CSV files cannot be judged",
        )
    return {key: as_answer(read_text(file, keep_line_ends=True)) for key, file in files.items()}


def _read_records(path: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, record in enumerate(read_records(path), 1):
        if not {"id", "sql"} <= record.keys():
            raise BenchmarkError(f"{str(path)!r}: prediction {number} has no id or no sql", path=path, hint=_FORM_HINT)
        try:
            key = check_id(record["id"])
        except TypeError as error:
            raise BenchmarkError(f"{str(path)!r}: prediction {number}: {error}", path=path) from error
        if key in found:
            raise BenchmarkError(
                f"{str(path)!r}: there are two predictions for {clip(key)}", path=path, hint="leave one of them out"
            )
        found[key] = _check_sql(path, key, record["sql"])
    return found


def _by_question(path: Path, found: Mapping[str, str | None], questions: Sequence[Question]) -> dict[str, str | None]:
    """BIRD's predictions by the ids of the questions.

    Its own script ignores the keys and counts. They are ids, or positions if not all of them are ids: in BIRD's dev
    both are the same, in its mini-dev not.
    """
    ids = [question.id for question in questions]
    if not found.keys() <= set(ids):
        ids = [str(position) for position in range(len(questions))]
    by_key = dict(zip(ids, questions, strict=True))
    sql_by_id: dict[str, str | None] = {}
    for key, text in found.items():
        end = _BIRD_END.search(text or "")
        question = by_key.get(key)
        if question and end and end[1].strip() != question.db_name:
            raise BenchmarkError(
                f"{str(path)!r}: prediction {clip(key)} is about the database {clip(end[1].strip())}, but question "
                f"{clip(question.id)} about {clip(question.db_name)}",
                path=path,
                hint="give the predictions of these questions",
            )
        sql_by_id[question.id if question else key] = _check_sql(
            path, key, text[: end.start()] if text and end else text
        )
    return sql_by_id
