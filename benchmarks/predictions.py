"""Predicted SQL, in the forms that the benchmarks take as submissions.

| form | file |
|---|---|
| `bird` | a JSON object: `"0": "SQL<tab>----- bird -----<tab>db_id"`; the key is the id, or the position from 0 |
| `spider` | a line of SQL for each question, in their order |
| `ehrsql` | a JSON object of ids and SQL; `null` where there is no answer |
| `jsonl` | JSON lines `{"id", "sql"}`; CSV and a JSON list with these names are read, too |

A prediction belongs to a question by its id. Where a form has positions only, their number must be that of the
questions, and a database that is named must be the question's: a file with a line too few is an error, not a shift.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import SqaleEdgeError
from sqale_edge.sql_text import one_line, tokens

from .files import read_content, read_lines, read_records, read_text
from .forms import NO_ANSWER
from .gold_files import split_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .question import Question

_BIRD = "\t----- bird -----\t"
_BIRD_END = re.compile(rf"{_BIRD}([^'\"\t\n]*)\Z")  # the same text inside a literal is not meant
PREDICTION_FORMS = ("bird", "spider", "ehrsql", "jsonl")


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
    """The predictions of a file for all questions of a benchmark, not for a sample of them.

    Raises:
        SqaleEdgeError: The file is missing, broken, or not one for these questions.
    """
    path = Path(path)
    form = form or _detect_form(path)
    if form == "spider":
        lines = split_lines(path, read_lines(path), questions)
        return Predictions(form, {q.id: line or None for q, line in zip(questions, lines, strict=True)})
    if form == "jsonl":
        found = _read_records(path)
    else:
        content = read_content(path)
        if not isinstance(content, dict):
            raise SqaleEdgeError(f"{str(path)!r} is no JSON object, which the form {form} is", hint=_FORM_HINT)
        found = {
            key: None if sql == 0 and form == "bird" else _check_sql(path, key, sql) for key, sql in content.items()
        }
    if form == "bird":
        found = _by_question(path, found, questions)
    known = {question.id for question in questions}
    unknown = tuple(key for key in found if key not in known)
    if found and len(unknown) == len(found):
        raise SqaleEdgeError(
            f"{str(path)!r} is for other questions: its first id is {unknown[0]!r}, theirs {questions[0].id!r}",
            hint="give the predictions of these questions",
        )
    return Predictions(form, {key: sql for key, sql in found.items() if key in known}, unknown)


_FORM_HINT = "name another form with --predictions-form, or correct the file"


def _detect_form(path: Path) -> str:
    text = read_text(path).lstrip()
    if text[:1] not in ("[", "{"):
        header = text.partition("\n")[0].split(",")
        return "jsonl" if {"id", "sql"} <= {name.strip().strip('"') for name in header} else "spider"
    content = read_content(path)
    if isinstance(content, list) or content.keys() >= {"id", "sql"}:
        return "jsonl"
    return "bird" if any(isinstance(sql, str) and _BIRD_END.search(sql) for sql in content.values()) else "ehrsql"


def _check_sql(path: Path, key: str, sql: Any) -> str | None:
    if sql is None or (isinstance(sql, str) and (not sql.strip() or sql.strip() == NO_ANSWER)):
        return None
    if not isinstance(sql, str):
        raise SqaleEdgeError(f"{str(path)!r}: the SQL of {key!r} is {str(sql)[:60]!r}, but must be a text")
    return sql


def _read_records(path: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, record in enumerate(read_records(path), 1):
        if not {"id", "sql"} <= record.keys():
            raise SqaleEdgeError(f"{str(path)!r}: prediction {number} has no id or no sql", hint=_FORM_HINT)
        key = str(record["id"])
        if key in found:
            raise SqaleEdgeError(f"{str(path)!r}: there are two predictions for {key!r}", hint="leave one of them out")
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
            raise SqaleEdgeError(
                f"{str(path)!r}: prediction {key!r} is about the database {end[1].strip()!r}, but question "
                f"{question.id!r} about {question.db_name!r}",
                hint="give the predictions of these questions",
            )
        sql_by_id[question.id if question else key] = _check_sql(
            path, key, text[: end.start()] if text and end else text
        )
    return sql_by_id


def write_predictions(
    path: str | Path, questions: Sequence[Question], sql: Mapping[str, str | None], *, form: str
) -> None:
    """Write predictions in one of PREDICTION_FORMS; a file that is there is replaced in one step.

    A question without one gets what the form has for that: 0 in BIRD's, an empty line in Spider's, `null` in EHRSQL's.

    Raises:
        SqaleEdgeError: The form cannot hold a statement, or the file cannot be written.
    """
    path = Path(path)
    found = [(question, sql.get(question.id)) for question in questions]
    if form == "bird":
        text = json.dumps(
            {question.id: f"{one}{_BIRD}{question.db_name}" if one else 0 for question, one in found}, indent=1
        )
    elif form == "ehrsql":
        text = json.dumps({question.id: one or NO_ANSWER for question, one in found}, indent=1)
    elif form == "spider":
        text = "\n".join(_as_line(question, one or "") for question, one in found)
    else:
        text = "\n".join(json.dumps({"id": question.id, "sql": one}) for question, one in found)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(text + "\n", encoding="utf-8", newline="\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SqaleEdgeError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _as_line(question: Question, sql: str) -> str:
    """`sql` on one line without a tab, which ends it in Spider's form."""
    if any(kind == "quoted" and set(text) & set("\t\n\r") for kind, text in tokens(sql)):
        raise SqaleEdgeError(
            f"question {question.id!r}: its SQL has a tab or a line end in a literal, which Spider's form cannot hold",
            hint="write the form jsonl",
        )
    return one_line(sql)
