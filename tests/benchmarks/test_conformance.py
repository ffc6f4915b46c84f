"""A checkpoint's own code beside ours: each planted difference is found, and no other."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from sqale_edge.benchmarks.conformance import compare_checkpoint, read_adapter, show_report
from sqale_edge.benchmarks.conformance.comparison import find_edits

from sqale_edge.errors import BenchmarkError, Cancelled

SOURCE = Path(__file__).with_name("agreeing_agent.py").read_text(encoding="utf-8")


@pytest.fixture
def agent(tmp_path):
    """Writes a checkpoint's file with this source, or with texts of the agreeing one replaced."""

    def write(source=SOURCE, *changes):
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (tmp_path / "sqale_agent.py").write_text(source, encoding="utf-8")
        return tmp_path

    return write


def compare(folder, *databases, **options):
    return compare_checkpoint(folder, databases, **options)


def different(report):
    """The tools and texts that differ."""
    return {one.name for one in report.comparisons if one.outcome == "different"}


def test_what_agrees_is_the_same(agent, shop):
    """A reference that answers as we do has no difference, and all that can be found is compared."""
    report = compare(agent(), shop)
    assert [(one.name, one.case, one.edits) for one in report.comparisons if one.outcome == "different"] == []
    assert {one.name for one in report.comparisons if one.outcome == "same"} == {
        *("system", "user", "budget", "limit", "turn", "list_tables", "describe_table", "foreign_keys", "join_path"),
        *("sample_rows", "distinct_values", "run_query"),
    }
    assert {(one.name, one.reason) for one in report.comparisons if one.outcome == "not compared"} == {
        ("user", "USER_TEMPLATE has no place for evidence: how it is joined to the question is not known")
    }
    assert report.stand_ins == ("a_package_that_nobody_has",)


CHANGED_LATER = """SYSTEM_PROMPT = "You can use tools. End with submit_sql."
SYSTEM_PROMPT = SYSTEM_PROMPT.replace("can", str("may"))"""
PLANTED = {
    "row limit": ("N_SHOWN = 5", "N_SHOWN = 6", {"run_query"}),
    "NULL": ('NULL = "None"', 'NULL = "NULL"', {"run_query", "sample_rows", "distinct_values"}),
    "order of tables": ("WHERE type = 'table'\"", "WHERE type = 'table' ORDER BY name DESC\"", {"list_tables"}),
    "join characters": ('return ", ".join(self.names)', 'return ",".join(self.names)', {"list_tables"}),
    "prompt wording": (
        'SYSTEM_PROMPT = "You can use tools. End with submit_sql."',
        CHANGED_LATER,
        {"system"},
    ),
    "budget singular": ("'s' if turns_left != 1 else ''", "'s' if turns_left != 2 else ''", {"budget"}),
    "numbering": ('f"Tool result ({number}/{len(results)}):"', 'f"Tool result {number}:"', {"turn"}),
    "default limit": ("table_name, limit=5", "table_name, limit=4", {"sample_rows"}),
    "user": ('Question: {question}\\n\\nBegin."', 'Question: {question}\\n\\nBegin." + str(" now")', {"user"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(agent, shop, name):
    """Each of them, where it is, and no others."""
    old, new, where = PLANTED[name]
    report = compare(agent(SOURCE, (old, new)), shop)
    assert different(report) == where


def test_all_planted_differences_at_once(agent, shop):
    """They are told apart, each with the bytes that differ."""
    report = compare(agent(SOURCE, *((old, new) for old, new, _ in PLANTED.values())), shop)
    assert different(report) == set().union(*(where for *_, where in PLANTED.values()))
    null = next(one for one in report.comparisons if one.case == {"sql": "SELECT NULL AS none, 1 AS one"})
    assert [(edit.offset, edit.ours, edit.theirs) for edit in null.edits] == [(12, "one", "ULL")]


def test_edits_are_whole_characters_with_offsets_in_bytes():
    """What to change in ours, at which byte; also in long texts, which are not aligned."""
    assert [(e.offset, e.ours, e.theirs) for e in find_edits("größe | a", "größe|a")] == [(7, " ", ""), (9, " ", "")]
    (edit,) = find_edits("ä" * 5000 + "one" + "b" * 5000, "ä" * 5000 + "two" + "b" * 5000)
    assert (edit.offset, edit.ours, edit.theirs) == (10_000, "one", "two")


FUNCTIONS = """
def tool_list_tables(conn):
    return ", ".join(row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
"""
TABLE = FUNCTIONS + 'TOOLS = {"run_query": lambda sql, db: str(db.execute(sql).fetchall())}\n'
DISPATCHER = """
def execute_tool(name, args, db_path):
    print("what it prints is nobody's answer")
    return f"{name} {sorted(args)}", False
"""


@pytest.mark.parametrize(
    ("source", "name", "theirs"),
    [
        (FUNCTIONS, "list_tables", "customers, orders"),
        (TABLE, "run_query", "[(None, 1)]"),
        (DISPATCHER, "run_query", "run_query ['sql']"),
        (DISPATCHER, "list_tables", "list_tables []"),
    ],
)
def test_tools_are_found_in_other_forms(agent, shop, source, name, theirs):
    """Functions with a connection, a table of functions, a dispatcher; whatever they print."""
    report = compare(agent(source), shop)
    assert next(one.theirs for one in report.comparisons if one.name == name) == theirs


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "no function, method or dispatcher for list_tables was found"),
        ("def list_tables(secret): return ''", "what list_tables takes as 'secret' is not known"),
        ("def list_tables(conn): return [1]", "it gives a list, which becomes text somewhere else"),
        ("def list_tables(conn): raise KeyError('no')", "it raises KeyError: 'no'"),
        ("import os\ndef list_tables(conn): os._exit(3)", "it ended the process"),
        ("import time\ndef list_tables(conn): time.sleep(60)", "it took more than 0.5 s"),
    ],
)
def test_what_cannot_be_matched_is_not_compared(agent, shop, source, reason):
    """It is listed with the reason, and the rest goes on."""
    report = compare(agent(source + "\ndef describe_table(table_name): return table_name\n"), shop, timeout_s=0.5)
    reasons = {one.name: one.reason for one in report.comparisons}
    assert reasons["list_tables"] == reason
    assert "describe_table" in different(report)


def test_an_adapter_says_what_is_called_otherwise(agent, shop, tmp_path):
    """Its expressions reach tools and texts of any name."""
    source = (
        "WORDS = ['Hi']\n"
        "def names_of(c, joiner):\n"
        "    return joiner.join(r[0] for r in c.execute('SELECT name FROM sqlite_master'))\n"
    )
    lines = 'list_tables = "names_of(connection, \', \')"\nsystem = "WORDS[0]"\nrun_query = "sql.upper()"\n'
    (tmp_path / "adapter.toml").write_text(lines, encoding="utf-8")
    report = compare(agent(source), shop, adapter=read_adapter(tmp_path / "adapter.toml"))
    theirs = {one.name: one.theirs for one in report.comparisons}
    assert (theirs["list_tables"], theirs["system"]) == ("customers, orders", "Hi")


@pytest.mark.parametrize("text", ["no_tool = '1'", "run_query = 1", "run_query ="])
def test_an_adapter_that_makes_no_sense(tmp_path, text):
    """One line that says what is wrong."""
    (tmp_path / "adapter.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BenchmarkError, match="the adapter"):
        read_adapter(tmp_path / "adapter.toml")


def test_the_code_gets_a_copy_and_is_not_imported_here(agent, shop):
    """What it writes into the database is not in the user's, and its module not in this process."""
    before = shop.read_bytes()
    agent("def list_tables(conn):\n    conn.execute('DROP TABLE orders')\n    conn.commit()\n    return 'dropped'\n")
    report = compare(shop.parent, shop)
    assert next(one.theirs for one in report.comparisons if one.name == "list_tables") == "dropped"
    assert shop.read_bytes() == before
    assert "sqale_agent" not in sys.modules


def test_code_that_cannot_be_loaded(agent, shop):
    """One line with its own words."""
    with pytest.raises(BenchmarkError, match=r"cannot be loaded: ValueError: no GPU"):
        compare(agent("raise ValueError('no GPU')"), shop)


def test_a_cancel_ends_the_process(agent, shop, tmp_path):
    """A call that never returns is stopped with all that it started."""
    agent(
        "import os, time\n"
        "def list_tables(conn):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    with pytest.raises(Cancelled):
        compare(tmp_path, shop, timeout_s=600, should_stop=(tmp_path / "pid").exists)
    for _ in range(100):
        if (text := (tmp_path / "pid").read_text()) and not Path(f"/proc/{text}").exists():
            break
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_report_is_readable(agent, shop):
    """Counts first, then what differs with the bytes, then what was not compared."""
    report = compare(agent(SOURCE, PLANTED["NULL"][:2]), shop)
    text = show_report(report)
    assert "at byte 12: ours 'one', theirs 'ULL', after 'none | one\\nN'" in text
    assert "more cases of tool sample_rows; see all with --all" in text
    assert "not compared: text user, 2 times" in text
    assert "stood in for: a_package_that_nobody_has" in text


def test_command(agent, shop, run):
    """It asks to be told that code is run; 0 where all is the same, 3 where something differs, one JSON document."""
    folder = agent()
    code, _, err = run("conformance", folder, shop)
    assert (code, "--run-code" in err) == (2, True)
    code, out, _ = run("conformance", folder, shop, "--run-code", "--json")
    assert (code, json.loads(out)["n_different"]) == (0, 0)
    agent(SOURCE, PLANTED["budget singular"][:2])
    code, out, _ = run("conformance", folder, shop, "--run-code")
    assert (code, "text budget" in out) == (3, True)
    code, _, err = run("conformance", shop.parent / "nothing", shop, "--run-code")
    assert (code, err.startswith("Error: there is no sqale_agent.py")) == (1, True)
    code, _, err = run("conformance", folder, folder / "sqale_agent.py", "--run-code")
    assert code == 1
