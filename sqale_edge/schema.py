"""What a database holds: names, DDL, foreign keys, and the shortest way from one table to another."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
from typing import TYPE_CHECKING, Literal, Self

from sqale_edge.sql_text import unquote_name

if TYPE_CHECKING:
    from sqale_edge.database import Database

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


_SCHEMA_TABLE = "(type text, name text, tbl_name text, rootpage integer, sql text)"
_SCHEMA_TABLES = tuple(Relation(name, "internal", f"CREATE TABLE {name}{_SCHEMA_TABLE}") for name in ("sqlite_master", "sqlite_schema"))


class Schema:
    """The schema of a database at one moment; `Schema.of` reads it again when it has changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        shadows = {row[0] for row in database.read("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'")}
        rows = database.read("SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
        self.relations = tuple(Relation(str(n), _kind(str(n), str(t), str(s), n in shadows), str(s)) for n, t, s in rows)
        everything = (*_SCHEMA_TABLES, *self.relations)
        self._by_name = {relation.name: relation for relation in everything}
        self._by_folded = {relation.name.lower(): relation for relation in reversed(everything)}

    @property
    def names(self) -> tuple[str, ...]:
        """Tables and views in the order of their creation, without SQLite's own and without shadow tables."""
        return tuple(relation.name for relation in self.relations if relation.kind not in ("shadow", "internal"))

    def find(self, name: str) -> Relation | None:
        """The relation that `name` means, also in other case, quoted, with `main.` before or `;` behind it."""
        for spelling in spellings(name):
            found = self._by_name.get(spelling) or self._by_folded.get(spelling.lower())
            if found:
                return found
        return None

    def close_names(self, name: str) -> list[str]:
        """Up to three names that resemble `name`, the closest first."""
        return close_matches(name, self.names)

    def columns(self, relation: Relation) -> tuple[str, ...]:
        """The names of its columns, hidden ones left out. Raises QueryError for a broken view or a missing module."""
        rows = self._database.read("SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 1", (relation.name,))
        return tuple(str(row[0]) for row in rows)

    @functools.cached_property
    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """Every declared foreign key, tables and keys in the order of their creation; a composite one is one edge."""
        rows = self._database.read(
            'SELECT m.name, f.id, f."table", f."from", f."to" FROM sqlite_master m, pragma_foreign_key_list(m.name) f '
            "WHERE m.type = 'table' AND m.sql NOT LIKE 'create virtual%' ORDER BY m.rowid, f.id DESC, f.seq"
        )
        grouped: dict[tuple[str, int], list[tuple[str, str, str | None]]] = {}
        for child, number, parent, column, parent_column in rows:
            grouped.setdefault((child, number), []).append((parent, column, parent_column))  # type: ignore[arg-type]
        return tuple(self._foreign_key(child, pairs) for (child, _), pairs in grouped.items())

    def _foreign_key(self, child: str, pairs: list[tuple[str, str, str | None]]) -> ForeignKey:
        parent = self.find(pairs[0][0])
        named = tuple(name for *_, name in pairs if name is not None)
        if parent is None:
            return ForeignKey(child, tuple(pair[1] for pair in pairs), pairs[0][0], named)
        actual = {name.lower(): name for name in self.columns(parent)} if parent.kind == "table" else {}
        if not named:
            rows = self._database.read("SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (parent.name,))
            named = tuple(str(row[0]) for row in rows)
        columns = tuple(actual.get(name.lower(), name) for name in named)
        return ForeignKey(child, tuple(pair[1] for pair in pairs), parent.name, columns)

    @functools.cached_property
    def _neighbours(self) -> dict[str, dict[str, list[ForeignKey]]]:
        neighbours: dict[str, dict[str, list[ForeignKey]]] = collections.defaultdict(dict)
        for key in self.foreign_keys:
            if key.parent in self._by_name and key.parent != key.child:
                neighbours[key.child].setdefault(key.parent, []).append(key)
                neighbours[key.parent].setdefault(key.child, []).append(key)
        return neighbours

    def join_path(self, start: str, end: str) -> list[str] | None:
        """The names on a shortest way from `start` to `end` along foreign keys, both ends included; None if there is none."""
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

    @classmethod
    def of(cls, database: Database) -> Self:
        """The schema as it is now."""
        return cls(database)


def spellings(name: str) -> list[str]:
    """What `name` may stand for, likeliest first: itself, then without blanks, `;`, `main.` and quotes around it."""
    stripped = name.strip().rstrip(";").strip()
    without_schema = stripped[5:] if stripped.lower().startswith("main.") else stripped
    return [name, stripped, unquote_name(stripped), unquote_name(without_schema)]


def close_matches(name: str, names: tuple[str, ...]) -> list[str]:
    """Up to three of `names` that resemble `name`, the closest first."""
    by_folded = {known.lower(): known for known in names}
    return [by_folded[match] for match in difflib.get_close_matches(name.lower(), by_folded, n=3, cutoff=0.6)]


def _kind(name: str, kind: str, sql: str, is_shadow: bool) -> Kind:
    if kind == "view":
        return "view"
    if name.lower().startswith("sqlite_"):
        return "internal"
    if is_shadow:
        return "shadow"
    return "virtual" if sql.lower().startswith("create virtual") else "table"
