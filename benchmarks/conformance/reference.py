"""Runs a checkpoint's own `sqale_agent.py`, in a process of its own: the only place where its code is executed.

A script for any Python from 3.9 on, with the standard library alone: it can run where that file's packages are.
It reads JSON lines from stdin and answers each with one on stdout; what the code prints goes to stderr.

The first line says what to load: `source`, `database`, and `adapter`, expressions by the names of tools and texts. Each
further one is a request, `{"tool": name, "args": {...}}` or `{"text": role, "name": ..., "style": ..., "values": ...}`,
and its answer has one key: `text`, `raised`, or `missing`, which says why there is nothing to compare.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sqlite3
import string
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_STAND_INS = 50
_TOOLS = {
    "list_tables", "describe_table", "foreign_keys", "join_path", "sample_rows", "distinct_values", "run_query",
    "submit_sql",
}  # fmt: skip
_TOOL_NAMES = ("{}", "tool_{}", "{}_tool", "_{}", "_tool_{}", "do_{}", "handle_{}")
_DISPATCHERS = (
    "run_tool", "execute_tool", "call_tool", "dispatch", "dispatch_tool", "_run_tool", "_execute_tool", "_call_tool",
    "_dispatch", "execute", "run", "call", "handle_tool_call",
)  # fmt: skip
_RESULT_TURNS = (
    "format_results", "format_tool_results", "format_result", "format_tool_result", "results_turn", "result_turn",
    "results_message", "result_message", "tool_message", "build_tool_message", "make_tool_message", "write_results",
)  # fmt: skip
# What a parameter or a field of these names is taken for. The first name is ours.
_ALIASES = (
    ("table_name", "table", "tbl", "tablename", "name"),
    ("column_name", "column", "col", "columnname"),
    ("table_a", "a", "table1", "table_1", "from_table", "source", "start", "src", "left_table"),
    ("table_b", "b", "table2", "table_2", "to_table", "target", "end", "dst", "right_table"),
    ("limit", "n", "k", "n_rows", "num_rows", "max_rows"),
    ("sql", "query", "statement", "sql_query"),
    ("question", "q", "user_question"),
    ("evidence", "hint", "knowledge", "external_knowledge"),
    ("n_left", "n", "left", "turns_left", "remaining", "n_turns", "turns", "remaining_turns", "tool_turns_left", "k"),
    ("last_query", "query", "sql", "last_sql", "last_good_sql", "last_working_sql", "last_ok_sql", "best_sql"),
    ("outputs", "results", "tool_results", "texts"),
    ("output", "result", "tool_result", "text"),
    ("tool", "name", "tool_name", "function", "fn"),
    ("args", "arguments", "params", "parameters", "tool_args", "kwargs"),
    ("call", "tool_call"),
)
_PATHS = {"db_path", "database_path", "path", "db_file", "sqlite_path", "dbpath", "db_filename", "filename"}
_CONNECTIONS = {"conn", "connection", "con", "db_conn", "sqlite_conn"}
_CURSORS = {"cur", "cursor"}
_EITHER = {"db", "database", "self_db"}


class MissingError(Exception):
    """There is nothing to compare with; says why."""


class Anything:
    """Stands for whatever a package that is not installed would give."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A decorator leaves what it is given as it is."""
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandInModule(types.ModuleType):
    """A package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the packages in `names`, which are not installed: the tools need none of them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """See `MetaPathFinder`."""
        del path, target
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """See `Loader`."""
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """See `Loader`; there is nothing to run."""


def load(path: str, stand_ins: StandIns) -> types.ModuleType:
    """The module; what it imports and this Python lacks is stood in for."""
    sys.path.insert(0, str(Path(path).parent))
    sys.meta_path.append(stand_ins)
    while True:
        spec = importlib.util.spec_from_file_location("sqale_agent", path)
        assert spec is not None, "it is a Python file"
        assert spec.loader is not None, "so it has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules["sqale_agent"] = module
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if not package or package in stand_ins.names or len(stand_ins.names) == _MOST_STAND_INS:
                raise
            stand_ins.names.append(package)
        else:
            return module


class Reference:
    """The loaded module, and how to reach what is asked for."""

    def __init__(self, module: types.ModuleType, database: str, adapter: dict[str, str]) -> None:
        self.module, self.database, self.adapter = module, database, adapter
        self.connection = sqlite3.connect(database)
        self.instances: dict[type, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, str]:
        """The answer to one request; whatever happens is one."""
        try:
            value = self.run_tool(request) if "tool" in request else self.write_text(request)
            return {"text": as_text(value)}
        except MissingError as error:
            return {"missing": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the code does is an answer
            return {"raised": f"{type(error).__name__}: {error}"}

    def evaluate(self, name: str, values: dict[str, Any]) -> Any:
        """The adapter's expression, with the module's own names and `values`."""
        known = {**self.module.__dict__, "db_path": self.database, "connection": self.connection, **values}
        return eval(self.adapter[name], known)  # noqa: S307 - what the person who runs this wrote

    def run_tool(self, request: dict[str, Any]) -> Any:
        """What the source's tool of that name gives."""
        tool, args = request["tool"], request["args"]
        if tool in self.adapter:
            return self.evaluate(tool, {"tool": tool, "args": args, **args})
        direct, values = self.find_function(tool), dict(args)
        if direct is None:
            direct = self.find_dispatcher()
            values = {"tool": tool, "args": args, "call": {"tool": tool, "args": args}}
        if direct is None:
            raise MissingError(f"no function, method or dispatcher for {tool} was found")
        return self.call(direct, values)

    def find_function(self, tool: str) -> Any:
        """A function of the tool's name: of the module, in a table of functions, or a method."""
        names = [form.format(tool) for form in _TOOL_NAMES]
        for name in names:
            if inspect.isfunction(getattr(self.module, name, None)):
                return getattr(self.module, name)
        for value in vars(self.module).values():
            if isinstance(value, dict) and callable(value.get(tool)):
                return value[tool]
        for owner in self.find_owners():
            for name in names:
                if callable(getattr(owner, name, None)):
                    return getattr(self.instance(owner), name)
        return None

    def find_owners(self) -> Iterator[type]:
        """Classes of the module that have several tools as methods."""
        for value in vars(self.module).values():
            if inspect.isclass(value) and value.__module__ == self.module.__name__:
                names = {form.format(tool) for tool in _TOOLS for form in _TOOL_NAMES}
                if len(names & set(dir(value))) >= 3:
                    yield value

    def find_dispatcher(self) -> Any:
        """A function or method that runs any tool, by its name."""
        for name in _DISPATCHERS:
            if inspect.isfunction(getattr(self.module, name, None)):
                return getattr(self.module, name)
        for value in vars(self.module).values():
            if inspect.isclass(value) and value.__module__ == self.module.__name__:
                for name in _DISPATCHERS:
                    if callable(getattr(value, name, None)) and takes(getattr(value, name), {"tool", "call"}):
                        return getattr(self.instance(value), name)
        return None

    def instance(self, owner: type) -> Any:
        """An object of the class, made once."""
        if owner not in self.instances:
            self.instances[owner] = self.call(owner, {})
        return self.instances[owner]

    def call(self, function: Any, values: dict[str, Any]) -> Any:
        """Call it with what its parameters' names say; a database may be a path or a connection."""
        for database in (self.database, self.connection):
            arguments = self.bind(function, values, database)
            try:
                return function(**arguments)
            except (AttributeError, TypeError) as error:
                failure = error
            if database not in arguments.values():
                break
        raise failure

    def bind(self, function: Any, values: dict[str, Any], database: Any) -> dict[str, Any]:
        """Its arguments, by the names of its parameters."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise MissingError(f"what {function!r} takes is not known") from None
        arguments = {}
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            annotation = str(parameter.annotation)
            is_given, value = find_value(parameter.name, values)
            if is_given:
                arguments[parameter.name] = value
            elif parameter.name in _CONNECTIONS or "Connection" in annotation:
                arguments[parameter.name] = self.connection
            elif parameter.name in _CURSORS or "Cursor" in annotation:
                arguments[parameter.name] = self.connection.cursor()
            elif parameter.name in _PATHS:
                arguments[parameter.name] = self.database
            elif parameter.name in _EITHER:
                arguments[parameter.name] = database
            elif parameter.default is parameter.empty:
                name = getattr(function, "__qualname__", repr(function))
                raise MissingError(f"what {name} takes as {parameter.name!r} is not known")
        return arguments

    def write_text(self, request: dict[str, Any]) -> Any:
        """A text of the prompt, filled in."""
        role, values = request["text"], request["values"]
        if role in self.adapter:
            return self.evaluate(role, values)
        if role == "turn":
            return self.write_turn(values)
        name = request.get("name")
        if not name:
            raise MissingError("no text of this role was found in the source")
        if name.endswith("()"):
            function = self.resolve(name[:-2])
            if values.get("evidence") is not None and not takes(function, {"evidence"}):
                raise MissingError(f"{name} takes no evidence: how it is joined to the question is not known")
            return self.call(function, values)
        value = self.resolve(name)
        if not isinstance(value, str):
            raise MissingError(f"{name} is no text when the program runs, but {type(value).__name__}")
        if values.get("evidence") is not None:
            raise MissingError(f"{name} has no place for evidence: how it is joined to the question is not known")
        return fill(value, values, name, request.get("style"))

    def write_turn(self, values: dict[str, Any]) -> Any:
        """The user turn with results."""
        for name in _RESULT_TURNS:
            function = getattr(self.module, name, None)
            if inspect.isfunction(function):
                return self.call(function, values)
        raise MissingError("no function that writes the turn with the results was found")

    def resolve(self, name: str) -> Any:
        """`NAME`, `Class.NAME`, `function`."""
        if not all(part.isidentifier() for part in name.split(".")):
            raise MissingError(f"{name} is in the middle of the program")
        value: Any = self.module
        for part in name.split("."):
            if not hasattr(value, part):
                raise MissingError(f"{name} is in the middle of the program")
            value = getattr(value, part)
        return value


def takes(function: Any, wanted: set[str]) -> bool:
    """Whether it has a parameter for one of `wanted`."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return any(names & set(group) for group in _ALIASES if group[0] in wanted)


def find_value(name: str, values: dict[str, Any]) -> tuple[bool, Any]:
    """Whether a value is known for a parameter or field of this name, and which."""
    if name in values:
        return True, values[name]
    for group in _ALIASES:
        if name in group and group[0] in values:
            return True, values[group[0]]
    return False, None


def fill(template: str, values: dict[str, Any], name: str, style: str | None) -> str:
    """A constant with its fields filled in."""
    if style == "plain":
        return template.replace("{question}", values["question"])
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    except ValueError:
        return template
    found = {field: find_value(field, values) for field in fields}
    if style is None and not any(is_known for is_known, _ in found.values()):
        return template  # braces that are no fields
    for field, (is_known, _) in found.items():
        if not is_known:
            raise MissingError(f"what goes into {{{field}}} of {name} is not known")
    return template.format(**{field: value for field, (_, value) in found.items()})


def as_text(value: Any) -> str:
    """What a tool gave, if it is text, or has one as its first or best-known part."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return value[0]
    if isinstance(value, dict):
        for key in ("result", "output", "content", "text"):
            part = value.get(key)
            if isinstance(part, str):
                return part
    raise MissingError(f"it gives a {type(value).__name__}, which becomes text somewhere else")


def main() -> None:
    """Load what the first line says, then answer."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    sys.argv = ["sqale_agent.py"]

    def send(value: Any) -> None:
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    task = json.loads(sys.stdin.readline())
    stand_ins = StandIns()
    try:
        module = load(task["source"], stand_ins)
        reference = Reference(module, task["database"], task["adapter"])
    except BaseException as error:  # noqa: BLE001 - also what exits
        send({"failed": f"{type(error).__name__}: {error}"})
        return
    send({"stand_ins": stand_ins.names})
    for line in sys.stdin:
        send(reference.answer(json.loads(line)))


if __name__ == "__main__":
    main()
