"""Thousands of ways to damage a benchmark's files, of which each run tries the same few hundred.

Each is one line that names a file, or is judged to the end. For more of them raise `max_examples` and leave out
`derandomize`.
"""

import dataclasses
import json
import os
import re
import shutil
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqale_edge.benchmarks import (
    Answer,
    Judged,
    ResultsFile,
    Run,
    analyze,
    ask_questions,
    choose_rules,
    read_predictions,
    read_questions,
    read_results,
    score,
    summarize,
    write_predictions,
    write_report,
)
from sqale_edge.benchmarks.results_file import digest_questions, is_results_file
from sqale_edge.benchmarks.submissions import submission_form

from sqale_edge import Agent
from sqale_edge.errors import BenchmarkError
from sqale_edge.testing import ScriptedEngine, make_shop

few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# As they stand in a file: wrong types, absurd sizes, what JSON should not have, what no file can hold.
VALUES = ["null", "true", "0", "-1", "3", "0.5", "1e308", str(1 << 63), "9" * 60, '""', '"x"', "[]", "{}", '[["a"]]']
VALUES += ["NaN", "-Infinity", "1e999", "9" * 5000, "tru", "", '{"a": 1, "a": 1}', '"' + "x" * 100_000 + '"']
VALUES += ["[" * 3000 + "]" * 3000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900]
VALUES += [
    r'"\ud800"',
    r'"a\u0000b"',
    r'{"\udfff": 1}',
    '"../shop"',
    '"' + "a/" * 3000 + '"',
    "[99]",
    "[[0], 1]",
    '"{a,b"',
]
VALUES += ['"SELECT {' + ",".join("abcdefghijklmnopqrstuvwxyz") + '}"', '"null"', '"1' + "1" * 5000 + 'x"', '"local1"']
PIECES = [b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"{", b"[", b",", b"\t", b"\n", b"\r\n", b"9" * 5000, b"(" * 300, b"'"]
PIECES += [b"\xef\xbb\xbf", b"\xff\xfe", b"id", b"sql", b"sql,", b"null", b"1,", b'""', b"{a, b}", b"--", b"/*"]

BIRD = {"question_id": 7, "db_id": "shop", "question": "Q?", "evidence": "E", "SQL": "SELECT 1", "difficulty": "simple"}
SPIDER = {"db_id": "shop", "question": "Q?", "query": "SELECT name FROM customers ORDER BY name"}
EHRSQL = {"id": "a", "db_id": "shop", "question": "Q?", "query": "SELECT 1.5", "is_impossible": False}
SPIDER2 = {"instance_id": "local1", "db": "shop", "question": "Q?", "external_knowledge": None}
PLAIN = {"id": 7, "db": "shop.sqlite", "question": "Q?", "sql": "SELECT 1", "evidence": "E", "gold_alternatives": ["A"]}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def pair(record, key, other="b"):
    return [record, record | {key: other}]


# The files of an evaluation by their names; those that are no questions and no predictions are what is right.
SAMPLES = {
    "bird": {
        "questions.json": json.dumps(pair(BIRD, "question_id", 8)),
        "gold.sql": "SELECT 1\tshop\nSELECT 2\tshop\n",
        "difficulty.jsonl": lines({"question_id": 7, "difficulty": "easy"}, {"question_id": 8, "difficulty": "hard"}),
        "predictions": json.dumps({"7": "SELECT 1\t----- bird -----\tshop", "8": 0}),
    },
    "spider": {
        "questions.json": json.dumps([SPIDER, SPIDER]),
        "predictions": "SELECT 1\tshop\nSELECT '\u2028'\tshop\n",
    },
    "ehrsql": {
        "questions.json": json.dumps(pair(EHRSQL, "id")),
        "predictions": json.dumps({"a": "SELECT 1.5", "b": "null"}),
    },
    "ehrsql2024": {
        "data.json": json.dumps({"data": [{"id": "a", "question": "Q?"}, {"id": "b", "question": "Q?"}]}),
        "label.json": json.dumps({"a": "SELECT 1", "b": "null"}),
        "predictions": json.dumps({"a": "SELECT 1", "b": "null"}),
    },
    "spider2": {
        "questions.jsonl": lines(SPIDER2, SPIDER2 | {"instance_id": "local2"}),
        "exec_result/local1.csv": "n,m\n1,2\n3,4\n",
        "exec_result/local2_a.csv": "n\nx\n",
        "spider2lite_eval.jsonl": lines(
            {"instance_id": "local1", "condition_cols": [1], "ignore_order": True},
            {"instance_id": "local2", "condition_cols": [[0], []], "ignore_order": False},
        ),
        "predictions": lines({"id": "local1", "sql": "SELECT 2 UNION ALL SELECT 4"}, {"id": "local2", "sql": None}),
    },
    "spider2 in a folder": {
        "questions.jsonl": lines(SPIDER2),
        "exec_result/local1.csv": "n\n1\n",
        "predictions/local1.sql": "SELECT 1",
        "predictions/local2.sql": "SELECT 1",
    },
    "defog": {
        "questions.csv": 'db_name,query,question\nshop,"SELECT {name, city} FROM customers; SELECT 1;",Q?\n',
        "predictions": "id,sql\n0,SELECT 1\n",
    },
    "jsonl": {
        "questions.jsonl": lines(*pair(PLAIN, "id")),
        "predictions": lines({"id": 7, "sql": "SELECT 1"}, {"id": "b", "sql": None}),
    },
    "csv": {
        "questions.csv": "id,db,question,sql\n7,shop.sqlite,Q?,SELECT 1\nb,shop.sqlite,Q?,SELECT 2\n",
        "predictions": json.dumps([{"id": 7, "sql": "SELECT 1"}]),
    },
}
FILES = [(name, file) for name, files in SAMPLES.items() for file in files] + [("jsonl", "results.jsonl")]
SETTINGS = {"timeout_s": 1.0, "sample": None, "limit": None, "seed": None}
RESULTS = '{"form": "sqale-edge results 1"'


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of a real run, as they stand in a file."""
    folder = tmp_path_factory.mktemp("results")
    make_shop(folder / "shop.sqlite")
    (folder / "questions.jsonl").write_text(SAMPLES["jsonl"]["questions.jsonl"])
    questions = read_questions(folder / "questions.jsonl")
    run = Run("m", "ab" * 32, 7, "own", {"limits": {"n": 1}}, 0, digest_questions(questions), "0.1", "3.45")
    script = [
        '{"tool": "list_tables", "args": {}}',
        '{"tool": "submit_sql", "args": {"sql": "SELECT x\'00ff\', 9e999"}}',
    ]
    with ResultsFile(folder / "results.jsonl", run) as file:
        list(ask_questions(Agent(ScriptedEngine(script)), questions[:1], file))
        file.add(Answer("b", None, error="too long"))
    text = (folder / "results.jsonl").read_text()
    assert is_results_file(folder / "results.jsonl")
    assert text.startswith(RESULTS)
    return text


@pytest.fixture
def check(results, tmp_path):
    """Damages one file of an evaluation, and makes it."""

    def run(name, file, damage):
        folder = tmp_path / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make_shop(folder / "shop.sqlite")
        for one, content in SAMPLES[name].items():
            (folder / one).parent.mkdir(exist_ok=True)
            (folder / one).write_text(content, encoding="utf-8", newline="")
        (folder / "results.jsonl").write_text(results)
        damage(folder / file)
        before = sorted(folder.rglob("*"))
        try:
            document = evaluate(folder, name, file)
        except BenchmarkError as error:
            message, path = str(error), str(error.path)
        else:
            message = path = str(folder)
            assert document["n"] >= document["n_scorable"]
        assert "\n" not in message
        assert len(message) < 700
        assert str(folder) in message
        assert path.startswith(str(folder))
        shutil.rmtree(folder / "written", ignore_errors=True)
        (folder / "written").unlink(missing_ok=True)
        shutil.rmtree(folder / "report", ignore_errors=True)
        assert sorted(folder.rglob("*")) == before

    return run


def evaluate(folder, name, file):
    """Everything that `sqale-edge eval` does with the files of a sample."""
    path = next(folder / one for one in SAMPLES[name] if one.startswith(("questions", "data")))
    others = {"gold": "gold.sql", "difficulty": "difficulty.jsonl"}
    others = {option: folder / one for option, one in others.items() if one in SAMPLES[name]}
    if name == "ehrsql2024":
        others["databases"] = folder / "shop.sqlite"
    questions = read_questions(path, **others)
    results = None
    if file == "results.jsonl" and is_results_file(folder / file):
        results = read_results(folder / file, questions)
    sql = results.sql if results else read_predictions(folder / "predictions", questions).sql
    again = write_and_read(folder / "written", questions, sql)
    rules = choose_rules(questions[0].form, ["spider", "spider2", "ehrsql2024"])
    pairs = list(score(questions, [sql, again], rules, timeout_s=1.0))
    assert [seen(one) for one, _ in pairs] == [seen(other) for _, other in pairs]
    outcomes = [one for one, _ in pairs]
    document = summarize(outcomes, rules)
    if results:
        about = {"questions": str(path), "file": str(folder / file), "form": questions[0].form, "settings": SETTINGS}
        about |= {"sqale_edge": "0.1", "sqlite": "3.45", "file_form": "results", "n_unknown": 0}
        document |= about | {"run": dataclasses.asdict(results.run), "analysis": analyze(outcomes, results, rules)}
        write_report(folder / "report", questions, [Judged(document, outcomes, sql, results.answers)], rules, document)
    return json.loads(json.dumps(document))


def write_and_read(path, questions, sql):
    """The predictions as they come back from a submission; as they were, where there can be none."""
    form = submission_form(questions[0].form)
    if not any(question.id in sql for question in questions):
        return sql
    try:
        write_predictions(path, questions, sql, form=form)
    except BenchmarkError as error:
        if "which this form cannot hold" in str(error) or "cannot be the name of a file" in str(error):
            return sql
        raise
    return read_predictions(path, questions).sql


def seen(outcome):
    """What must be the same; a form with a line for each question has no way to leave one out."""
    return outcome.prediction.replace("missing", "no_sql"), outcome.right


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|[^\s\w"]')


@pytest.mark.parametrize(("name", "file"), FILES)
@few
@given(place=st.integers(0, 1 << 16), new=st.integers(0, len(VALUES) - 1))
def test_another_value(check, name, file, place, new):
    """In the place of any word, number or text of any file."""

    def damage(path):
        text = path.read_text(encoding="utf-8")
        found = list(TOKEN.finditer(text))
        match = found[place % len(found)]
        path.write_bytes((text[: match.start()] + VALUES[new] + text[match.end() :]).encode("utf-8", "surrogatepass"))

    check(name, file, damage)


@pytest.mark.parametrize(("name", "file"), FILES)
@few
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.integers(0, len(PIECES) - 1)), min_size=1, max_size=3
    ),
    length=st.none() | st.integers(0, 300),
)
def test_wrong_bytes(check, name, file, cuts, length):
    """Parts of any file replaced by bytes that do not belong there, and its end cut off."""

    def damage(path):
        content = bytearray(path.read_bytes())
        for at, n_bytes, piece in cuts:
            start = at % (len(content) + 1)
            content[start : start + n_bytes] = PIECES[piece]
        path.write_bytes(content[:length])

    check(name, file, damage)


def make_loop(path):
    path.symlink_to(path.name)


ODD_FILES = {
    "empty": lambda path: path.touch(),
    "a folder": lambda path: path.mkdir(),
    "a loop": make_loop,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": getattr(os, "mkfifo", None),
    "absent": lambda path: None,
}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
@pytest.mark.parametrize("odd", ODD_FILES)
@pytest.mark.parametrize(("name", "file"), FILES)
def test_odd_files(check, name, file, odd):
    """In the place of any file."""

    def damage(path):
        path.unlink()
        ODD_FILES[odd](path)

    check(name, file, damage)
