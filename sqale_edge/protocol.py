"""Everything that the model was trained to see: first prompt, tool results, budget line, limit message.

The training texts come out of the GGUF, where the conversion put what it found in the checkpoint's `sqale_agent.py`.
For each text that is missing this module has its own wording, and `Protocol.notes` says so. Untrusted text (questions,
evidence, tool results) is marked as such in the pieces, so that no engine can take it for control tokens.

Source of the shapes: the model cards of trl-lab/qwen3.5-2b-grpo-* and published episodes. Inferred, so kept in one
place each: how several results are numbered (`_number_results`), and how a cut result ends (`clip_outputs`).
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final

from sqale_edge.chat_template import CHATML, cut_template
from sqale_edge.engine import ModelInfo, Piece
from sqale_edge.errors import ModelError
from sqale_edge.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqale_edge.episode import PromptSource

# The keys that the conversion writes (`sqale_edge.convert.training_prompt`), and the fields that a text may have.
SYSTEM_KEY: Final = "sqale.prompt.system"
USER_KEY: Final = "sqale.prompt.user"
USER_STYLE_KEY: Final = "sqale.prompt.user_style"
RESULT_KEY: Final = "sqale.prompt.result"
BUDGET_KEY: Final = "sqale.prompt.budget"
BUDGET_ONE_KEY: Final = "sqale.prompt.budget_one"
LIMIT_KEY: Final = "sqale.prompt.limit"

_OWN_TEXTS: Final = {
    USER_KEY: "Question: {question}\n\nReply 1 is list_tables.",
    RESULT_KEY: "Tool result:",
    BUDGET_KEY: "[{n} tool turns left before you must answer]",
    BUDGET_ONE_KEY: "[{n} tool turn left before you must answer]",
    LIMIT_KEY: (
        "Exploration is over: no more tool calls. Return only the SQL query that answers the question.\n"
        "The last query that executed without error was:\n"
        "{query}\n"
        "Return that query if you are not sure that another one is better.\n"
        "{question}"
    ),
}
_OWN_LIMIT_WITHOUT_QUERY: Final = (
    "Exploration is over: no more tool calls. Return only the SQL query that answers the question, with the names that "
    "the tools showed.\n{question}"
)
_NO_QUERY: Final = "None"


def own_system_prompt() -> str:
    """The instructions for a model that comes without its training prompt."""
    tools = "\n".join(f"- {tool.signature}: {tool.description}" for tool in TOOLS)
    return (
        "You answer a question about a SQLite database that you cannot see. Explore it with tool calls:\n"
        f"{tools}\n\n"
        "Write one tool call per reply, a JSON object and nothing else, and wait for its result.\n"
        'Reply 1: {"tool": "list_tables"}\n'
        'Reply 2: {"tool": "describe_table", "args": {"table_name": "..."}} for a table of the list that the question '
        "is about; one such reply for each of them.\n"
        'Then: {"tool": "distinct_values", "args": {"table_name": "...", "column_name": "..."}} if the question names '
        "a value.\n"
        'Then: {"tool": "run_query", "args": {"sql": "SELECT ..."}} to try the query, corrected until it runs.\n'
        'Last: {"tool": "submit_sql", "args": {"sql": "SELECT ..."}} with the query that run_query has shown to be '
        "right.\n\n"
        "Use only tables and columns that a result has shown. Join only the tables that the question needs. "
        "Select exactly the columns that are asked for, and all rows: no LIMIT that the question does not ask for."
    )


class Protocol:
    """The texts of one model, ready to be tokenised.

    Attributes:
        source: `training` if the model brings its system and user texts, else `own`.
        notes: What a person should know about missing texts; at most a few lines.
        thinks: Each turn starts inside an open `<think>`.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._texts = {key: info.metadata.get(key, own) for key, own in _OWN_TEXTS.items()}
        self._has_own_limit = LIMIT_KEY not in info.metadata
        is_plain = info.metadata.get(USER_STYLE_KEY) == "plain"
        self._around_question = _split_at_question(self._texts[USER_KEY], is_plain=is_plain)
        missing = [key for key in (SYSTEM_KEY, *_OWN_TEXTS) if key not in info.metadata]
        self.source: PromptSource = "own" if {SYSTEM_KEY, USER_KEY} & set(missing) else "training"
        notes = []
        if self.source == "own":
            notes.append("the model file brings no training prompt: it gets our own instructions, and may answer worse")
        elif missing:
            names = ", ".join(key.removeprefix("sqale.prompt.") for key in missing)
            notes.append(f"the model file lacks some training texts ({names}): our own wording is used for them")
        if info.chat_template is None:
            notes.append("the model file has no chat template: ChatML is used")
        self.notes = tuple(notes)
        system = info.metadata.get(SYSTEM_KEY, own_system_prompt())
        template = info.chat_template or CHATML
        # Some models have the tokens in their vocabulary, but were trained not to think: their templates do not know
        # them.
        can_think = info.thinks and "<think>" in template
        self._chat = cut_template(template, system, can_think=can_think, eos=info.eos_text)
        self.thinks = self._chat.thinks

    def first_prompt(self, question: str, evidence: str | None = None) -> list[Piece]:
        """The prompt that opens an episode, up to where the model starts to write."""
        asked = (
            question.strip()
            if not evidence or not evidence.strip()
            else f"{question.strip()}, evidence: {evidence.strip()}"
        )
        before, *others = self._around_question
        pieces = [Piece(self._chat.before_user + before, trusted=True)]
        for text in others:
            pieces += [Piece(asked, trusted=False), Piece(text, trusted=True)]
        return [*pieces, Piece(self._chat.after_user, trusted=True)]

    def results_turn(self, outputs: Sequence[str], ending: str, *, end_token: str | None) -> list[Piece]:
        """The user turn with tool results, from the end of the model's turn to where it starts to write again.

        Args:
            outputs: What the tools answered, in the order of the calls.
            ending: The budget line or the limit message.
            end_token: The literal of the end token that the model wrote itself; None if it was cut off before.
        """
        between = self._chat.between
        if end_token:
            blanks, found, rest = between.partition(end_token)
            between = rest if found and not blanks.strip() else between
        pieces = [Piece(between, trusted=True)]
        for number, output in enumerate(outputs, 1):
            pieces += [
                Piece(self._number_results(number, len(outputs)), trusted=True),
                Piece(f"{output}\n\n", trusted=False),
            ]
        return [*pieces, Piece(ending, trusted=False), Piece(self._chat.after_user, trusted=True)]

    def _number_results(self, number: int, n_results: int) -> str:
        head = self._texts[RESULT_KEY]
        if n_results == 1:
            return f"{head}\n"
        return f"{head.removesuffix(':')} ({number}/{n_results}):\n"

    def budget_line(self, n_left: int) -> str:
        """How many tool turns are left."""
        return _fill(self._texts[BUDGET_ONE_KEY if n_left == 1 else BUDGET_KEY], n=str(n_left))

    def limit_message(self, last_query: str | None, question: str) -> str:
        """Exploration is over; `last_query` is the last one that ran without an error."""
        is_own_without_query = last_query is None and self._has_own_limit
        template = _OWN_LIMIT_WITHOUT_QUERY if is_own_without_query else self._texts[LIMIT_KEY]
        return _fill(template, query=last_query or _NO_QUERY, question=question)


def _split_at_question(template: str, *, is_plain: bool) -> list[str]:
    """What stands around each `{question}` in the user message; it comes last where there is none."""
    if is_plain:
        parts = template.split("{question}")
    else:
        parts = [""]
        for literal, field, _, _ in _parse_format(template):
            parts[-1] += literal
            parts += [""] * (field == "question")
    return parts if len(parts) > 1 else [*parts, ""]


def _parse_format(template: str) -> Iterable[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(template))
    except ValueError as error:
        raise ModelError(
            f"the model's text around questions cannot be used: {error}",
            hint="the model file may be damaged: convert it again",
        ) from None


def _fill(template: str, **fields: str) -> str:
    """`template` with `{field}` replaced, in one pass: what a field brings along is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)


def clip_outputs(outputs: Sequence[str], max_chars: int | None = None, n_shown: int | None = None) -> list[str]:
    """The first `n_shown` of `outputs`, each cut to `max_chars`; whatever is missing is counted in a line."""
    clipped = []
    for output in outputs[:n_shown]:
        n_missing = 0 if max_chars is None else len(output) - max_chars
        clipped.append(output if n_missing <= 0 else f"{output[:max_chars]}\n... ({n_missing} more characters)")
    if len(clipped) < len(outputs):
        clipped[-1] += f"\n... ({len(outputs) - len(clipped)} more results)"
    return clipped
