"""What is right, where a benchmark keeps it in a file of its own. Every pairing is checked, none is by position alone.

Where a form has no ids, lines are counted and the database named on each line must be the question's.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from sqale_edge.errors import SqaleEdgeError

from .files import read_content, read_lines, read_records
from .forms import NO_ANSWER
from .question import GoldTable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .question import Question


def read_gold_lines(path: Path, questions: Sequence[Question]) -> list[Question]:
    """The questions with the gold of BIRD's `dev_gold.sql` or Spider's `dev_gold.sql`: `SQL<tab>db_id` for each."""
    statements = split_lines(path, read_lines(path), questions)
    return [
        dataclasses.replace(question, golds=(sql,) if sql else ())
        for question, sql in zip(questions, statements, strict=True)
    ]


def split_lines(path: Path, lines: list[str], questions: Sequence[Question]) -> list[str]:
    """The SQL of each line, one line for each question, without the name of its database.

    Raises:
        SqaleEdgeError: There are more or fewer lines than questions, or a line names the database of another question.
    """
    while len(lines) > len(questions) and not lines[-1].strip():
        lines = lines[:-1]
    if len(lines) != len(questions):
        raise SqaleEdgeError(
            f"{str(path)!r} has {len(lines)} lines for {len(questions)} questions",
            hint="this form has one line for each question, in their order; write an empty line where there is no SQL",
        )
    names = {question.db_name for question in questions}
    statements = []
    for number, (line, question) in enumerate(zip(lines, questions, strict=True), 1):
        sql, tab, name = line.rstrip().rpartition("\t")
        is_named = bool(tab) and name in names
        if is_named and name != question.db_name:
            raise SqaleEdgeError(
                f"{str(path)!r}, line {number} is about the database {name!r}, but question {question.id!r} about "
                f"{question.db_name!r}",
                hint="the lines must be in the order of the questions",
            )
        statements.append((sql if is_named else line).strip())
    return statements


def read_labels(path: Path, questions: Sequence[Question], gold: Path | None) -> list[Question]:
    """The questions with the gold of EHRSQL 2024: a JSON object of ids and SQL, or `null` where nothing is right."""
    usual = [path.with_name("label.json"), path.with_name(path.name.replace("data", "label"))]
    found = gold or next((other for other in usual if other != path and other.is_file()), None)
    if found is None:
        return list(questions)
    labels = read_content(found)
    missing = [question.id for question in questions if not isinstance(labels, dict) or question.id not in labels]
    if missing:
        raise SqaleEdgeError(
            f"{str(found)!r} has nothing for the question {missing[0]!r}, and {len(missing)} are missing in all",
            hint="it must be an object with the SQL of each id; name another file with --gold",
        )
    return [_labelled(question, labels[question.id]) for question in questions]


def _labelled(question: Question, sql: str) -> Question:
    if sql == NO_ANSWER:
        return dataclasses.replace(question, is_unanswerable=True)
    return dataclasses.replace(question, golds=(sql,))


def find_results(path: Path, questions: Sequence[Question], gold: Path | None) -> list[Question]:
    """The SQLite part of Spider 2, with the right results: `ID.csv`, or `ID_a.csv`, `ID_b.csv` where several are right.

    Source: `evaluate_spider2sql` in spider2-lite/evaluation_suite/evaluate.py of xlang-ai/Spider2, commit 0c85cc21.
    """
    local = [question for question in questions if question.id.startswith("local")]
    if not local:
        raise SqaleEdgeError(
            f"{str(path)!r} has no question about SQLite: none of its {len(questions)} ids begins with 'local'"
        )
    usual = ("evaluation_suite/gold/exec_result", "gold/exec_result", "exec_result", "spider2_gold_exec_result")
    folder = gold or next((path.parent / name for name in usual if (path.parent / name).is_dir()), None)
    if folder is None:
        return local
    if not folder.is_dir():
        raise SqaleEdgeError(f"{str(folder)!r} is not a folder", hint="Spider 2 keeps its right results in exec_result")
    standards = _read_standards(folder.parent / "spider2lite_eval.jsonl")
    files = sorted(folder.iterdir())
    return [_with_results(question, files, standards.get(question.id, {})) for question in local]


def _read_standards(path: Path) -> dict[str, dict[str, object]]:
    return {str(record["instance_id"]): record for record in read_records(path)} if path.is_file() else {}


def _with_results(question: Question, files: Sequence[Path], standard: dict[str, object]) -> Question:
    pattern = re.compile(rf"{re.escape(question.id)}(_[a-z])?\.csv")
    matching = [file for file in files if pattern.fullmatch(file.name)]
    columns = standard.get("condition_cols")
    several = columns if isinstance(columns, list) else []
    if not any(isinstance(one, list) for one in several):
        several = [several] * len(matching)
    several += [[]] * (len(matching) - len(several))
    is_ordered = standard.get("ignore_order") is False
    tables = [GoldTable(file, tuple(chosen or ()), is_ordered) for file, chosen in zip(matching, several, strict=False)]
    return dataclasses.replace(question, gold_tables=tuple(tables))


def read_difficulties(path: Path, questions: Sequence[Question]) -> list[Question]:
    """The questions with the difficulties of BIRD's JSON lines."""
    known = {str(record.get("question_id")): str(record.get("difficulty", "")) for record in read_records(path)}
    missing = [question.id for question in questions if question.id not in known]
    if missing:
        raise SqaleEdgeError(
            f"{str(path)!r} has no difficulty for the question {missing[0]!r}, and {len(missing)} are missing in all"
        )
    return [dataclasses.replace(question, difficulty=known[question.id]) for question in questions]
