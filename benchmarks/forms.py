"""What the fields of each benchmark are called: one reader a form, from a record to a question.

| form | file | id | database | gold |
|---|---|---|---|---|
| `bird` | JSON: `question_id`, `db_id`, `evidence`, `SQL`, `difficulty` | `question_id` | `db_id` | `SQL` |
| `spider` | JSON list: `db_id`, `question`, `query` | position | `db_id` | `query` |
| `ehrsql` | JSON list: `id`, `db_id`, `query`, `is_impossible` | `id` | `db_id` | `query`, or none |
| `ehrsql2024` | JSON object: `data`, a list of `id` and `question` | `id` | `mimic_iv` | `label.json` |
| `spider2` | JSON lines: `instance_id`, `db`; SQLite: `local...` | `instance_id` | `db` | CSV files |
| `defog` | CSV: `db_name`, `query`, `question`, `query_category`, `instructions` | position | `db_name` | several |
| `jsonl`, `csv` | `id`, `db`, `question`, `sql`, `evidence`, `difficulty` | `id` | path | `sql` |
| `sqale` | Parquet, read by the SQaLe library | `question_id` | `schema_id` | `sql` |

Of `jsonl` and `csv` the gold may be called `gold_sql` as well, and `gold_alternatives` lists more that is right.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError
from sqale_edge.sql_text import tokens

from .files import check_id, clip
from .question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Record = dict[str, Any]

NO_ANSWER = "null"
"""What EHRSQL writes for a question that cannot be answered, in gold and in predictions."""

_MAX_GOLDS = 1_000  # of one question, each of which is run
_MAX_NAMES = 6  # that a message lists


def as_answer(sql: str | None) -> str | None:
    """SQL as it was predicted; None for what says that there is no answer."""
    return None if sql is None or sql.strip() in ("", NO_ANSWER) else sql


def detect_form(path: Path, record: Record) -> str:
    """The form that a file's first record has. Raises BenchmarkError if it is none of them."""
    for form, names in _MARKS.items():
        if names <= record.keys():
            return form
    if record.keys() == {"id", "question"}:
        return "ehrsql2024"
    found = ", ".join(map(clip, itertools.islice(record, _MAX_NAMES)))
    raise BenchmarkError(
        f"{str(path)!r} has questions of no known form: their fields are {found}",
        path=path,
        hint="see docs/accuracy.md for the forms that are read, or say which one it is with --form",
    )


# The first whose names are all there. None is a part of an earlier one.
_MARKS = {
    "spider2": {"instance_id", "db", "question"},
    "bird": {"question_id", "db_id", "question", "evidence"},
    "ehrsql": {"id", "db_id", "question", "is_impossible"},
    "spider": {"db_id", "question", "query"},
    "defog": {"db_name", "query", "question"},
    "jsonl": {"id", "db", "question"},
}


def _read_bird(record: Record, position: int) -> Question:
    return Question(
        id=check_id(record.get("question_id", position)),
        db=Path(record["db_id"]),
        question=record["question"],
        golds=_golds(record.get("SQL")),
        evidence=record.get("evidence") or "",
        difficulty=record.get("difficulty") or "",
        form="bird",
    )


def _read_spider(record: Record, position: int) -> Question:
    golds = _golds(record.get("query"))
    return Question(str(position), Path(record["db_id"]), record["question"], golds, form="spider")


def _read_ehrsql(record: Record, _position: int) -> Question:
    is_unanswerable = bool(record.get("is_impossible")) or record.get("query") == NO_ANSWER
    return Question(
        id=check_id(record["id"]),
        db=Path(record["db_id"]),
        question=record["question"],
        golds=() if is_unanswerable else _golds(record.get("query")),
        is_unanswerable=is_unanswerable,
        form="ehrsql",
    )


def _read_ehrsql2024(record: Record, _position: int) -> Question:
    return Question(check_id(record["id"]), Path("mimic_iv"), record["question"], form="ehrsql2024")


def _read_spider2(record: Record, _position: int) -> Question:
    return Question(check_id(record["instance_id"]), Path(record["db"]), record["question"], form="spider2")


def _read_defog(record: Record, position: int) -> Question:
    golds = itertools.chain.from_iterable(map(_expand, _split(record["query"])))
    some = list(itertools.islice(golds, _MAX_GOLDS + 1))
    if len(some) > _MAX_GOLDS:
        raise ValueError(f"its choices of columns stand for more than {_MAX_GOLDS} statements")
    return Question(
        id=str(position),
        db=Path(record["db_name"]),
        question=record["question"],
        golds=_golds(*some),
        evidence=record.get("instructions") or "",
        difficulty=record.get("query_category") or "",
        form="defog",
    )


def _read_plain(record: Record, _position: int) -> Question:
    more = record.get("gold_alternatives") or ()
    if not isinstance(more, (list, tuple)):
        raise TypeError("gold_alternatives is not a list")
    return Question(
        id=check_id(record["id"]),
        db=Path(record["db"]),
        question=record["question"],
        golds=_golds(record.get("sql") or record.get("gold_sql"), *more),
        evidence=record.get("evidence") or "",
        difficulty=record.get("difficulty") or "",
    )


FORMS: dict[str, Callable[[Record, int], Question]] = {
    "bird": _read_bird,
    "spider": _read_spider,
    "ehrsql": _read_ehrsql,
    "ehrsql2024": _read_ehrsql2024,
    "spider2": _read_spider2,
    "defog": _read_defog,
    "jsonl": _read_plain,
    "csv": _read_plain,
}

QUESTION_FORMS = (*FORMS, "sqale")


def _golds(*given: Any) -> tuple[str, ...]:
    """Those that are there, each once. Raises TypeError for what is not a text."""
    for sql in given:
        if sql is not None and not isinstance(sql, str):
            raise TypeError(f"the SQL {clip(sql)} is not a text")
    return tuple(dict.fromkeys(filter(None, given)))


def _split(sql: str) -> Iterator[str]:
    """The statements of Defog's gold, which ends each with a semicolon."""
    statement = ""
    for _, text in (*tokens(sql), ("other", ";")):
        if text != ";":
            statement += text
            continue
        if statement.strip():
            yield statement.strip()
        statement = ""


def _expand(sql: str) -> Iterator[str]:
    """Defog's `SELECT {a, b}`: any of the columns, one at least; `GROUP BY {}` groups by the same ones.

    Source: `get_all_minimal_queries` in eval/eval.py of defog-ai/sql-eval, commit 079e59c2.
    """
    pending = [iter([sql])]
    while pending:
        one = next(pending[-1], None)
        if one is None:
            pending.pop()
        elif "{" in one:
            pending.append(_choose(one))
        else:
            yield one


def _choose(sql: str) -> Iterator[str]:
    """`sql` with its first choice made, in every way."""
    before, _, rest = sql.partition("{")
    choice, _, after = rest.partition("}")
    columns = [column.strip() for column in choice.split(",")]
    for n_columns in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, n_columns):
            names = ", ".join(chosen)
            yield before + names + after.replace("GROUP BY {}", f"GROUP BY {names}")
