"""A stand-in for a checkpoint's `sqale_agent.py` that answers as we do: only what a test plants in it differs."""

import sqlite3

import a_package_that_nobody_has  # as the original imports vLLM

SYSTEM_PROMPT = "You can use tools. End with submit_sql."
USER_TEMPLATE = "Question: {question}\n\nBegin."
N_SHOWN = 5
NULL = "None"


class Sampler(a_package_that_nobody_has.Sampler):
    """As the original may extend a class of vLLM's."""


def budget_line(turns_left):
    return f"[{turns_left} tool turn{'s' if turns_left != 1 else ''} left before you must answer]"


def limit_message(last_query, question):
    message = "Exploration is over: no more tool calls. Return only the SQL query that answers the question."
    message += f"\nThe last query that executed without error was:\n{last_query}\n"
    return message + "Return that query if you are not sure that another one is better."


def format_results(results, turns_left):
    parts = []
    for number, result in enumerate(results, 1):
        head = "Tool result:" if len(results) == 1 else f"Tool result ({number}/{len(results)}):"
        parts.append(f"{head}\n{result}\n\n")
    return "".join(parts) + budget_line(turns_left)


def show(cell):
    if cell is None:
        return NULL
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'"
    words = str(cell).replace("\n", "\\n").split(" ")
    return " ".join("\\|" if word == "|" else word for word in words)


def show_rows(header, rows):
    return [" | ".join(map(show, row)) for row in [header, *rows]]


class Tools:
    """The tools, as methods, on a path."""

    def __init__(self, db_path):
        self.connection = sqlite3.connect(db_path)
        self.names = [row[0] for row in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def missing(self, table_name):
        return f"Error: no such table: {table_name}. Call list_tables to see all."

    def list_tables(self):
        return ", ".join(self.names)

    def describe_table(self, table_name):
        row = self.connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [table_name]).fetchone()
        return " ".join(row[0].split()) if row else self.missing(table_name)

    def keys(self, table):
        for row in self.connection.execute(f'PRAGMA foreign_key_list("{table}")'):
            yield f"{table}.{row[3]} -> {row[2]}.{row[4]}"

    def foreign_keys(self, table_name=None):
        tables = [table_name] if table_name else self.names
        return "\n".join(key for table in tables for key in self.keys(table)) or "No foreign keys."

    def join_path(self, table_a, table_b):
        keys = [key for table in (table_a, table_b) for key in self.keys(table)]
        keys = [key for key in keys if f"{table_a}." in key and f"{table_b}." in key]
        return "\n".join([f"{table_a} -> {table_b}", *keys])

    def rows(self, sql, limit):
        cursor = self.connection.execute(sql)
        header = [column[0] for column in cursor.description]
        return "\n".join(show_rows(header, cursor.fetchmany(limit)))

    def sample_rows(self, table_name, limit=5):
        return self.rows(f'SELECT * FROM "{table_name}"', limit)

    def distinct_values(self, table_name, column_name, limit=20):
        return self.rows(f'SELECT DISTINCT "{column_name}" FROM "{table_name}"', limit)

    def run_query(self, sql):
        sql = sql.partition(" --")[0]  # SQLite would take it into the name of the last column
        if not sql:
            return "Error: the SQL is empty. Write one SELECT statement."
        try:
            cursor = self.connection.execute(sql)
            rows = cursor.fetchmany(N_SHOWN + 1)
        except sqlite3.Error as error:
            message = str(error)
            advice = " Call list_tables to see all." if message.startswith("no such table") else ""
            return f"Error: {message}.{advice}"
        lines = show_rows([column[0] for column in cursor.description], rows[:N_SHOWN])
        more = [f"... (showing first {N_SHOWN} rows; more rows exist)"] if len(rows) > N_SHOWN else []
        return "\n".join([*lines, *more])
