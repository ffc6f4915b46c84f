"""An evaluation as a folder for people and programs: `report.html`, `report.md`, `report.json`.

The HTML file is whole in itself: style and drawings are in it, and it loads nothing. What comes from questions,
databases and models is text wherever it stands: HTML escapes it, Markdown escapes it, and controls are shown, not sent.

The same evaluation makes the same files; they hold no date.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from sqale_edge.sql_text import visible

from .charts import accuracy_chart
from .failures import FAILURES
from .report_folder import write_folder
from .report_parts import headline, make_parts
from .traces import list_differences, make_traces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqale_edge.episode import Cell

    from .question import Question
    from .results_file import Answer
    from .scoring import Outcome

_MAX_SHOWN = 200  # questions of each file, one by one
_CELL_CHARS = 200


@dataclasses.dataclass(frozen=True)
class Judged:
    """A file and what became of it.

    Attributes:
        document: Its JSON document.
        outcomes: For each question.
        sql: Its SQL by the ids of questions.
        answers: A model's answers by the ids of questions; empty for a file of predictions.
    """

    document: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    sql: Mapping[str, str | None]
    answers: Mapping[str, Answer]


def write_report(
    folder: str | Path,
    questions: Sequence[Question],
    judged: Sequence[Judged],
    rules: Sequence[str],
    document: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write the report of one file, or of two that are compared.

    Args:
        folder: As for `report_folder.check_folder`.
        questions: Those of the outcomes, in the same order.
        judged: The file, or A and B.
        rules: All by which they were judged.
        document: What `--json` prints; of two files it has `mcnemar`.
        overwrite: Replace a report that is there.

    Raises:
        BenchmarkError: The folder is not one for a report, or cannot be written.
    """
    view = _make_view(questions, judged, rules, document)
    write_folder(
        Path(folder),
        {
            "report.html": _render("report.html.jinja", view),
            "report.md": _render("report.md.jinja", view),
            "report.json": json.dumps(document, indent=2) + "\n",
        },
        overwrite=overwrite,
    )


def _make_view(
    questions: Sequence[Question], judged: Sequence[Judged], rules: Sequence[str], document: Mapping[str, Any]
) -> dict[str, Any]:
    """What the templates show."""
    names = ("",) if len(judged) == 1 else ("A", "B")
    files = []
    for name, one in zip(names, judged, strict=True):
        prefix = f"{name.lower()}-" if name else ""
        traces = list(make_traces(questions, one.outcomes, one.answers))
        kinds = {kind: [trace for trace in traces[:_MAX_SHOWN] if trace.kind == kind] for kind in FAILURES}
        files.append(
            {
                "name": name,
                "file": one.document["file"],
                "headline": headline(one.document),
                "parts": make_parts(one.document, rules, prefix),
                "traces": {kind.replace("_", " "): some for kind, some in kinds.items() if some},
                "n_traces": len(traces),
                "has_episodes": bool(one.answers),
                "prefix": prefix,
            }
        )
    differences, both = [], None
    if len(judged) == 2:
        a, b = judged
        differences = list(list_differences(questions, (a.outcomes, b.outcomes), (a.sql, b.sql)))
        if n := a.document["n_scorable"]:
            accuracies = {
                rule: {"n": n, "A": a.document[rule]["accuracy"], "B": b.document[rule]["accuracy"]} for rule in rules
            }
            both = accuracy_chart("both", "A and B by each rule", accuracies, ("A", "B"))
    return {
        "questions": judged[0].document["questions"],
        "files": files,
        "tests": document.get("mcnemar"),
        "pairs": document.get("pairs"),
        "both": both,
        "differences": differences[:_MAX_SHOWN],
        "n_differences": len(differences),
        "max_shown": _MAX_SHOWN,
    }


def _render(template: str, view: Mapping[str, Any]) -> str:
    is_html = template.endswith(".html.jinja")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=is_html,  # noqa: S701 - Markdown has an escape of its own
        finalize=_show_lines if is_html else _escape_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": show_cell, "code": fence_code, "as_html": escape_html}
    return environment.get_template(template).render(view)


def _show_lines(value: Any) -> Any:
    """Text with its line ends, and every other control made visible. What is markup already stays."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(visible(line) for line in value.replace("\r\n", "\n").split("\n"))


# What means something inside a line of Markdown; templates never begin a line with a text of others.
_MARKDOWN = re.compile(r"(?=[\\`*_\[\]|~$#@])|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


def _escape_markdown(value: Any) -> Any:
    """Text as one line of Markdown in which nothing of it is markup, nor HTML."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _MARKDOWN.sub(r"\\", html.escape(visible(value), quote=False))


def escape_html(text: str) -> Markup:
    """Text as one line of HTML, for the places in Markdown that are HTML."""
    return Markup(html.escape(visible(text)))  # noqa: S704 - escaped just here


def fence_code(text: str, language: str = "") -> Markup:
    """A block of Markdown code, within a fence that the text cannot end."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{_show_lines(text)}\n{fence}")  # noqa: S704 - inside a fence all is text


def show_cell(cell: Cell) -> str:
    """A cell for a person."""
    if cell is None:
        return "NULL"
    if isinstance(cell, bytes):
        return f"x'{cell[:16].hex()}{'…' if len(cell) > 16 else ''}'"
    text = str(cell)
    return text if len(text) < _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"
