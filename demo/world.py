"""The description of a populated SQLite database: tables, columns, rows, and what people call them."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["id", "name", "key", "int", "real", "category", "city", "date"]
Cell = str | int | float | None


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name in SQL, and the words that a person says for it."""

    name: str
    words: str
    kind: Kind
    parent: int | None = None  # for a key: the position of the table it points to
    has_nulls: bool = False
    spoken: dict[str, str] = dataclasses.field(default_factory=dict)  # stored value -> how people write it


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: its name in SQL, the words for one and for several of what it holds, and its rows."""

    name: str
    one: str
    many: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def of_kind(self, *kinds: Kind) -> list[Column]:
        """Its columns of these kinds."""
        return [column for column in self.columns if column.kind in kinds]

    def values(self, column: Column) -> list[Cell]:
        """The column's values that are not NULL."""
        place = self.columns.index(column)
        return [row[place] for row in self.rows if row[place] is not None]

    @property
    def label(self) -> Column:
        """What its rows are called by: a name, or else the id."""
        return next((column for column in self.columns if column.kind == "name"), self.columns[0])

    @property
    def id(self) -> Column:
        """Its primary key."""
        return self.columns[0]


@dataclasses.dataclass(frozen=True)
class World:
    """A database, described."""

    tables: tuple[Table, ...]
    has_key_clauses: bool  # foreign keys stand at the end of the statement, not beside their column

    def write(self, path: Path) -> None:
        """Write the database to a new file."""
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        self.fill(connection)
        connection.execute("COMMIT")
        connection.close()

    def fill(self, connection: sqlite3.Connection) -> None:
        """Make the tables in an empty database."""
        for table in self.tables:
            connection.execute(self.statement(table))
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)

    def statement(self, table: Table) -> str:
        """The CREATE TABLE statement."""
        parts, clauses = [], []
        types = {"id": "INTEGER PRIMARY KEY", "key": "INTEGER", "int": "INTEGER", "real": "REAL"}
        for column in table.columns:
            part = f"{column.name} {types.get(column.kind, 'TEXT')}"
            if column.parent is not None:
                parent = self.tables[column.parent]
                target = f"REFERENCES {parent.name}({parent.id.name})"
                part += "" if self.has_key_clauses else f" {target}"
                clauses += [f"FOREIGN KEY ({column.name}) {target}"] if self.has_key_clauses else []
            parts.append(part)
        return f"CREATE TABLE {table.name} ({', '.join(parts + clauses)})"
