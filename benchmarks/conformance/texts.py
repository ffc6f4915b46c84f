"""Our own prompts and turn texts, as they would be for a checkpoint, and the cases in which they are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqale_edge.engine import ModelInfo
from sqale_edge.protocol import BUDGET_KEY, LIMIT_KEY, SYSTEM_KEY, USER_KEY, USER_STYLE_KEY, Protocol, own_system_prompt
from sqale_edge.settings import EpisodeLimits, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqale_edge.convert import TrainingPrompt

    from sqale_edge.engine import Piece

_USER, _END = "<|im_start|>user\n", "<|im_end|>"  # of ChatML, which `Protocol` writes for a model without a template
_QUESTIONS = ("How many customers are there?", 'Which {names} are "odd", 100%?\nList them.')
_QUERY = "SELECT name\nFROM customers\nWHERE city = 'Ghent'"
_OUTPUTS = (("a, b",), ("a, b", "x | y\n1 | None"), ("", "Error: no such table: t.", "a | b"))
ROLES = ("system", "user", "turn", "budget", "limit")
_KEYS = {"system": SYSTEM_KEY, "user": USER_KEY, "budget": BUDGET_KEY, "limit": LIMIT_KEY}


class OwnTexts:
    """What the model would see of us.

    Args:
        prompt: The texts that were read out of the checkpoint's source, without running it.
    """

    def __init__(self, prompt: TrainingPrompt) -> None:
        self._prompt = prompt
        self._protocol = Protocol(_plain_model(prompt.texts))

    def list_cases(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Role, the values that are filled in, and our text."""
        yield "system", {}, self._prompt.texts.get(SYSTEM_KEY, own_system_prompt())
        for question in _QUESTIONS:
            for evidence in (None, "odd means 1, 3, 5"):
                text = _user_message(self._protocol.first_prompt(question, evidence))
                yield "user", {"question": question, "evidence": evidence}, text
        for n_left in range(EpisodeLimits().tool_turns, 0, -1):
            yield "budget", {"n_left": n_left}, self._protocol.budget_line(n_left)
        for query in (_QUERY, None):
            text = self._protocol.limit_message(query, _QUESTIONS[0])
            yield "limit", {"last_query": query, "question": _QUESTIONS[0]}, text
        for outputs in _OUTPUTS:
            yield "turn", self._turn_values(outputs), self._turn(outputs)

    def describe(self, role: str) -> dict[str, Any]:
        """How the source is to be asked for the text of a role: what it is called there, and how it is filled in."""
        name = self._prompt.found.get(_KEYS.get(role, ""))
        return {"name": name, "style": self._prompt.texts.get(USER_STYLE_KEY) if role == "user" else None}

    def _turn_values(self, outputs: Sequence[str]) -> dict[str, Any]:
        values: dict[str, Any] = {"outputs": list(outputs), "n_left": 5}
        return values | {"output": outputs[0]} if len(outputs) == 1 else values

    def _turn(self, outputs: Sequence[str]) -> str:
        pieces = self._protocol.results_turn(outputs, self._protocol.budget_line(5), end_token=None)
        return _user_message(pieces)


def _user_message(pieces: Sequence[Piece]) -> str:
    text = "".join(piece.text for piece in pieces)
    return text.partition(_USER)[2].rpartition(_END)[0]


def _plain_model(texts: Mapping[str, str]) -> ModelInfo:
    """A model that has these texts and no chat template."""
    return ModelInfo(
        name="reference",
        n_ctx=EpisodeLimits().episode_tokens,
        n_vocab=0,
        metadata=dict(texts),
        chat_template=None,
        bos=None,
        eos_text=_END,
        end_tokens=frozenset(),
        think_open=None,
        think_close=None,
        offload="",
        sampling=SamplingSettings(),
    )
