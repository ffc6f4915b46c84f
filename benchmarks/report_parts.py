"""The figures of an evaluation as titled parts of text, tables and charts, made of its JSON document alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .charts import Chart, accuracy_chart, clip, count_chart, percent, show_interval
from .failures import FAILURES
from .published import BENCHMARKS, MODELS, N_QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Document = Mapping[str, Any]

_UNSCORED = 50  # are listed one by one
_RULES = {
    "bird": "the same rows as a set, as BIRD's own script compares",
    "strict": "the same rows, each as often, in order where the question's gold orders them; rounding is forgiven",
    "spider": "Spider's own: columns in any order",
    "ehrsql": "EHRSQL's own of 2023: the first column, as text",
    "ehrsql2024": "EHRSQL's own of 2024: the first 100 rows, as text, rounded",
    "spider2": "Spider 2's own: its columns are among ours, within 0.01",
}
_GOLD_STATES = {
    "unanswerable": "right is not to answer",
    "no_gold": "the file does not say what is right",
    "no_database": "its database is missing, or cannot be opened",
    "refused": "is not one statement that only reads",
    "failed": "does not run",
    "timeout": "takes too long",
    "too_large": "has too many rows",
    "empty": "has no rows: any query that finds nothing would be right",
    "not_deterministic": "may give other rows when it runs again",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts; the first column names what a row is about. `header` may be empty."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """A titled part of a report. `name` is unique in it; charts repeat what tables say."""

    name: str
    title: str
    text: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    ending: str = ""


def headline(document: Document) -> list[tuple[str, str, str]]:
    """The few figures that come first: value, what it is, and how sure."""
    figures = [
        (percent(document[rule]["accuracy"]), f"right by the {rule} rule", show_interval(document[rule]["interval"]))
        for rule in ("strict", "bird")
    ]
    figures.append((str(document["n_scorable"]), "questions scored", f"of {document['n']}"))
    analysis = document.get("analysis")
    if analysis and analysis["tflop"]["mean"] is not None:
        figures.append((_number(analysis["tflop"]["mean"]), "TFLOP a question", "on average"))
    return figures


def make_parts(document: Document, rules: Sequence[str], prefix: str) -> list[Part]:
    """All parts about one file. Their names begin with `prefix`."""
    parts = [
        _measured(document),
        _accuracy(document, rules, prefix),
        *_groups(document, rules, prefix),
        *_analyses(document, prefix),
        *_failures(document, prefix),
        *_gold(document),
        _published(document),
    ]
    return [dataclasses.replace(part, name=f"{prefix}{part.name}") for part in parts]


def _measured(document: Document) -> Part:
    settings = document["settings"]
    asked = f"the first {document['n']}" if settings["limit"] else f"all {document['n']}"
    if settings["sample"]:
        asked = f"a sample of {document['n']}, seed {settings['seed']}"
    rows = [
        ("questions", f"{document['questions']} (form {document['form']}): {asked}"),
        ("answers", f"{document['file']} ({document['file_form']})"),
    ]
    if document["n_unknown"]:
        rows.append(("of no question", f"{document['n_unknown']} answers"))
    states = ", ".join(f"{n} {_word(state)}" for state, n in document["predictions"].items())
    rows.append(("of the scorable", states or "none"))
    run = document.get("run")
    if run:
        prompt = "the texts it was trained on" if run["prompt"] == "training" else "this package's own texts"
        rows += [
            ("model", run["model"]),
            ("its SHA-256", run["model_sha256"]),
            ("its parameters", f"{run['n_parameters']:,}" if run["n_parameters"] else "not known"),
            ("prompt", f"{run['prompt']}: {prompt}"),
            ("seed", str(run["seed"])),
            *((name, _show_settings(values)) for name, values in run["settings"].items()),
            *(("note", note) for note in document["analysis"]["notes"]),
            ("asked with", f"sqale-edge {run['sqale_edge']}, SQLite {run['sqlite']}"),
        ]
    versions = f"sqale-edge {document['sqale_edge']}, SQLite {document['sqlite']}"
    rows.append(("judged with", f"{versions}, {settings['timeout_s']:g} s for each statement"))
    return Part("measured", "What was measured", tables=(Table((), tuple(rows)),))


def _show_settings(values: Any) -> str:
    if not isinstance(values, dict):
        return str(values)
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _accuracy(document: Document, rules: Sequence[str], prefix: str) -> Part:
    rows = [
        (
            rule,
            str(document[rule]["n_right"]),
            percent(document[rule]["accuracy"]),
            show_interval(document[rule]["interval"]),
            percent(document[rule]["accuracy_of_all"]),
        )
        for rule in rules
    ]
    header = ("rule", "right", "accuracy", "95 % interval (Wilson)", "of all")
    tables = [Table(header, tuple(rows)), Table(("rule", "right is"), tuple((rule, _RULES[rule]) for rule in rules))]
    for rule in rules:
        if scores := document[rule].get("reliability"):
            names = tuple(f"RS({name})" for name in scores)
            tables.append(Table(("reliability", *names), ((rule, *map(percent, scores.values())),)))
            hits = [(name, document[rule][name]) for name in ("answering", "execution")]
            figures = ("precision", "recall", "f1")
            shown = tuple((name, *(percent(hit[figure]) for figure in figures)) for name, hit in hits)
            tables.append(Table((rule, *figures), shown))
    n = document["n_scorable"]
    groups = {rule: {"n": n, "accuracy": document[rule]["accuracy"]} for rule in rules}
    charts = (accuracy_chart(f"{prefix}rules", "By each rule", groups, ["accuracy"]),) if n else ()
    return Part(
        "accuracy",
        "Accuracy",
        f"Of the {n} questions that can be scored. “Of all” is what the benchmarks' own scripts would say.",
        charts,
        tuple(tables),
    )


def _groups(document: Document, rules: Sequence[str], prefix: str) -> Iterator[Part]:
    analysis = document.get("analysis") or {}
    groups = {
        "difficulty": document["by_difficulty"],
        "tables in the database": document["by_n_tables"],
        "how it ended": analysis.get("ended_by"),
        "turns": analysis.get("turns", {}).get("by_n"),
    }
    shown = {title: counts for title, counts in groups.items() if counts}
    if not shown:
        return
    yield Part(
        "groups",
        "Where it is right",
        charts=tuple(
            accuracy_chart(f"{prefix}group-{number}", f"By {title}", counts, ALWAYS)
            for number, (title, counts) in enumerate(shown.items())
        ),
        tables=tuple(_group_table(title, counts, rules) for title, counts in shown.items()),
    )


ALWAYS = ("strict", "bird")


def _group_table(title: str, counts: Mapping[str, Any], rules: Sequence[str]) -> Table:
    rows = (
        (clip(name, 80), str(group["n"]), *(percent(group[rule]) for rule in rules)) for name, group in counts.items()
    )
    return Table((title, "n", *rules), tuple(rows))


def _analyses(document: Document, prefix: str) -> Iterator[Part]:
    analysis = document.get("analysis")
    if not analysis:
        return
    tables, literals = analysis["gold_tables"], analysis["gold_literals"]
    found = Table(
        ("before the answer", "of", "found", "share"),
        (
            _share_row("gold tables opened", tables),
            _share_row("gold values seen", literals),
            _share_row("texts among them", literals["texts"]),
            _share_row("numbers among them", literals["numbers"]),
        ),
    )
    tokens = analysis["tokens"]
    cost = Table(
        ("a question", "mean", "median", "total"),
        (
            _average_row("turns", analysis["turns"]),
            _average_row("tokens in the prompts of all turns", tokens["prompt"]),
            _average_row("tokens evaluated", tokens["evaluated"]),
            _average_row("tokens decoded", tokens["decoded"]),
            _average_row("TFLOP", analysis["tflop"]),
        ),
    )
    tools = Table(
        ("tool", "calls", "in questions", "errors", "error rate"),
        tuple(
            (
                name,
                *(f"{counts[key]:,}" for key in ("n_calls", "n_questions", "n_errors")),
                percent(counts["error_rate"]),
            )
            for name, counts in analysis["tools"].items()
        ),
    )
    charts = [
        accuracy_chart(f"{prefix}found-{number}", title, counts["by_found"], ALWAYS)
        for number, (title, counts) in enumerate((("By gold tables opened", tables), ("By gold values seen", literals)))
        if counts["by_found"]
    ]
    yield Part(
        "analyses",
        "How the model worked",
        f"{analysis['n_episodes']} of {document['n']} questions have an episode. "
        "A table is opened by describe_table or sample_rows. A value is one that the gold compares with. "
        "Both count if the model had read the result before it wrote its answer.",
        tuple(charts),
        (found, cost, *((tools,) if tools.rows else ())),
        "TFLOP = 2 × parameters × (tokens evaluated + tokens decoded) / 10¹². Attention's own share is left out.",
    )


def _share_row(name: str, counts: Mapping[str, Any]) -> tuple[str, ...]:
    return (name, f"{counts['n']:,}", f"{counts['n_found']:,}", percent(counts["share"]))


def _average_row(name: str, average: Mapping[str, float | None]) -> tuple[str, ...]:
    return (name, *(_number(average[key]) for key in ("mean", "median", "total")))


def _number(value: float | None) -> str:
    """With three digits or more, as they are needed."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _failures(document: Document, prefix: str) -> Iterator[Part]:
    failures = document["failures"]
    if not failures:
        return
    ordered = sorted(failures.items(), key=lambda item: -item[1])
    total = sum(failures.values())
    rows = tuple((_word(kind), str(n), percent(n / total), FAILURES[kind]) for kind, n in ordered)
    axis = "questions that are wrong by the strict rule"
    yield Part(
        "failures",
        "What goes wrong",
        f"{total} questions are wrong by the strict rule. Each is of one kind: the first that fits, in the order of "
        "docs/accuracy.md.",
        (count_chart(f"{prefix}failures", "By kind", axis, {_word(kind): n for kind, n in ordered}),),
        (Table(("kind", "n", "share", "what that is"), rows),),
    )


def _gold(document: Document) -> Iterator[Part]:
    unscored = {state: n for state, n in document["gold"].items() if state != "scorable"}
    if not unscored:
        return
    rows = tuple((_word(state), str(n), f"the gold {_GOLD_STATES[state]}") for state, n in unscored.items())
    states = Table(("state", "n", "why"), rows)
    outcomes = [outcome for outcome in document["outcomes"] if outcome["gold"] != "scorable"]
    each = tuple((clip(one["id"], 80), _word(one["gold"]), clip(one["detail"], 300)) for one in outcomes[:_UNSCORED])
    more = len(outcomes) - len(each)
    yield Part(
        "gold",
        "What could not be scored",
        f"{sum(unscored.values())} of {document['n']} questions do not count.",
        tables=(states, Table(("question", "state", "detail"), each)),
        ending=f"{more} more are in report.json." if more else "",
    )


def _published(document: Document) -> Part:
    columns = tuple(f"{name} (n = {N_QUESTIONS})" for name in BENCHMARKS.values())
    rows = [
        (f"published: {model.name}", *(f"{one:.1f} %" for one in model.accuracies), "–", _number(model.tflop))
        for model in MODELS
    ]
    n = document["n_scorable"]
    tflop = (document.get("analysis") or {}).get("tflop", {}).get("mean")
    name = clip((document.get("run") or {}).get("model") or document["file"], 80)
    for rule in ALWAYS:
        rate = document[rule]
        ours = f"{percent(rate['accuracy'])} ({show_interval(rate['interval'])})"
        place = list(BENCHMARKS).index(document["form"]) if document["form"] in BENCHMARKS else len(BENCHMARKS)
        cells = [ours if column == place else "–" for column in range(len(BENCHMARKS) + 1)]
        rows.append((f"this report: {name}, {rule} rule, n = {n}", *cells, _number(tflop)))
    return Part(
        "published",
        "Beside published figures",
        f"The published ones are of {N_QUESTIONS} questions of each benchmark, asked and judged by another program, "
        "the reference harness. They can be compared with this report only where the questions are the same. With that "
        "many, the 95 % interval of a share near the middle is about 11 points wide.",
        tables=(Table(("model", *columns, "these questions", "TFLOP a question"), tuple(rows)),),
    )


def _word(name: str) -> str:
    return name.replace("_", " ")
