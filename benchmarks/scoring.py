"""One outcome for each question: what became of the gold, what became of the prediction, and which rules it satisfies.

Predictions run read-only, one statement each, under the same limits as gold; none can change a database, or the result
of the next question. What a prediction does wrong is counted:

| state | the prediction |
|---|---|
| `ran` | gave rows, right or wrong |
| `missing` | is not in the file |
| `no_sql` | says that there is no answer |
| `refused` | is not one statement that only reads |
| `failed`, `timeout`, `too_large` | did not run to its end within the limits |
| `not_run` | has a gold that cannot be compared with anything |
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqale_edge.errors import Cancelled, DatabaseOpenError, QueryError
from sqale_edge.settings import MAX_SECONDS, require

from .databases import OpenDatabases, reason
from .ehrsql import prepare_sql
from .failures import find_failure
from .gold import run_gold
from .rules import is_right

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqale_edge.database import Table
    from sqale_edge.episode import Row

    from .gold import GoldRun, GoldState
    from .literals import SqlLiteral
    from .question import Question

PredictionState = Literal["ran", "missing", "no_sql", "refused", "failed", "timeout", "too_large", "not_run"]
PREDICTION_STATES: tuple[PredictionState, ...] = get_args(PredictionState)
TIMEOUT_S = 5.0
_EXCERPT_ROWS, _EXCERPT_CELL = 5, 200


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """The beginning of a result, for people.

    Attributes:
        sql: The statement; empty if there is none.
        columns: Their names, where they are known.
        rows: At most 5, with cells of at most 200 characters or bytes.
        n_rows: How many rows it has.
    """

    sql: str
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    n_rows: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One question.

    Attributes:
        gold: The state of the gold.
        prediction: The state of the prediction.
        detail: What was wrong with either, in one line.
        right: For each rule whether the prediction is right. It counts where the gold is `scorable`.
        failure: What is wrong by the strict rule, one of `failures.FAILURES`; empty for what is right or not scorable,
            and where that rule is not asked for.
        gold_tables: The tables and views that the gold names; of several golds, that the first scorable one does.
        gold_literals: What it compares with.
        excerpts: The beginnings of its result and of the prediction's, where there is a failure.
    """

    id: str
    db: str
    difficulty: str
    n_tables: int | None
    gold: GoldState
    prediction: PredictionState
    right: Mapping[str, bool]
    detail: str = ""
    failure: str = ""
    gold_tables: tuple[str, ...] = ()
    gold_literals: tuple[SqlLiteral, ...] = ()
    excerpts: tuple[Excerpt, Excerpt] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON types, without the excerpts."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del data["excerpts"]
        return data | {
            "right": dict(self.right),
            "gold_tables": list(self.gold_tables),
            "gold_literals": [dataclasses.asdict(literal) for literal in self.gold_literals],
        }


def score(
    questions: Sequence[Question],
    predictions: Sequence[Mapping[str, str | None]],
    rules: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[Outcome, ...]]:
    """For each question the outcomes of one or more sets of predictions, for which its gold runs once.

    Args:
        questions: In this order.
        predictions: SQL by the ids of questions; None where there is no answer.
        rules: Some of `rules.RULES`.
        timeout_s: Seconds for each statement.
        should_stop: Asked again and again; once it is true, `Cancelled` is raised.

    Raises:
        SettingsError: `timeout_s` is no limit.
    """
    require(0 < timeout_s <= MAX_SECONDS, "timeout_s", timeout_s, f"above 0 and at most {MAX_SECONDS:.0f}")
    try:
        with OpenDatabases(timeout_s, should_stop) as databases:
            for question in questions:
                gold = run_gold(question, databases)
                yield tuple(score_one(question, gold, one, rules, databases) for one in predictions)
    except QueryError as error:
        if error.kind != "interrupted":
            raise
        raise Cancelled("the evaluation was cancelled") from error


def score_one(
    question: Question,
    gold: GoldRun,
    predictions: Mapping[str, str | None],
    rules: Sequence[str],
    databases: OpenDatabases,
) -> Outcome:
    """The outcome of one question whose gold has run. Raises QueryError, kind `interrupted`, when it is to stop."""
    state, detail, table = _run(question, gold, predictions, databases)
    rows = table.rows if table else ()
    if gold.state == "unanswerable":
        right = dict.fromkeys(rules, state == "no_sql")
    else:
        right = {
            rule: state == "ran" and any(is_right(rule, rows, result) for result in gold.results) for rule in rules
        }
    outcome = Outcome(
        id=question.id,
        db=question.db_name,
        difficulty=question.difficulty,
        n_tables=gold.n_tables,
        gold=gold.state,
        prediction=state,
        right=right,
        detail=gold.detail or detail,
        gold_tables=gold.sources.named,
        gold_literals=gold.sources.literals,
    )
    if gold.state != "scorable" or right.get("strict", True):
        return outcome
    first = gold.results[0]
    given = predictions.get(question.id)
    sql = prepare_sql(question.form, given) if given is not None else None
    failure = find_failure(state, rows, sql, gold, databases.get(question.db))
    excerpts = (
        _excerpt(first.sql, first.names, first.rows),
        _excerpt(given or "", table.columns if table else (), rows),
    )
    return dataclasses.replace(outcome, failure=failure, excerpts=excerpts)


def _excerpt(sql: str, columns: Sequence[str], rows: Sequence[Row]) -> Excerpt:
    shown = [
        tuple(cell[:_EXCERPT_CELL] if isinstance(cell, (str, bytes)) else cell for cell in row)
        for row in rows[:_EXCERPT_ROWS]
    ]
    return Excerpt(sql, tuple(columns), tuple(shown), len(rows))


def _run(
    question: Question, gold: GoldRun, predictions: Mapping[str, str | None], databases: OpenDatabases
) -> tuple[PredictionState, str, Table | None]:
    """The state of the prediction, what was wrong, and its rows if it `ran`."""
    if question.id not in predictions:
        return "missing", "", None
    sql = predictions[question.id]
    if sql is None:
        return "no_sql", "", None
    if not gold.results:
        return "not_run", "", None
    try:
        table = databases.get(question.db).query(prepare_sql(question.form, sql))
    except (QueryError, DatabaseOpenError) as error:
        kind = reason(error)
        return next(state for state in PREDICTION_STATES if state == kind), str(error), None
    if table.truncated:
        return "too_large", f"more than {len(table.rows)} rows", None
    return "ran", "", table
