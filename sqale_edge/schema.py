"""What a database holds: names, DDL, foreign keys, and the shortest way from one table to another."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import heapq
import itertools
from typing import TYPE_CHECKING, Literal

from sqale_edge.sql_text import tokens, unquote_name, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.database import Database
    from sqale_edge.episode import Row

Kind = Literal["table", "view", "virtual", "shadow", "internal"]


@dataclasses.dataclass(frozen=True)
class ForeignKey:
    """One edge: `columns` of `child` refer to `parent_columns` of `parent`, which need not exist."""

    child: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Relation:
    """A table or view: its name as stored, its kind and its CREATE statement."""

    name: str
    kind: Kind
    sql: str


_SCHEMA_COLUMNS = "(type text, name text, tbl_name text, rootpage integer, sql text)"
_SCHEMA_TABLES = tuple(
    Relation(name, "internal", f"CREATE TABLE {name}{_SCHEMA_COLUMNS}") for name in ("sqlite_master", "sqlite_schema")
)

# Which relations are listed, and in which order. The reference's choice is unknown, so it is made here and nowhere
# else.
LISTED_KINDS: tuple[Kind, ...] = ("table", "view", "virtual")
LISTING_ORDER = "rowid"


_REAL_TABLES = "(SELECT rowid, name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'create virtual%') m"


class Schema:
    """The schema of a database at one moment. Foreign keys and columns are read when they are first asked for.

    Args:
        should_stop: As for `Database.query`, for all that is read.
    """

    def __init__(self, database: Database, *, should_stop: Callable[[], bool] | None = None) -> None:
        self._read = functools.partial(database.read, should_stop=should_stop)
        rows = self._read(
            f"SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY {LISTING_ORDER}"
        )
        shadows = _shadow_names(rows)
        self.relations = tuple(_relation(str(name), str(type_), str(sql or ""), shadows) for name, type_, sql in rows)
        self.names = tuple(relation.name for relation in self.relations if relation.kind in LISTED_KINDS)
        everything = (*self.relations, *_SCHEMA_TABLES)
        self._by_name = {relation.name: relation for relation in everything}
        self._by_sqlite_key = {_sqlite_key(relation.name): relation for relation in reversed(everything)}
        self._by_key = {_key(relation.name): relation for relation in reversed(everything)}

    def find(self, name: str) -> Relation | None:
        """The relation that `name` means, also in other case, quoted, with `main.` before or `;` behind it."""
        return self._by_name.get(name) or next((self._by_key[key] for key in _keys(name) if key in self._by_key), None)

    def is_missing(self, name: str) -> bool:
        """No relation has exactly this name."""
        return name not in self._by_name

    def columns(self, relation: Relation) -> tuple[str, ...]:
        """The names of its columns, hidden ones left out. Raises QueryError for a broken view or a missing module."""
        rows = self._read("SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 1", (relation.name,))
        return tuple(str(row[0]) for row in rows)

    @functools.cached_property
    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """Every declared foreign key, tables and keys in the order of their creation; a composite one is one edge."""
        rows = self._read(
            f'SELECT m.name, f.id, f."table", f."from", f."to" FROM {_REAL_TABLES}, pragma_foreign_key_list(m.name) f '
            "ORDER BY m.rowid, f.id DESC, f.seq"
        )
        columns = self._columns_of_tables()
        keys = []
        for _, pairs in itertools.groupby(rows, key=lambda row: row[:2]):
            children, _, parents, names, parent_names = zip(*pairs, strict=True)
            named = [str(name) for name in parent_names if name is not None]
            parent = self._by_sqlite_key.get(_sqlite_key(parents[0]))
            if parent:
                known = columns.get(parent.name, ())
                actual = {_sqlite_key(name): name for name, _ in known}
                primary = [name for name, position in known if position]
                named = [actual.get(_sqlite_key(name), name) for name in named or primary]
            keys.append(ForeignKey(children[0], names, parent.name if parent else parents[0], tuple(named)))
        return tuple(keys)

    def _columns_of_tables(self) -> dict[str, list[tuple[str, int]]]:
        """For each table its columns and their positions in the primary key, in the order of these."""
        rows = self._read(
            f"SELECT m.name, x.name, x.pk FROM {_REAL_TABLES}, pragma_table_xinfo(m.name) x ORDER BY m.rowid, x.pk"
        )
        columns: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
        for table, name, position in rows:
            columns[str(table)].append((str(name), int(position or 0)))
        return columns

    @functools.cached_property
    def _neighbours(self) -> dict[str, dict[str, list[ForeignKey]]]:
        neighbours: dict[str, dict[str, list[ForeignKey]]] = collections.defaultdict(dict)
        for key in self.foreign_keys:
            if key.parent in self._by_name and key.parent != key.child:
                neighbours[key.child].setdefault(key.parent, []).append(key)
                neighbours[key.parent].setdefault(key.child, []).append(key)
        return neighbours

    def join_path(self, start: str, end: str) -> list[str] | None:
        """The names on a shortest way from `start` to `end` along foreign keys, with both ends, or None."""
        came_from = {start: start}
        queue = collections.deque([start])
        while queue and end not in came_from:
            name = queue.popleft()
            for neighbour in self._neighbours.get(name, {}):
                if neighbour not in came_from:
                    came_from[neighbour] = name
                    queue.append(neighbour)
        if end not in came_from:
            return None
        path = [end]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return path[::-1]

    def keys_between(self, one: str, other: str) -> list[ForeignKey]:
        """The foreign keys from either to the other."""
        return self._neighbours.get(one, {}).get(other, [])


def find_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that `name` means, also in other case or quoted."""
    if name in names:
        return name
    by_key = {_key(known): known for known in reversed(names)}
    return next((by_key[key] for key in _keys(name) if key in by_key), None)


def close_names(name: str, names: Sequence[str]) -> list[str]:
    """Up to three of `names` that resemble `name`, the closest first."""
    by_key = {_key(known): known for known in names if len(known) <= _LONGEST_COMPARED}
    wanted = _key(name[:_LONGEST_COMPARED])
    candidates = list(by_key)
    if len(candidates) > _MOST_COMPARED:  # those that share most pairs of letters
        pairs = _pairs(wanted)
        candidates = heapq.nlargest(_MOST_COMPARED, candidates, key=lambda key: len(pairs & _pairs(key)))
    return [by_key[match] for match in difflib.get_close_matches(wanted, candidates, n=3, cutoff=0.6)]


_LONGEST_COMPARED = 100
_MOST_COMPARED = 300


def _pairs(key: str) -> set[str]:
    return {key[i : i + 2] for i in range(len(key) - 1)}


def _key(name: str) -> str:
    """Equal for names that mean the same: without case, and as they look on one line."""
    return visible(name).lower()


def _sqlite_key(name: str) -> str:
    """Equal for names that are the same one to SQLite, which ignores the case of ASCII letters."""
    return "".join(character.lower() if character.isascii() else character for character in name)


def _keys(name: str) -> list[str]:
    """What `name` may stand for, likeliest first: itself; without blanks, `;`, quotes and `main.` around it."""
    stripped = name.strip().rstrip(";").strip()
    without_schema = stripped[5:] if stripped.lower().startswith("main.") else stripped
    return [
        _key(spelling)
        for spelling in (name, stripped, unquote_name(stripped), without_schema, unquote_name(without_schema))
    ]


# The tables in which a virtual table of these modules keeps its data: its own name, `_`, and one of these. SQLite goes
# by the names too, where it has the module (and from version 3.37 on tells).
_RTREE_SHADOWS = ("node", "parent", "rowid")
_FTS_SHADOWS = ("content", "segments", "segdir", "docsize", "stat")
_SHADOWS = {
    "fts3": _FTS_SHADOWS,
    "fts4": _FTS_SHADOWS,
    "fts5": ("data", "idx", "content", "docsize", "config"),
    "rtree": _RTREE_SHADOWS,
    "rtree_i32": _RTREE_SHADOWS,
    "geopoly": _RTREE_SHADOWS,
}


def _shadow_names(rows: list[Row]) -> set[str]:
    """The names of shadow tables, as keys; `rows` are (name, type, sql)."""
    return {
        _sqlite_key(f"{name!s}_{suffix}") for name, _, sql in rows for suffix in _SHADOWS.get(_module(str(sql)), ())
    }


def _module(sql: str) -> str:
    """The module of a virtual table; empty for other tables and views."""
    if not sql.lower().startswith("create virtual"):
        return ""
    names = [(kind, text.lower()) for kind, text in tokens(sql) if kind in ("word", "quoted")]
    using = names.index(("word", "using")) if ("word", "using") in names[:-1] else -1
    return unquote_name(names[using + 1][1]) if using >= 0 else "unknown"


def _relation(name: str, type_: str, sql: str, shadows: set[str]) -> Relation:
    kind: Kind = "virtual" if _module(sql) else "table"
    if type_ == "view":
        kind = "view"
    elif name.lower().startswith("sqlite_"):
        kind = "internal"
    elif _sqlite_key(name) in shadows:
        kind = "shadow"
    return Relation(name, kind, sql)
