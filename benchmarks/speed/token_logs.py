"""Whole episodes as token logs: what is appended and what is decoded, turn by turn, the same for every contender.

A log is made on the spot for the model at hand: a generated database, the real tools and prompts, and a model whose
decisions are a script (`recording.py`). `LARGE` and `SMALL` have the shapes of real episodes. Their thoughts are filler
of a length that is a guess: published episodes show what the model calls, not how long it thinks on average.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.agent import Agent
from sqale_edge.errors import ContextOverflowError
from sqale_edge.protocol import Protocol
from sqale_edge.settings import EpisodeLimits

from .recording import RecordingEngine, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sqale_edge.engine import Engine

QUESTION = "How many active records of each category were created in 2024, the most frequent category first?"
_THOUGHT = (
    "The question asks for a count for each category, so I need the table that holds the records and the one that "
    "names their categories. I look at what is there before I write a query, and check which column says that a record "
    "is active and which one says when it was created."
)
_ROOM = 16  # tokens: an end token, and what a boundary between texts may change


@dataclasses.dataclass(frozen=True)
class Shape:
    """What an episode looks like.

    Attributes:
        n_tables: Of the database; `list_tables` shows them all.
        thought_words: Of each turn, for a model that thinks.
        turns: The tools that each turn calls.
    """

    name: str
    n_tables: int
    thought_words: int
    turns: tuple[tuple[str, ...], ...]


LARGE = Shape(
    "large",
    239,
    110,
    (
        ("list_tables",),
        ("describe_table",) * 9,
        ("foreign_keys", "foreign_keys", "join_path"),
        ("distinct_values", "distinct_values", "sample_rows"),
        ("run_query", "run_query"),
        ("submit_sql",),
    ),
)
SMALL = Shape("small", 5, 60, (("list_tables", *("describe_table",) * 3), ("run_query",), ("submit_sql",)))
SHAPES = (SMALL, LARGE)


@dataclasses.dataclass(frozen=True)
class LogTurn:
    """One turn: its prompt, and the tokens that are decoded, first without a grammar and then under it."""

    prompt: tuple[int, ...]
    free: tuple[int, ...]
    grammar: tuple[int, ...]

    @property
    def decoded(self) -> tuple[int, ...]:
        """All tokens that are decoded."""
        return self.free + self.grammar


@dataclasses.dataclass(frozen=True)
class TokenLog:
    """An episode, ready to be replayed.

    Attributes:
        n_shared: Tokens at its start that the prompt of any other question has, too.
    """

    name: str
    turns: tuple[LogTurn, ...]
    n_shared: int = 0

    @property
    def n_prompt(self) -> int:
        """Tokens of all prompts and results."""
        return sum(len(turn.prompt) for turn in self.turns)

    @property
    def n_decoded(self) -> int:
        """Tokens that the model writes."""
        return sum(len(turn.decoded) for turn in self.turns)

    @property
    def n_tokens(self) -> int:
        """All of them."""
        return self.n_prompt + self.n_decoded

    def count(self) -> dict[str, Any]:
        """The log in numbers."""
        return {
            "n_turns": len(self.turns),
            "n_prompt": self.n_prompt,
            "n_decoded": self.n_decoded,
            "n_shared": self.n_shared,
            "n_prompt_by_turn": [len(turn.prompt) for turn in self.turns],
            "n_decoded_by_turn": [len(turn.decoded) for turn in self.turns],
        }

    def to_dict(self) -> dict[str, Any]:
        """The log as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The log that `to_dict` made `data` of."""
        turns = tuple(LogTurn(*(tuple(turn[key]) for key in ("prompt", "free", "grammar"))) for turn in data["turns"])
        return cls(data["name"], turns, data["n_shared"])


def make_log(engine: Engine, shape: Shape, folder: Path) -> TokenLog:
    """The log of an episode of this shape, in the tokens of `engine`. Its database is written into `folder`.

    Raises:
        ContextOverflowError: The engine's context is too small for it.
    """
    path = folder / f"{shape.name}.sqlite"
    write_database(path, shape.n_tables)
    calls = [list(map(json.dumps, _calls(shape, turn))) for turn in range(len(shape.turns))]
    thinks = Protocol(engine.info).thinks
    texts = [
        (f"{_think(number, shape.thought_words)}</think>\n\n" if thinks else "") + "\n".join(lines)
        for number, lines in enumerate(calls)
    ]
    call_tokens = max(len(engine.tokenize("\n".join(lines), trusted=False)) for lines in calls) + _ROOM
    limits = EpisodeLimits(
        tool_turns=len(texts),
        turn_tokens=max(len(engine.tokenize(text, trusted=True)) for text in texts) + call_tokens + _ROOM,
        call_tokens=call_tokens,
        final_tokens=1,
        episode_tokens=1 << 20,
    )
    recorder = RecordingEngine(engine, texts)
    episode = Agent(recorder, limits=limits).run(QUESTION, path)
    if [len(turn.results) for turn in episode.turns] != [len(turn) for turn in shape.turns]:
        raise ContextOverflowError(
            f"the {shape.name} episode does not fit into a context of {engine.info.n_ctx} tokens",
            hint="allow a larger one: SQALE_EDGE_N_CTX",
        )
    turns = tuple(_group(recorder.steps))
    other = engine.tokenize_pieces(Protocol(engine.info).first_prompt("Who?"))
    if engine.info.bos is not None and other[:1] != [engine.info.bos]:
        other.insert(0, engine.info.bos)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(turns[0].prompt, other, strict=False))
    # The last one is left out: with another question behind it, it might be a part of a longer token.
    return TokenLog(shape.name, turns, max(0, len(list(same)) - 1))


def _think(turn: int, n_words: int) -> str:
    """Filler in another order each turn: no thought is a copy of an earlier one, which drafts would guess."""
    words = list(itertools.islice(itertools.cycle(_THOUGHT.split()), n_words))
    random.Random(turn).shuffle(words)  # noqa: S311 - the same on every machine
    return " ".join(words)


def _group(steps: Sequence[Step]) -> Iterator[LogTurn]:
    """The steps turn by turn: a prompt, and what is decoded behind it."""
    starts = [place for place, step in enumerate(steps) if step.kind == "prompt"]
    for start, end in itertools.pairwise([*starts, len(steps)]):
        decoded = {
            kind: tuple(token for step in steps[start + 1 : end] if step.kind == kind for token in step.tokens)
            for kind in ("free", "grammar")
        }
        yield LogTurn(tuple(steps[start].tokens), **decoded)


def _calls(shape: Shape, number: int) -> Iterator[dict[str, Any]]:
    """The tool calls of a turn. The tables that a tool is called with are never the same twice in a turn."""
    names = table_names(shape.n_tables)
    for place, tool in enumerate(shape.turns[number]):
        table = names[(place * 7 + number) % len(names)]
        other = names[(place * 7 + number + 3) % len(names)]
        tried = names[place * 7 % len(names)]  # in every turn: what is submitted is what was tried first
        query = (
            f"SELECT category, count(*) AS n FROM {tried} WHERE status = 'active' AND created_at >= '2024-01-01' "
            f"AND amount > {place} GROUP BY category ORDER BY n DESC, category LIMIT 20"
        )
        args = {
            "list_tables": {},
            "describe_table": {"table_name": table},
            "foreign_keys": {"table_name": table},
            "join_path": {"table_a": table, "table_b": other},
            "sample_rows": {"table_name": table, "limit": 3},
            "distinct_values": {"table_name": table, "column_name": "category", "limit": 20},
            "run_query": {"sql": query},
            "submit_sql": {"sql": query},
        }[tool]
        yield {"tool": tool, "args": args} if args else {"tool": tool}


_WHOSE = ("customer", "order", "product", "supplier", "employee", "shipment", "invoice", "project", "account", "ticket")
_WHAT = ("items", "notes", "types", "status_history", "addresses", "payments", "documents", "categories", "regions")
_COLUMNS = (
    "id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT, status TEXT DEFAULT 'active', description TEXT, "
    "amount REAL, quantity INTEGER, created_at TEXT, updated_at TEXT, parent_id INTEGER"
)
_CATEGORIES = ("standard", "premium", "trial", "internal", "archived")


def table_names(n: int) -> list[str]:
    """Names of `n` tables, all different."""
    pairs = [f"{whose}_{what}" for what in _WHAT for whose in _WHOSE]
    return [
        f"{pairs[number % len(pairs)]}{f'_{round_}' if (round_ := number // len(pairs)) else ''}" for number in range(n)
    ]


def write_database(path: Path, n_tables: int) -> None:
    """Write a database of `n_tables` tables of ten columns and eight rows, each with a key to the one before it."""
    names = table_names(n_tables)
    with closing(sqlite3.connect(path)) as connection, connection:
        for place, name in enumerate(names):
            parent = names[max(0, place - 1)]
            connection.execute(f"CREATE TABLE {name} ({_COLUMNS}, FOREIGN KEY (parent_id) REFERENCES {parent} (id))")
            connection.executemany(
                f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_make_row(name, number) for number in range(1, 9)],
            )


def _make_row(table: str, number: int) -> tuple[str | int | float, ...]:
    """Row `number` of a table, from 1."""
    about = f"{table} {number}", _CATEGORIES[number % len(_CATEGORIES)], "active", f"row {number} of {table}"
    return number, *about, 12.5 * number, number, f"2024-0{number}-15", f"2024-0{number}-16", max(1, number - 1)
