"""The eight tools of the model: what they are called with, and what they answer.

Every answer is text that a model was, or will be, trained on: a change here is a change of the protocol, and the golden tests say so.
What a model does wrong is answered, never raised.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from sqale_edge.episode import ToolResult
from sqale_edge.errors import QueryError
from sqale_edge.schema import ForeignKey, Relation, Schema, close_matches, spellings
from sqale_edge.sql_text import one_line, quote_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqale_edge.database import Database, Table
    from sqale_edge.episode import Cell


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: Literal["string", "integer"]
    description: str
    required: bool = True


@dataclasses.dataclass(frozen=True)
class ToolSpec:
    """A tool: its name, what it does in one line, and its arguments in order."""

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def signature(self) -> str:
        """`name(needed, optional?)`."""
        return f"{self.name}({', '.join(p.name if p.required else f'{p.name}?' for p in self.parameters)})"


_TABLE_NAME = Parameter("table_name", "string", "a table or view")

TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec("list_tables", "The names of all tables and views."),
    ToolSpec("describe_table", "The CREATE TABLE statement of a table.", (_TABLE_NAME,)),
    ToolSpec(
        "foreign_keys",
        "The foreign keys of one table, or of all.",
        (Parameter("table_name", "string", "a table; leave it out for all", required=False),),
    ),
    ToolSpec(
        "join_path",
        "The shortest way to join two tables along foreign keys.",
        (Parameter("table_a", "string", "the first table"), Parameter("table_b", "string", "the last table")),
    ),
    ToolSpec(
        "sample_rows",
        "The first rows of a table.",
        (_TABLE_NAME, Parameter("limit", "integer", "how many rows; 5 if left out", required=False)),
    ),
    ToolSpec(
        "distinct_values",
        "The different values of a column.",
        (
            _TABLE_NAME,
            Parameter("column_name", "string", "a column of it"),
            Parameter("limit", "integer", "how many values; 20 if left out", required=False),
        ),
    ),
    ToolSpec(
        "run_query", "Run one SELECT statement and see its first 5 rows.", (Parameter("sql", "string", "one SQLite SELECT statement"),)
    ),
    ToolSpec("submit_sql", "Give the final answer.", (Parameter("sql", "string", "the SELECT statement that answers the question"),)),
)

SPECS = {spec.name: spec for spec in TOOLS}
DEFAULT_LIMITS = {"sample_rows": 5, "distinct_values": 20}
MAX_LIMIT = 1_000
QUERY_ROWS = 5
MORE_ROWS = f"... (showing first {QUERY_ROWS} rows; more rows exist)"


class _ToolError(Exception):
    """What the model did wrong, and what to do instead."""


class Toolbox:
    """The tools, on one database."""

    def __init__(self, database: Database, *, query_timeout_s: float = 5.0, max_output_chars: int = 60_000) -> None:
        self._database = database
        self._query_timeout_s = query_timeout_s
        self._max_output_chars = max_output_chars
        self._schema = Schema.of(database)

    def run(self, name: str, args: dict[str, Any]) -> ToolResult:
        """The tool's answer. Never raises for what a model does."""
        try:
            checked = _checked(name, args)
            run: Callable[..., tuple[str, bool]] = getattr(self, f"_{name}")
            output, truncated = run(**checked)
        except (_ToolError, QueryError) as error:
            return ToolResult(name, f"Error: {error}.", is_error=True)
        return ToolResult(name, output[: self._max_output_chars], truncated=truncated)

    def _list_tables(self) -> tuple[str, bool]:
        return ", ".join(self._schema.names), False

    def _describe_table(self, table_name: str) -> tuple[str, bool]:
        return one_line(self._find(table_name).sql), False

    def _foreign_keys(self, table_name: str | None = None) -> tuple[str, bool]:
        child = None if table_name is None else self._find(table_name).name
        keys = [key for key in self._schema.foreign_keys if child is None or key.child == child]
        return "\n".join(_key_line(key) for key in keys) or "No foreign keys.", False

    def _join_path(self, table_a: str, table_b: str) -> tuple[str, bool]:
        start, end = self._find(table_a).name, self._find(table_b).name
        path = self._schema.join_path(start, end)
        if path is None:
            return f"No path between {start} and {end}.", False
        lines = [" -> ".join(path)]
        for one, other in zip(path, path[1:], strict=False):
            lines += [_key_line(key) for key in self._schema.keys_between(one, other)]
        return "\n".join(lines), False

    def _sample_rows(self, table_name: str, limit: int = DEFAULT_LIMITS["sample_rows"]) -> tuple[str, bool]:
        return self._rows(f"SELECT * FROM {quote_name(self._find(table_name).name)}", limit)

    def _distinct_values(
        self, table_name: str, column_name: str, limit: int = DEFAULT_LIMITS["distinct_values"]
    ) -> tuple[str, bool]:
        relation = self._find(table_name)
        columns = self._schema.columns(relation)
        folded = {name.lower(): name for name in columns}
        column = next((folded[name.lower()] for name in spellings(column_name) if name.lower() in folded), None)
        if column is None:
            close = close_matches(column_name, columns)
            raise _ToolError(f"no such column in {relation.name}: {column_name}" + (f". Did you mean: {', '.join(close)}?" if close else ""))
        return self._rows(f"SELECT DISTINCT {quote_name(column)} FROM {quote_name(relation.name)}", limit)

    def _run_query(self, sql: str) -> tuple[str, bool]:
        return self._rows(sql, QUERY_ROWS, more=MORE_ROWS)

    def _submit_sql(self, sql: str) -> tuple[str, bool]:
        return self._run_query(sql)

    def _rows(self, sql: str, limit: int, more: str = "") -> tuple[str, bool]:
        table = self._database.query(sql, max_rows=limit, timeout_s=self._query_timeout_s)
        lines = [" | ".join(table.columns), *(" | ".join(_show(cell) for cell in row) for row in table.rows)]
        if table.has_more_rows and more:
            lines.append(more)
        return "\n".join(lines), table.truncated

    def _find(self, name: str) -> Relation:
        relation = self._schema.find(name)
        if relation is None:
            close = self._schema.close_names(name)
            hint = f" Did you mean: {', '.join(close)}?" if close else ""
            raise _ToolError(f"no such table: {name}.{hint} Call list_tables to see all")
        return relation


def _key_line(key: ForeignKey) -> str:
    pairs = zip(key.columns, key.parent_columns, strict=False)
    return ", ".join(f"{key.child}.{column} -> {key.parent}.{parent_column}" for column, parent_column in pairs)


def _show(cell: Cell) -> str:
    return " ".join(str(cell).split("\n")).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _checked(name: str, args: Any) -> dict[str, Any]:
    """`args` as the tool's keyword arguments. Raises _ToolError."""
    spec = SPECS.get(name)
    if spec is None:
        raise _ToolError(f"there is no tool {name}. The tools are {', '.join(SPECS)}")
    if not isinstance(args, dict):
        raise _ToolError("args must be an object")
    for extra in args.keys() - {parameter.name for parameter in spec.parameters}:
        raise _ToolError(f"{name} has no argument {extra}")
    for parameter in spec.parameters:
        if parameter.name not in args:
            if parameter.required:
                raise _ToolError(f"{name} needs the argument {parameter.name}")
            continue
        value = args[parameter.name]
        kind = str if parameter.kind == "string" else int
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _ToolError(f"{parameter.name} must be {parameter.kind}")
        if kind is int and not 1 <= value <= MAX_LIMIT:
            raise _ToolError(f"{parameter.name} must be from 1 to {MAX_LIMIT}")
    return args
