"""Ask the model questions about databases it has never seen, through the real agent, and count right answers.

    python demo/evaluate.py --checkpoint FOLDER --questions 300
    python demo/evaluate.py --model FILE.gguf --questions 300 --json report.json

A checkpoint is converted first, with this package's own conversion. Databases, names and values are of the split
`held_out`. An answer is right if its rows are those of the right statement (execution accuracy); intervals are
Wilson's, 95%. And for each kind of question: whether the right tables were described, and what went wrong.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes import is_right
from held_out import SEED, make_held_out
from sqale_edge.benchmarks.statistics import wilson_interval
from sqale_edge.convert import convert_checkpoint

from sqale_edge import Agent, EngineSettings

if TYPE_CHECKING:
    from parts import Question

    from sqale_edge.database import Database
    from sqale_edge.episode import Episode


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One question and what became of it."""

    kind: str
    question: str
    gold: str
    sql: str | None
    is_right: bool
    has_tables: bool
    failure: str
    ended_by: str
    n_turns: int
    n_decoded: int


def judge(question: Question, database: Database, episode: Episode) -> Outcome:
    """Compare an episode with the right answer."""
    gold = database.query(question.sql(), max_rows=1_000)
    described = {
        call.args.get("table_name")
        for turn in episode.turns
        for call in turn.calls
        if call.name in ("describe_table", "sample_rows")
    }
    has_tables = {name for _, name in question.tables} <= described
    right = episode.sql is not None and is_right(episode.rows, gold.rows, question)
    return Outcome(
        kind=question.kind,
        question=question.text,
        gold=question.sql(),
        sql=episode.sql,
        is_right=right,
        has_tables=has_tables,
        failure="" if right else find_failure(question, episode, has_tables=has_tables),
        ended_by=episode.ended_by,
        n_turns=len(episode.turns),
        n_decoded=episode.usage.n_decoded,
    )


def find_failure(question: Question, episode: Episode, *, has_tables: bool) -> str:
    """What went wrong, as far as the statement tells."""
    if episode.sql is None:
        return "no answer"
    if not has_tables:
        return "wrong tables"
    if question.lookup and f"'{question.lookup.stored}'" not in episode.sql:
        return "wrong text"
    parts = [part.sql for part in question.parts if "\x00" not in part.sql and part.sql not in episode.sql]
    return "wrong names or clauses" if parts else "other"


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    """The counts, all together and by kind."""

    def count(some: list[Outcome]) -> dict[str, Any]:
        n_right = sum(outcome.is_right for outcome in some)
        low, high = wilson_interval(n_right, len(some))
        return {
            "n": len(some),
            "n_right": n_right,
            "accuracy": round(n_right / len(some), 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "has_tables": round(sum(outcome.has_tables for outcome in some) / len(some), 4),
        }

    by_kind = {
        kind: count([one for one in outcomes if one.kind == kind]) for kind in sorted({o.kind for o in outcomes})
    }
    return {
        **count(outcomes),
        "by_kind": by_kind,
        "failures": dict(collections.Counter(one.failure for one in outcomes if one.failure).most_common()),
        "ended_by": dict(collections.Counter(one.ended_by for one in outcomes).most_common()),
        "turns": round(sum(one.n_turns for one in outcomes) / len(outcomes), 2),
        "decoded_tokens": round(sum(one.n_decoded for one in outcomes) / len(outcomes), 1),
    }


def evaluate(model: Path, n_questions: int, seed: int, threads: int | None) -> tuple[dict[str, Any], list[Outcome]]:
    """Ask `n_questions` held-out questions."""
    settings = EngineSettings(n_ctx=4_096, threads=threads, threads_batch=threads)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Agent.load(model, settings=settings) as agent:
        outcomes = [
            judge(question, database, agent.run(question.text, database))
            for question, database in make_held_out(n_questions, seed, Path(folder))
        ]
    seconds = round(time.perf_counter() - start, 1)
    return {"model": model.name, "seed": seed, "seconds": seconds, **summarize(outcomes)}, outcomes


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Execution accuracy of the demo model on held-out databases.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="a Hugging Face folder; it is converted first")
    source.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--quant", default="BF16", help="what the checkpoint is converted to")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report and every outcome")
    arguments = parser.parse_args()
    model = arguments.model
    if arguments.checkpoint:
        model = arguments.checkpoint / f"{arguments.quant}.gguf"
        convert_checkpoint(arguments.checkpoint, model, quant=arguments.quant, overwrite=True)
    report, outcomes = evaluate(model, arguments.questions, arguments.seed, arguments.threads)
    if arguments.json:
        document = report | {"outcomes": [dataclasses.asdict(outcome) for outcome in outcomes]}
        arguments.json.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for outcome in [outcome for outcome in outcomes if not outcome.is_right][:12]:
        print(f"{outcome.kind}: {outcome.failure}\n  {outcome.question}\n  {outcome.gold}\n  {outcome.sql}")  # noqa: T201
    print(json.dumps(report, ensure_ascii=False))  # noqa: T201


if __name__ == "__main__":
    main()
