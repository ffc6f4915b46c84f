"""The eight tools of the model: what they are called with, and what they answer.

Every answer is text that a model was, or will be, trained on: a change here is a change of the protocol, and the
golden tests say so. What a model does wrong is answered, never raised.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from sqale_edge.episode import ToolResult
from sqale_edge.errors import QueryError
from sqale_edge.schema import Schema, close_names, find_name
from sqale_edge.sql_text import one_line, quote_name, tokens, unquote_name, visible
from sqale_edge.tool_text import (
    MORE_ROWS,
    NAME_CHARS,
    QUERY_ROWS,
    clip,
    is_cut,
    show_line,
    show_name,
    show_suggestions,
    show_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqale_edge.database import Database
    from sqale_edge.schema import ForeignKey, Relation


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
        "run_query",
        "Run one SELECT statement and see its first 5 rows.",
        (Parameter("sql", "string", "one SQLite SELECT statement"),),
    ),
    ToolSpec(
        "submit_sql",
        "Give the final answer.",
        (Parameter("sql", "string", "the SELECT statement that answers the question"),),
    ),
)

SPECS: Final = {spec.name: spec for spec in TOOLS}
MAX_LIMIT: Final = 1_000


class _ToolError(Exception):
    """What the model did wrong, and what to do instead."""


class Toolbox:
    """The tools, on one database.

    Args:
        query_timeout_s: Seconds that one statement may run.
        max_output_chars: No answer is longer.
        should_stop: As for `Database.query`, for every statement of every tool. A stopped call is answered with an
            error.
    """

    def __init__(
        self,
        database: Database,
        *,
        query_timeout_s: float = 5.0,
        max_output_chars: int = 60_000,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self._database = database
        self._should_stop = should_stop
        self._query_timeout_s = query_timeout_s
        self._max_output_chars = max_output_chars
        self._read_schema: tuple[tuple[int, ...], Schema] | None = None

    def run(self, name: str, args: dict[str, Any]) -> ToolResult:
        """The tool's answer. What a model does wrong is an answer with `is_error`.

        Raises:
            DatabaseOpenError: The file has changed, and cannot be opened any more.
        """
        try:
            arguments = _checked(name, args)
            run: Callable[..., tuple[list[str], str, bool]] = getattr(self, f"_{name}")
            parts, separator, is_partial = run(**arguments)
        except (_ToolError, QueryError) as error:
            message = f"Error: {visible(str(error))}"
            output, truncated = clip(
                [message if message.endswith(("?", ".")) else f"{message}."], "", "", self._max_output_chars
            )
            return ToolResult(visible(str(name)), output, is_error=True, truncated=truncated)
        output, is_clipped = clip(parts, separator, _NOUNS.get(name, "lines"), self._max_output_chars)
        return ToolResult(name, output, truncated=is_partial or is_clipped)

    @property
    def _schema(self) -> Schema:
        version = self._database.version
        if self._read_schema is None or self._read_schema[0] != version:
            self._read_schema = (version, Schema(self._database, should_stop=self._should_stop))
        return self._read_schema[1]

    # Each tool returns the parts of its answer, what stands between them, and whether it knows of more than the
    # parts say.

    def _list_tables(self) -> tuple[list[str], str, bool]:
        names = [show_name(name) for name in self._schema.names]
        return ([show_line(names[0]), *names[1:]] if names else ["The database has no tables."]), ", ", False

    def _describe_table(self, table_name: str) -> tuple[list[str], str, bool]:
        relation = self._find(table_name)
        return [one_line(relation.sql)], "", False

    def _foreign_keys(self, table_name: str | None = None) -> tuple[list[str], str, bool]:
        child = None if table_name is None else self._find(table_name).name
        schema = self._schema
        keys = [key for key in schema.foreign_keys if child is None or key.child == child]
        return [_key_line(key, schema) for key in keys] or ["No foreign keys."], "\n", False

    def _join_path(self, table_a: str, table_b: str) -> tuple[list[str], str, bool]:
        schema = self._schema
        start, end = self._find(table_a).name, self._find(table_b).name
        path = schema.join_path(start, end)
        if path is None:
            return [f"No path between {show_name(start)} and {show_name(end)}."], "", False
        lines = [show_line(" -> ".join(show_name(name) for name in path))]
        for one, other in itertools.pairwise(path):
            lines += [_key_line(key, schema) for key in schema.keys_between(one, other)]
        return lines, "\n", False

    def _sample_rows(self, table_name: str, limit: int = 5) -> tuple[list[str], str, bool]:
        return self._rows(f"SELECT * FROM {quote_name(self._find(table_name).name)}", limit)

    def _distinct_values(self, table_name: str, column_name: str, limit: int = 20) -> tuple[list[str], str, bool]:
        relation = self._find(table_name)
        columns = self._schema.columns(relation)
        column = find_name(column_name, columns)
        if column is None:
            advice = f"{show_suggestions(close_names(column_name, columns))} Call describe_table to see its columns"
            raise _ToolError(f"no such column in {show_name(relation.name)}: {_short(column_name)}.{advice}")
        return self._rows(f"SELECT DISTINCT {quote_name(column)} FROM {quote_name(relation.name)}", limit)

    def _run_query(self, sql: str) -> tuple[list[str], str, bool]:
        try:
            return self._rows(sql, QUERY_ROWS, more=MORE_ROWS)
        except QueryError as error:
            raise _ToolError(f"{error}.{self._advice(str(error), sql)}") from error

    def _submit_sql(self, sql: str) -> tuple[list[str], str, bool]:
        return self._run_query(sql)

    def _rows(self, sql: str, limit: int, more: str = "") -> tuple[list[str], str, bool]:
        table = self._database.query(
            sql, max_rows=limit, timeout_s=self._query_timeout_s, should_stop=self._should_stop
        )
        lines = show_table(table)
        if table.has_more_rows and more:
            lines.append(more)
        return lines, "\n", table.truncated or is_cut(table)

    def _find(self, name: str) -> Relation:
        schema = self._schema
        shown = (relation for relation in schema.relations if len(relation.name) > NAME_CHARS)
        relation = schema.find(name) or next((long for long in shown if show_name(long.name) == name), None)
        if relation is None:
            raise _ToolError(f"no such table: {_short(name)}.{self._table_advice(name)}")
        return relation

    def _advice(self, message: str, sql: str) -> str:
        """What helps with a name that SQLite does not know."""
        if match := _NO_TABLE.match(message):
            return self._table_advice(match[1])
        if match := _NO_COLUMN.match(message):
            words = {word.lower() for _, text in tokens(sql) for word in (text, unquote_name(text))}
            relations = [relation for relation in self._schema.relations if relation.name.lower() in words]
            columns = {
                f"{relation.name}.{column}": column
                for relation in relations
                for column in self._known_columns(relation)
            }
            close = close_names(match[1], list(columns.values()))
            suggestions = show_suggestions(
                [full for name in close for full, column in columns.items() if column == name][:3]
            )
            return f"{suggestions} Call describe_table to see the columns of a table"
        return ""

    def _table_advice(self, name: str) -> str:
        return f"{show_suggestions(close_names(name, self._schema.names))} Call list_tables to see all"

    def _known_columns(self, relation: Relation) -> tuple[str, ...]:
        try:
            return self._schema.columns(relation)
        except QueryError:
            return ()


_NOUNS: Final = {"list_tables": "tables", "foreign_keys": "foreign keys"}
_NO_TABLE: Final = re.compile(r"no such table: (?:main\.)?(.*)")
_NO_COLUMN: Final = re.compile(r"no such column: (?:.*\.)?(.*)")


def _key_line(key: ForeignKey, schema: Schema) -> str:
    """`child.a -> parent.x`; a composite key is one line of such pairs. Unknown columns of a parent are left out."""
    child, parent = show_name(key.child), show_name(key.parent)
    if schema.is_missing(key.parent) and not re.fullmatch(r"[\w ]+", parent) and len(key.parent) <= NAME_CHARS:
        parent = quote_name(visible(key.parent))  # "main.t" is not t
    pairs = itertools.zip_longest(key.columns, key.parent_columns[: len(key.columns)])
    shown = (f"{child}.{show_name(column)} -> {f'{parent}.{show_name(to)}' if to else parent}" for column, to in pairs)
    return show_line(", ".join(shown))


def _short(text: str) -> str:
    return text if len(text) <= NAME_CHARS else f"{text[:NAME_CHARS]}..."


def _checked(name: str, args: Any) -> dict[str, Any]:
    """`args` as the tool's keyword arguments. Raises _ToolError."""
    spec = SPECS.get(name)
    if spec is None:
        raise _ToolError(f"there is no tool {_short(str(name))}. The tools are: {', '.join(SPECS)}")
    usage = f"Call it as {spec.signature}"
    if not isinstance(args, dict):
        raise _ToolError(f"args must be an object. {usage}")
    known = {parameter.name: parameter for parameter in spec.parameters}
    for argument in args:
        if argument not in known:
            raise _ToolError(f"{name} has no argument {_short(str(argument))}. {usage}")
    for parameter in spec.parameters:
        if parameter.name in args:
            _check_value(parameter, args[parameter.name])
        elif parameter.required:
            raise _ToolError(f"{name} needs the argument {parameter.name}. {usage}")
    return args


def _check_value(parameter: Parameter, value: object) -> None:
    if parameter.kind == "string":
        if not isinstance(value, str):
            raise _ToolError(f"{parameter.name} must be a string, not {_json(value)}")
    elif not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise _ToolError(f"{parameter.name} must be a whole number from 1 to {MAX_LIMIT}, not {_json(value)}")


def _json(value: object) -> str:
    try:
        return _short(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
