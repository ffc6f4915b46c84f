"""The values that flow: tool calls and results, the events of a running episode, the finished episode.

All are frozen, and all have `to_dict` and `from_dict`: the one JSON form of the command line, the history and the
benchmarks. A cell that JSON has no form for becomes an object of one key: `{"base64": "..."}` for bytes,
`{"float": "inf"}` for what is not finite. Text may hold lone surrogates (bytes of a database that are no UTF-8): write
it escaped, as `json.dumps` does by itself.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import types
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

Cell = int | float | str | bytes | None
Row = tuple[Cell, ...]
EndedBy = Literal["submit_sql", "final_turn", "fallback_to_last_working_query", "no_answer", "cancelled", "timeout"]
PromptSource = Literal["training", "own"]


@dataclasses.dataclass(frozen=True)
class _Value:
    def to_dict(self) -> dict[str, Any]:
        """The value as plain JSON types."""
        return {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The value that `to_dict` made `data` of. Raises KeyError, TypeError or ValueError for anything else."""
        hints = get_type_hints(cls)
        return cls(**{field.name: _from_json(hints[field.name], data[field.name]) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class ToolCall(_Value):
    """One `{"tool": name, "args": {...}}` that the model wrote."""

    name: str
    args: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ToolResult(_Value):
    """What a tool answered: text for the model.

    Attributes:
        name: The tool.
        output: At most 60,000 characters.
        is_error: The call failed; `output` says why and what to do.
        truncated: There was more than `output` shows.
    """

    name: str
    output: str
    is_error: bool = False
    truncated: bool = False


@dataclasses.dataclass(frozen=True)
class Usage(_Value):
    """Token counts of one turn, or of all turns.

    Attributes:
        n_prompt: The whole log when the turn starts to decode.
        n_cached: How many of those the KV cache and recurrent state already held.
        n_evaluated: How many were evaluated for this turn: `n_prompt - n_cached`.
        n_decoded: Tokens the model produced, the stop token included.
        n_forced: Tokens put into the model's mouth (a closed thought at its limit).
        n_refused: Tokens for which no candidate passed the grammar and the whole vocabulary was masked.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_evaluated: int = 0
    n_decoded: int = 0
    n_forced: int = 0
    n_refused: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(Usage)))


@dataclasses.dataclass(frozen=True)
class Timing(_Value):
    """Seconds. `ttft_s` counts from the question to the first decoded token, after loading."""

    load_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tool_s: float = 0.0
    total_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Turn(_Value):
    """One decode and its tool results.

    Attributes:
        thought: The text before `</think>`; empty where the model has no thinking.
        text: The text after it: tool calls, or the final answer.
        calls: The calls that `text` holds, in order.
        results: One for each call that was run.
        is_final: No tools were offered any more.
    """

    thought: str
    text: str
    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    is_final: bool
    usage: Usage


@dataclasses.dataclass(frozen=True)
class Episode(_Value):
    """One question, from asking to answer. `episode["sql"]` reads an attribute, as in the reference loop.

    Attributes:
        sql: The answer; None where there is none.
        columns, rows: Its result; empty without one.
        truncated: There were more rows than `max_rows`.
        ended_by: How it ended; see `EndedBy`.
        prompt: Whether the model saw the texts it was trained on, or this package's own.
        notes: What the person should know: texts that were missing, limits that were hit.
        usage: Summed over the turns.
    """

    question: str
    evidence: str | None
    sql: str | None
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    truncated: bool
    ended_by: EndedBy
    prompt: PromptSource
    model: str
    seed: int
    turns: tuple[Turn, ...]
    notes: tuple[str, ...]
    usage: Usage
    timing: Timing

    def __getitem__(self, name: str) -> Any:
        if name not in {field.name for field in dataclasses.fields(self)}:
            raise KeyError(name)
        return getattr(self, name)


@dataclasses.dataclass(frozen=True)
class Event(_Value):
    """Something that happened in turn `turn`, counted from 1.

    `to_dict` adds the kind of the event as `event`, and `Event.from_dict` reads any kind.
    """

    turn: int

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON types."""
        return {"event": type(self).__name__, **super().to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The event that `to_dict` made `data` of."""
        kinds = {kind.__name__: kind for kind in (cls, *cls.__subclasses__())}
        return super(Event, kinds[data["event"]]).from_dict(data)


@dataclasses.dataclass(frozen=True)
class Noted(Event):
    """Something the person should know."""

    text: str


@dataclasses.dataclass(frozen=True)
class Prefilled(Event):
    """The turn's new tokens are evaluated; the counts are those of `Usage`."""

    n_prompt: int
    n_cached: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Thought(Event):
    """The next piece of the model's thought."""

    text: str


@dataclasses.dataclass(frozen=True)
class Wrote(Event):
    """The next piece of what the model writes after its thought."""

    text: str


@dataclasses.dataclass(frozen=True)
class ToolCalled(Event):
    """A tool is about to run."""

    call: ToolCall


@dataclasses.dataclass(frozen=True)
class ToolReturned(Event):
    """The tool's answer; `is_repeat` where an identical call had already been answered."""

    result: ToolResult
    is_repeat: bool


@dataclasses.dataclass(frozen=True)
class TurnEnded(Event):
    """The turn is over; its counts are final."""

    usage: Usage


@dataclasses.dataclass(frozen=True)
class Finished(Event):
    """The last event of every episode."""

    episode: Episode


def _to_json(value: Any) -> Any:
    if isinstance(value, _Value):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _from_json(hint: Any, value: Any) -> Any:
    """`value` as the type that `hint` asks for; the inverse of `_to_json`. Raises TypeError for another type."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if isinstance(hint, type) and issubclass(hint, _Value):
        return hint.from_dict(_require(dict, value))
    if origin is tuple:
        return tuple(_from_json(get_args(hint)[0], item) for item in _require(list, value))
    if origin is dict:
        return {key: _from_json(get_args(hint)[1], item) for key, item in _require(dict, value).items()}
    if origin is Literal and value not in get_args(hint):
        raise TypeError(f"{str(value)[:60]!r} is none of {', '.join(map(repr, get_args(hint)))}")
    kinds = (str,) if origin is Literal else get_args(hint) if origin is types.UnionType else (hint,)
    if isinstance(value, dict) and {bytes, float} & {*kinds}:
        value = base64.b64decode(value["base64"]) if "base64" in value else float(value["float"])
    return _require(kinds, value)


def _require(kinds: type | tuple[type, ...], value: Any) -> Any:
    """`value` if it is of one of these types. True and False are no numbers; a whole number may stand for a float."""
    allowed = {*kinds} if isinstance(kinds, tuple) else {kinds}
    if type(value) not in allowed | ({int} if float in allowed else set()):
        names = " or ".join(sorted(kind.__name__ for kind in allowed))
        raise TypeError(f"{type(value).__name__} in place of {names}")
    return value
