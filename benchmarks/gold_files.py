"""What is right, where a benchmark keeps it in a file of its own. Every pairing is checked, none is by position alone.

Where a form has no ids, lines are counted and the database named on each line must be the question's.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, TypeVar

from sqale_edge.errors import BenchmarkError

from .files import cannot_read, check_id, clip, read_content, read_lines, read_records
from .forms import NO_ANSWER
from .question import GoldTable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .question import Question

T = TypeVar("T")


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
        BenchmarkError: There are more or fewer lines than questions, or a line names the database of another question.
    """
    while len(lines) > len(questions) and not lines[-1].strip():
        lines = lines[:-1]
    if len(lines) != len(questions):
        raise BenchmarkError(
            f"{str(path)!r} has {len(lines)} lines for {len(questions)} questions",
            path=path,
            hint="this form has one line for each question, in their order; write an empty line where there is no SQL",
        )
    names = {question.db_name for question in questions}
    statements = []
    for number, (line, question) in enumerate(zip(lines, questions, strict=True), 1):
        sql, tab, name = line.rstrip().rpartition("\t")
        is_named = bool(tab) and name in names
        if is_named and name != question.db_name:
            raise BenchmarkError(
                f"{str(path)!r}, line {number} is about the database {clip(name)}, but question "
                f"{clip(question.id)} about {clip(question.db_name)}",
                path=path,
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
    if not isinstance(labels, dict):
        raise BenchmarkError(
            f"{str(found)!r} is no JSON object",
            path=found,
            hint="it must have the SQL of each id; name another file with --gold",
        )
    missing = [question.id for question in questions if question.id not in labels]
    if missing:
        raise BenchmarkError(
            f"{str(found)!r} has nothing for the question {clip(missing[0])}, and {len(missing)} are missing in all",
            path=found,
            hint="it must have the SQL of each id; name another file with --gold",
        )
    return [_labelled(found, question, labels[question.id]) for question in questions]


def _labelled(path: Path, question: Question, sql: object) -> Question:
    if not isinstance(sql, str) or not sql.strip():
        raise BenchmarkError(
            f"{str(path)!r}: the SQL of {clip(question.id)} is {clip(sql)}, but must be a text",
            path=path,
            hint=f"write {NO_ANSWER!r} where there is no answer",
        )
    if sql == NO_ANSWER:
        return dataclasses.replace(question, is_unanswerable=True)
    return dataclasses.replace(question, golds=(sql,))


def find_results(path: Path, questions: Sequence[Question], gold: Path | None) -> list[Question]:
    """The SQLite part of Spider 2, with the right results: `ID.csv`, or `ID_a.csv`, `ID_b.csv` where several are right.

    Source: `evaluate_spider2sql` in spider2-lite/evaluation_suite/evaluate.py of xlang-ai/Spider2, commit 0c85cc21.
    """
    local = [question for question in questions if question.id.startswith("local")]
    if not local:
        raise BenchmarkError(
            f"{str(path)!r} has no question about SQLite: none of its {len(questions)} ids begins with 'local'",
            path=path,
        )
    usual = ("evaluation_suite/gold/exec_result", "gold/exec_result", "exec_result", "spider2_gold_exec_result")
    folder = gold or next((path.parent / name for name in usual if (path.parent / name).is_dir()), None)
    if folder is None:
        return local
    try:
        files = sorted(folder.iterdir())
    except NotADirectoryError as error:
        raise BenchmarkError(
            f"{str(folder)!r} is not a folder", path=folder, hint="Spider 2 keeps its right results in exec_result"
        ) from error
    except OSError as error:
        raise cannot_read(folder, error) from error
    standards = _read_standards(folder.parent / "spider2lite_eval.jsonl")
    return [_with_results(question, files, standards.get(question.id, _Standard())) for question in local]


@dataclasses.dataclass(frozen=True)
class _Standard:
    """How Spider 2 compares the answer to a question.

    Attributes:
        columns: For each of the right results the columns that count; without an entry all do.
        is_shared: The first entry is that of all results.
        is_ordered: The order of rows counts.
    """

    columns: tuple[tuple[int, ...], ...] = ()
    is_shared: bool = False
    is_ordered: bool = False


def _read_standards(path: Path) -> dict[str, _Standard]:
    """What the benchmark's file of standards says, by the ids of questions; empty if it is not there."""
    if not path.is_file():
        return {}
    found: dict[str, _Standard] = {}
    for number, record in enumerate(read_records(path), 1):
        try:
            key, standard = check_id(record.get("instance_id")), _read_standard(record)
            _put(found, key, standard)
        except TypeError as error:
            raise BenchmarkError(f"{str(path)!r}: entry {number}: {error}", path=path) from error
    return found


def _read_standard(record: dict[str, object]) -> _Standard:
    """One entry. Raises TypeError for what Spider 2 does not have; whether a column is there is seen when gold runs."""
    columns, ignore_order = record.get("condition_cols") or [], record.get("ignore_order")
    if not isinstance(columns, list):
        raise TypeError(f"condition_cols is {clip(columns)}, but must be a list")
    if ignore_order is not None and not isinstance(ignore_order, bool):
        raise TypeError(f"ignore_order is {clip(ignore_order)}, but must be true or false")
    is_shared = not any(one is None or isinstance(one, list) for one in columns)
    several = [columns] if is_shared else [[] if one is None else one for one in columns]
    for one in several:
        if not isinstance(one, list) or not all(type(place) is int for place in one):
            raise TypeError(f"condition_cols is {clip(columns)}, but must list positions of columns, or lists of them")
    return _Standard(tuple(map(tuple, several)), is_shared, ignore_order is False)


def _with_results(question: Question, files: Sequence[Path], standard: _Standard) -> Question:
    pattern = re.compile(rf"{re.escape(question.id)}(_[a-z])?\.csv")
    matching = [file for file in files if pattern.fullmatch(file.name)]
    others = itertools.repeat(standard.columns[0] if standard.is_shared else ())
    tables = zip(matching, itertools.chain(standard.columns, others), strict=False)
    return dataclasses.replace(
        question, gold_tables=tuple(GoldTable(file, columns, standard.is_ordered) for file, columns in tables)
    )


def _put(known: dict[str, T], key: str, value: T) -> None:
    """Take note of a value. Raises TypeError if another one is there."""
    if known.setdefault(key, value) != value:
        raise TypeError(f"the id {clip(key)} occurs twice")


def _check_difficulty(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the difficulty {clip(value)} is not a text")
    return value


def read_difficulties(path: Path, questions: Sequence[Question]) -> list[Question]:
    """The questions with the difficulties of BIRD's JSON lines."""
    known: dict[str, str] = {}
    for number, record in enumerate(read_records(path), 1):
        try:
            _put(known, check_id(record.get("question_id")), _check_difficulty(record.get("difficulty")))
        except TypeError as error:
            raise BenchmarkError(f"{str(path)!r}: entry {number}: {error}", path=path) from error
    missing = [question.id for question in questions if question.id not in known]
    if missing:
        raise BenchmarkError(
            f"{str(path)!r} has no difficulty for the question {clip(missing[0])}, and {len(missing)} are missing "
            "in all",
            path=path,
        )
    return [dataclasses.replace(question, difficulty=known[question.id]) for question in questions]
