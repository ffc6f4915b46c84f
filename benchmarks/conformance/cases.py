"""What is compared on a database: calls of the tools, made from its own tables and columns."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from sqale_edge.schema import Schema
from sqale_edge.sql_text import quote_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.database import Database

Call = tuple[str, dict[str, Any]]

_MOST_TABLES, _MOST_COLUMNS = 12, 4
_LIMITS = (1, 3, 5, 10)
# What does not depend on the database: how values are written, and what is answered to a statement that fails.
_QUERIES = (
    "SELECT NULL AS none, 1 AS one",
    "SELECT 1.0, 0.1 + 0.2, 1e20, -3, 2.50",
    "SELECT 'a|b', 'a | b', ' x ', ''",
    "SELECT 'two' || char(10) || 'lines' AS text",
    "SELECT x'00ff10' AS bytes",
    "SELECT 'größe 日本' AS text;",
    "select 1 -- a comment",
    "SELECT 1 WHERE 0",
    "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n LIMIT 5",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n LIMIT 8",
    "SELEC 1",
    "SELECT * FROM no_such_table",
    "",
)


def list_calls(database: Database) -> Iterator[Call]:
    """The calls, each tool's together; without `submit_sql`, which ends an episode: nobody reads its answer."""
    schema = Schema(database)
    relations = schema.relations[:_MOST_TABLES]
    names = [relation.name for relation in relations]
    yield "list_tables", {}
    for name in [*names, "no_such_table"]:
        yield "describe_table", {"table_name": name}
    yield "foreign_keys", {}
    for name in names:
        yield "foreign_keys", {"table_name": name}
    for one, other in itertools.islice(itertools.permutations(names, 2), 2 * _MOST_TABLES):
        yield "join_path", {"table_a": one, "table_b": other}
    for name in names:
        yield "sample_rows", {"table_name": name}
        for limit in _LIMITS:
            yield "sample_rows", {"table_name": name, "limit": limit}
    for relation in relations:
        for column in schema.columns(relation)[:_MOST_COLUMNS]:
            yield "distinct_values", {"table_name": relation.name, "column_name": column}
            yield "distinct_values", {"table_name": relation.name, "column_name": column, "limit": 3}
    for sql in _QUERIES:
        yield "run_query", {"sql": sql}
    for name in names:
        quoted = quote_name(name)
        yield "run_query", {"sql": f"SELECT * FROM {quoted}"}
        yield "run_query", {"sql": f"SELECT * FROM {quoted} LIMIT 3"}
        yield "run_query", {"sql": f"SELECT count(*) FROM {quoted}"}
        yield "run_query", {"sql": f"PRAGMA table_info({quoted})"}
