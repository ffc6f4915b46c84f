"""What a statement rests on: the tables that it reads, and the values that it compares with.

SQLite says itself which tables those are, while it compiles the statement: aliases, WITH tables and subqueries are no
tables, and a table that a view reads is one.

Not told apart: a WITH table that has the name of a real view; and, from a table that the statement names, one that
only a view reads and whose name is another word of the statement.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqale_edge.errors import DatabaseOpenError, QueryError

from .databases import reason
from .literals import find_literals
from .statements import mentioned_names, scan

if TYPE_CHECKING:
    from .databases import OpenDatabase
    from .literals import SqlLiteral


@dataclasses.dataclass(frozen=True)
class Sources:
    """What one statement rests on. Names are those of the schema.

    Attributes:
        tables: What is read in the end: tables, no views.
        named: The tables and views that the statement itself names, sorted.
        literals: What it compares with; see `literals`.
    """

    tables: frozenset[str] = frozenset()
    named: tuple[str, ...] = ()
    literals: tuple[SqlLiteral, ...] = ()


def find_sources(sql: str, database: OpenDatabase) -> Sources:
    """What `sql` rests on; nothing if it cannot be compiled. Raises QueryError, kind `interrupted`."""
    try:
        reads = database.find_reads(sql)
        texts = _compiled_texts(sql, database) if '"' in sql else frozenset()
    except (QueryError, DatabaseOpenError) as error:
        reason(error)
        return Sources()
    find = database.schema.find
    relations = [relation for name, _ in reads if (relation := find(name))]
    views = [view for _, within in reads if within and (view := find(within)) and view.kind == "view"]
    known = {one.name: one for one in (*relations, *views) if one.kind != "internal"}
    mentioned = mentioned_names(scan(sql))
    return Sources(
        tables=frozenset(name for name, relation in known.items() if relation.kind != "view"),
        named=tuple(sorted(name for name in known if name.lower() in mentioned)),
        literals=find_literals(sql, texts),
    )


def _compiled_texts(sql: str, database: OpenDatabase) -> frozenset[str]:
    """The texts in the compiled statement. What stands between double quotes is one if SQLite knows no such name."""
    table = database.query(f"EXPLAIN {sql}")
    opcode, text = table.columns.index("opcode"), table.columns.index("p4")
    return frozenset(str(row[text]) for row in table.rows if row[opcode] in ("String", "String8"))
