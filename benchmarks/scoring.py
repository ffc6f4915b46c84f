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

from .databases import OpenDatabases, reason
from .ehrsql import prepare_sql
from .gold import run_gold
from .rules import is_right

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .gold import GoldRun, GoldState
    from .question import Question

PredictionState = Literal["ran", "missing", "no_sql", "refused", "failed", "timeout", "too_large", "not_run"]
PREDICTION_STATES: tuple[PredictionState, ...] = get_args(PredictionState)
TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One question.

    Attributes:
        gold: The state of the gold.
        prediction: The state of the prediction.
        detail: What was wrong with either, in one line.
        right: For each rule whether the prediction is right. It counts where the gold is `scorable`.
    """

    id: str
    db: str
    difficulty: str
    n_tables: int | None
    gold: GoldState
    prediction: PredictionState
    right: Mapping[str, bool]
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON types."""
        return {**dataclasses.asdict(self), "right": dict(self.right)}


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
    """
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
    state, detail, rows = _run(question, gold, predictions, databases)
    if gold.state == "unanswerable":
        right = dict.fromkeys(rules, state == "no_sql")
    else:
        right = {
            rule: state == "ran" and any(is_right(rule, rows, result) for result in gold.results) for rule in rules
        }
    return Outcome(
        id=question.id,
        db=question.db_name,
        difficulty=question.difficulty,
        n_tables=gold.n_tables,
        gold=gold.state,
        prediction=state,
        right=right,
        detail=gold.detail or detail,
    )


def _run(
    question: Question, gold: GoldRun, predictions: Mapping[str, str | None], databases: OpenDatabases
) -> tuple[PredictionState, str, tuple[Any, ...]]:
    """The state of the prediction, what was wrong, and its rows."""
    if question.id not in predictions:
        return "missing", "", ()
    sql = predictions[question.id]
    if sql is None:
        return "no_sql", "", ()
    if not gold.results:
        return "not_run", "", ()
    try:
        table = databases.get(question.db).query(prepare_sql(question.form, sql))
    except (QueryError, DatabaseOpenError) as error:
        kind = reason(error)
        return next(state for state in PREDICTION_STATES if state == kind), str(error), ()
    if table.truncated:
        return "too_large", f"more than {len(table.rows)} rows", ()
    return "ran", "", table.rows
