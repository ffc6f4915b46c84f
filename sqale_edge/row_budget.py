"""How long the values of a statement may be, so that all that it holds at once fits into a budget.

SQLite limits the length of one value. How many a statement holds is what its compiled form says: each instruction that
makes a value, or copies one, keeps one. So the budget is divided by their number. The same bounds the time between two
looks at the clock, as long as each instruction takes a time in proportion to the length of its values.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

VALUE_BYTES = 1 << 20
"""How long a value may be while a statement computes it."""

STORED_VALUE_BYTES = 64 << 20
"""How long a value may be that is only read."""

ROW_BYTES = 256 << 20
"""What all values that a statement holds at once may take together. Python's copies of a row come on top."""

HIGHLIGHT_BYTES = 4 << 10
"""How long a value may be beside FTS5's highlight(), which copies all that it has so far at each of its marks."""

# How many values an instruction holds. A sorter that merges holds a row of each of its runs; LIKE and GLOB make no
# value, but look at each character several times; JSON takes up to 16 times its length once it is read, also where
# json_each reads it, which is a table to SQLite.
_WEIGHTS = {
    **dict.fromkeys(("Column", "VColumn", "Concat", "Cast", "RowData", "SorterData", "Copy"), 1),
    **dict.fromkeys(("Function", "PureFunc", "AggStep", "AggInverse", "AggValue", "AggFinal"), 1),
    "SorterOpen": 32,
    "VFilter": 16,
}
_JSON_FUNCTIONS = ("->", "->>", "json_array_length", "json_extract", "json_type", "json_valid")
_FUNCTION_WEIGHTS = {"like": 8, "glob": 8, **dict.fromkeys(_JSON_FUNCTIONS, 16)}

# What these make is no longer than what they are given, and takes a time and memory in proportion to it.
_OF_TEXT = ("glob", "length", "like", "lower", "match", "octet_length", "substr", "substring", "unicode", "upper")
_OF_NUMBERS = ("abs", "ceil", "ceiling", "exp", "floor", "ln", "log", "mod", "pow", "power", "round", "sign", "sqrt")
_OF_TIME = ("date", "datetime", "julianday", "strftime", "time", "unixepoch")
_OF_ANY_VALUE = ("coalesce", "ifnull", "iif", "likelihood", "likely", "nullif", "typeof", "unlikely")
_OF_ROWS = ("avg", "bm25", "count", "max", "min", "sum", "total")
_OF_WINDOWS = ("dense_rank", "first_value", "lag", "last_value", "lead", "nth_value", "ntile", "rank", "row_number")
_LINEAR_FUNCTIONS = frozenset(
    (*_JSON_FUNCTIONS, *_OF_TEXT, *_OF_NUMBERS, *_OF_TIME, *_OF_ANY_VALUE, *_OF_ROWS, *_OF_WINDOWS)
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a compiled statement does with values.

    Attributes:
        n_values: How many it holds at once, at most.
        functions: The names of those it calls, also in generated columns, about which the authorizer is not asked.
    """

    n_values: int = 1
    functions: frozenset[str] = frozenset()

    @property
    def has_highlight(self) -> bool:
        """It calls highlight(), whose time is the square of what it makes, and is not bounded by SQLite's limits."""
        return "highlight" in self.functions

    @property
    def is_linear(self) -> bool:
        """Its functions may be given long values."""
        return self.functions <= _LINEAR_FUNCTIONS

    def value_bytes(self, most: int) -> int:
        """How long its values may be, `most` at most."""
        return min(most, ROW_BYTES // self.n_values, HIGHLIGHT_BYTES if self.has_highlight else most)


def read_plan(connection: sqlite3.Connection, statement: str, check: Callable[[], None]) -> Plan:
    """The plan of `statement`, which is compiled, not run. `check` is called again and again, and may raise."""
    n_values = 0
    functions: set[str] = set()
    records: set[int] = set()
    with contextlib.closing(connection.execute(f"EXPLAIN {statement}")) as instructions:
        for _, opcode, _, _, p3, p4, *_ in instructions:
            check()
            n_values += _WEIGHTS.get(opcode, 0)
            if opcode == "MakeRecord":
                records.add(p3)  # a list of constants makes one after the other in the same place
            elif opcode == "Copy":
                n_values += p3
            elif opcode in ("Function", "PureFunc", "AggStep"):
                name = p4.partition("(")[0].lower()
                functions.add(name)
                n_values += _FUNCTION_WEIGHTS.get(name, 0)
    return Plan(max(1, n_values + len(records)), frozenset(functions))
