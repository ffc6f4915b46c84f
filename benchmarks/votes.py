"""What votes are worth: accuracy with 1, 2, 4 and 8 of them, out of runs that differ in their seed alone.

    sqale-edge eval questions.jsonl --model sqale --seed 0 --parallel 8 -o seed0.jsonl
    sqale-edge eval questions.jsonl --model sqale --seed 1 --parallel 8 -o seed1.jsonl
    python -P -m sqale_edge.benchmarks.votes questions.jsonl seed0.jsonl seed1.jsonl

`ask --votes 4 --seed 0` asks with the seeds 0, 1, 2 and 3, so its candidates are what four runs hold; here they are
voted on as there, but none is given up before its end. With eight runs there are eight single answers to each question,
four votes of two, two of four and one of eight, and each accuracy is the mean of all of its kind.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError, SqaleEdgeError
from sqale_edge.vote import group_candidates

from .questions import read_questions
from .results_file import read_results
from .rules import choose_rules
from .scoring import score
from .statistics import Z_95, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqale_edge.episode import Episode

    from .question import Question
    from .results_file import Results
    from .scoring import Outcome

_COUNTS = (1, 2, 4, 8)


def measure_votes(questions: Sequence[Question], paths: Sequence[Path]) -> dict[str, Any]:
    """The accuracies of every number of votes that the runs suffice for, as a document.

    Counted are the questions that every run has asked and whose gold is scorable. `interval` is Wilson's, with as many
    trials as there are questions: several votes on one question are no further trials. `gain` is the mean difference
    to a single answer, question by question, with the 95 % interval of the normal distribution.

    Args:
        questions: Those that were asked, or more of the same file.
        paths: Results files, at least two.

    Raises:
        BenchmarkError: A file cannot be read, or two of them differ in more than their seed, or in less.
    """
    runs = _read_runs(questions, paths)
    asked = [one for one in questions if all(one.id in run.answers for run in runs)]
    counts = [n for n in _COUNTS if n <= len(runs)]
    blocks = [(n, runs[start : start + n]) for n in counts for start in range(0, len(runs) - n + 1, n)]
    predictions = [{one.id: _vote(one.id, block) for one in asked} for _, block in blocks]
    rules = choose_rules(questions[0].form)
    scored = [row for row in score(asked, predictions, rules) if row[0].gold == "scorable"]
    by_count = {n: [[one for (m, _), one in zip(blocks, row, strict=True) if m == n] for row in scored] for n in counts}
    return {
        "runs": [dataclasses.asdict(run.run) | {"model": Path(run.run.model).name} for run in runs],
        "n_scorable": len(scored),
        "n_tokens": _mean_tokens([one.id for one in asked], runs),
        "votes": [{"n": n, **{rule: _rate(by_count[n], by_count[1], rule) for rule in rules}} for n in counts],
    }


def _read_runs(questions: Sequence[Question], paths: Sequence[Path]) -> list[Results]:
    """The results in the order of their seeds."""
    runs = [read_results(path, questions) for path in paths]
    if len(runs) < 2:
        raise BenchmarkError("votes need the results of two runs or more", hint="give two results files or more")
    first = dataclasses.replace(runs[0].run, seed=0)
    for path, run in zip(paths, runs, strict=True):
        if dataclasses.replace(run.run, seed=0) != first:
            raise BenchmarkError(
                f"{str(path)!r} is of another run than {str(paths[0])!r}: more than the seed differs",
                path=path,
                hint="ask with the same model and settings",
            )
    if len({run.run.seed for run in runs}) < len(runs):
        raise BenchmarkError("two of the runs have the same seed", hint="give each run another --seed")
    if first.settings.get("votes") != 1:
        raise BenchmarkError("these answers were voted on already", hint="ask without --votes")
    return sorted(runs, key=lambda run: run.run.seed)


def _vote(key: str, runs: Sequence[Results]) -> str | None:
    """The SQL that the runs' answers to one question agree on; None where none has an answer."""
    candidates: dict[int, Episode] = {}
    for number, run in enumerate(runs):
        if episode := run.answers[key].episode:
            candidates[number] = episode
    groups = group_candidates(candidates)
    return candidates[groups[0][0]].sql if groups else None


def _mean_tokens(keys: Sequence[str], runs: Sequence[Results]) -> float:
    """Tokens that one answer to one question evaluates, on average."""
    episodes = [run.answers[key].episode for run in runs for key in keys]
    return statistics.mean([one.usage.n_evaluated + one.usage.n_decoded for one in episodes if one] or [0])


def _rate(rows: Sequence[Sequence[Outcome]], single: Sequence[Sequence[Outcome]], rule: str) -> dict[str, Any]:
    """The accuracy of `rows`, the votes on each question, and its gain over `single`."""
    if not rows:
        return {"accuracy": None, "interval": [0.0, 1.0], "gain": None, "gain_interval": None}
    shares = [_share(row, rule) for row in rows]
    gains = [share - _share(row, rule) for share, row in zip(shares, single, strict=True)]
    accuracy, gain = statistics.mean(shares), statistics.mean(gains)
    half = Z_95 * statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 1.0
    return {
        "accuracy": accuracy,
        "interval": list(wilson_interval(accuracy * len(shares), len(shares))),
        "gain": gain,
        "gain_interval": [gain - half, gain + half],
    }


def _share(outcomes: Sequence[Outcome], rule: str) -> float:
    return statistics.mean(one.right[rule] for one in outcomes)


def write_table(document: Mapping[str, Any]) -> str:
    """The document as a Markdown table, with what it is about below."""
    rules = [key for key in document["votes"][0] if key != "n"]
    head = ["votes", *(name for rule in rules for name in (rule, "95 %", "gain", "95 %"))]
    rows = [[str(one["n"]), *(cell for rule in rules for cell in _cells(one[rule]))] for one in document["votes"]]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    run = document["runs"][0]
    about = (
        f"{run['model']}, SHA-256 {run['model_sha256'][:16]}; {document['n_scorable']} questions, "
        f"seeds {', '.join(str(one['seed']) for one in document['runs'])}; temperature "
        f"{run['settings']['sampling']['temperature']}; {document['n_tokens']:,.0f} tokens an answer."
    )
    return "\n".join([*lines, "", about])


def _cells(rate: Mapping[str, Any]) -> Iterable[str]:
    if rate["accuracy"] is None:
        return "", "", "", ""
    low, high = rate["gain_interval"]
    return (
        f"{rate['accuracy']:.1%}",
        f"{rate['interval'][0]:.1%} to {rate['interval'][1]:.1%}",
        f"{100 * rate['gain']:+.1f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the table on stdout."""
    parser = argparse.ArgumentParser(
        prog="python -P -m sqale_edge.benchmarks.votes",
        description="Accuracy with 1, 2, 4 and 8 votes, out of results files of runs that differ in their seed.",
    )
    parser.add_argument("questions", type=Path, help="the file of questions")
    parser.add_argument(
        "results", type=Path, nargs="+", help="what `sqale-edge eval --output` wrote, one for each seed"
    )
    parser.add_argument("--databases", type=Path, metavar="FOLDER", help="of the questions")
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    given = parser.parse_args(arguments)
    try:
        document = measure_votes(read_questions(given.questions, databases=given.databases), given.results)
    except SqaleEdgeError as error:
        sys.stderr.write(f"Error: {error}. {f'Fix: {error.hint}.' if error.hint else ''}\n")
        return 1
    sys.stdout.write((json.dumps(document) if given.json else write_table(document)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
