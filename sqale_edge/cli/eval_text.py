"""The report of `sqale-edge eval` for a person at a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from sqale_edge.cli.tables import make_table, render_table
from sqale_edge.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

_UNFOLDED = 1_000  # characters


def show_document(document: dict[str, Any], rules: Sequence[str]) -> list[str]:
    """The report of one file of predictions for a person."""
    unscorable = {state: n for state, n in document["gold"].items() if state != "scorable"}
    lines = [f"{document['file']}: {document['n_scorable']} of {document['n']} questions can be scored"]
    if unscorable:
        lines.append(f"  not: {list_counts(unscorable)}")
    lines.append(f"  predictions: {list_counts(document['predictions']) or 'none'}")
    if document["n_unknown"]:
        lines.append(f"  {document['n_unknown']} predictions are for no question here")
    table = _make_table("rule", "right", "accuracy", "95 % interval", "of all")
    for rule in rules:
        rate = document[rule]
        low, high = rate["interval"]
        table.add_row(
            rule,
            str(rate["n_right"]),
            _percent(rate["accuracy"]),
            f"{low:.1%} to {high:.1%}",
            _percent(rate["accuracy_of_all"]),
        )
    parts = ["\n".join(map(printable, lines)), render_table(table, _UNFOLDED)]
    for key, title in (("by_difficulty", "difficulty"), ("by_n_tables", "tables")):
        if len(document[key]) > 1:
            table = _make_table(title, "n", *rules)
            for name, counts in document[key].items():
                table.add_row(Text(printable(name)), str(counts["n"]), *(_percent(counts[rule]) for rule in rules))
            parts.append(render_table(table, _UNFOLDED))
    parts += [
        f"{rule}: reliability " + ", ".join(f"RS({name}) {value:.1%}" for name, value in scores.items())
        for rule in rules
        if (scores := document[rule].get("reliability"))
    ]
    if document["failures"]:
        failures = sorted(document["failures"].items(), key=lambda item: -item[1])
        parts.append(f"wrong: {list_counts(dict(failures))}")
    return parts + ([_show_analysis(document["analysis"])] if "analysis" in document else [])


def _show_analysis(analysis: dict[str, Any]) -> str:
    """How a model worked, in a few lines."""
    found = [
        f"gold {what} {_percent(counts['share'])} of {counts['n']}"
        for what, counts in (
            ("tables opened", analysis["gold_tables"]),
            ("values seen", analysis["gold_literals"]),
        )
    ]
    ends = {name: counts["n"] for name, counts in analysis["ended_by"].items()}
    lines = [", ".join(found), f"ended by: {list_counts(ends) or '-'}"]
    if analysis["n_episodes"]:
        evaluated, decoded = (analysis["tokens"][name]["mean"] for name in ("evaluated", "decoded"))
        tflop = analysis["tflop"]["mean"]
        cost = "" if tflop is None else f", {tflop:.3g} TFLOP"
        lines.append(
            f"a question: {analysis['turns']['mean']:.1f} turns, {evaluated:,.0f} tokens evaluated, {decoded:,.0f} "
            f"decoded{cost}"
        )
    return "\n".join(lines)


def show_test(tests: dict[str, dict[str, Any]], pairs: dict[str, int]) -> str:
    """McNemar's test for each rule, and which questions it leaves out."""
    table = _make_table("rule", "both right", "only A", "only B", "neither", "McNemar's p")
    for rule, test in tests.items():
        counts = [str(test[name]) for name in ("both", "only_a", "only_b", "neither")]
        table.add_row(rule, *counts, f"{test['p']:.4f}")
    left_out = list_counts({name: n for name, n in pairs.items() if n and name != "n"})
    lines = [f"left out, as they are not in both files: {left_out}"] * bool(left_out)
    return "\n".join([f"A and B on the {pairs['n']} questions that both have", *lines, render_table(table, _UNFOLDED)])


def list_counts(counts: dict[str, int]) -> str:
    """`3 ran, 1 no sql`."""
    return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _make_table(first: str, *others: str) -> Table:
    table = make_table()
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
