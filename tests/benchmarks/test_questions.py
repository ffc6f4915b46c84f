"""Reading the benchmarks' own files, and files that are wrong."""

import importlib.util
import json
import os
import re
import sys

import pytest
from sqale_edge.benchmarks import read_questions, sample
from sqale_edge.benchmarks.forms import QUESTION_FORMS

from sqale_edge.errors import BenchmarkError

BIRD = {"question_id": 7, "db_id": "shop", "question": "Q?", "evidence": "E", "SQL": "SELECT 1", "difficulty": "simple"}
SPIDER = {"db_id": "shop", "question": "Q?", "query": "SELECT 1", "query_toks": ["SELECT", "1"]}
EHRSQL = {"id": "a", "db_id": "shop", "question": "Q?", "query": "SELECT 1", "is_impossible": False}
SPIDER2 = {"instance_id": "local1", "db": "shop", "question": "Q?", "external_knowledge": None}
PLAIN = {"id": 7, "db": "shop.sqlite", "question": "Q?", "sql": "SELECT 1", "evidence": "E"}
DEFOG = "db_name,query_category,query,question,instructions\nshop,ratio,\"SELECT {a, b} FROM t;SELECT ';'\",Q?,I\n"


def lines(*records):
    return "\n".join(map(json.dumps, records)) + "\n"


@pytest.fixture
def read(tmp_path, shop):
    """What is read of a text, in a file beside the shop's database."""

    def read_text(content, name="questions.json", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_questions(path, **options)

    assert shop == tmp_path / "shop.sqlite"
    return read_text


FORMS = {
    "bird": (json.dumps([BIRD]), "7", ("SELECT 1",), "E", "simple"),
    "bird as lines": (lines(BIRD), "7", ("SELECT 1",), "E", "simple"),
    "spider": (json.dumps([SPIDER]), "0", ("SELECT 1",), "", ""),
    "ehrsql": (json.dumps([EHRSQL]), "a", ("SELECT 1",), "", ""),
    "spider2": (lines(SPIDER2, SPIDER2 | {"instance_id": "bq001"}), "local1", (), "", ""),
    "defog": (
        DEFOG,
        "0",
        ("SELECT a FROM t", "SELECT b FROM t", "SELECT a, b FROM t", "SELECT ';'"),
        "I",
        "ratio",
    ),
    "jsonl": (lines(PLAIN), "7", ("SELECT 1",), "E", ""),
    "jsonl of the shared pairs": (
        lines({"id": "7", "db": "shop.sqlite", "question": "Q?", "gold_sql": "SELECT 1", "gold_alternatives": ["B"]}),
        "7",
        ("SELECT 1", "B"),
        "",
        "",
    ),
    "csv": ('id,db,question,sql\n7,shop.sqlite,Q?,"SELECT 1"\n', "7", ("SELECT 1",), "", ""),
    "csv from Excel": ('\ufeffid,db,question,sql\r\n7,shop.sqlite,Q?,"SELECT 1"\r\n', "7", ("SELECT 1",), "", ""),
    "jsonl without gold": (lines({"id": 7, "db": "shop.sqlite", "question": "Q?"}), "7", (), "", ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(read, shop, name):
    """Each form is known by its fields, and its database found."""
    content, *expected = FORMS[name]
    (question,) = read(content)
    assert [question.id, question.golds, question.evidence, question.difficulty] == expected
    assert (question.question, question.db, question.db_name) == ("Q?", shop, "shop")


def test_utf16_is_read_by_its_mark(read):
    """As PowerShell writes."""
    assert read(lines(PLAIN).encode("utf-16"))[0].id == "7"


def test_ehrsql2024_takes_its_labels_from_beside(read, tmp_path, shop):
    """`null` is a question that cannot be answered."""
    data = json.dumps({"version": "1", "data": [{"id": "a", "question": "Q?"}, {"id": "b", "question": "R?"}]})
    (tmp_path / "my_label.json").write_text(json.dumps({"a": "SELECT 1", "b": "null", "c": "not here"}))
    first, second = read(data, "my_data.json", databases=shop)
    assert (first.golds, first.is_unanswerable, first.db) == (("SELECT 1",), False, shop)
    assert (second.golds, second.is_unanswerable) == ((), True)
    (tmp_path / "my_label.json").write_text(json.dumps({"a": "SELECT 1"}))
    with pytest.raises(BenchmarkError, match="nothing for the question 'b', and 1 are missing"):
        read(data, "my_data.json")
    (tmp_path / "my_label.json").unlink()
    assert read(data, "my_data.json")[0].golds == ()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('["SELECT 1"]', "is no JSON object"),
        ('{"a": 5}', "the SQL of 'a' is '5', but must be a text"),
        ('{"a": ["SELECT 1"]}', "the SQL of 'a' is ['SELECT 1'], but must be a text"),
        ('{"a": null}', "the SQL of 'a' is 'None', but must be a text"),
        ('{"a": ""}', "the SQL of 'a' is '', but must be a text"),
    ],
)
def test_ehrsql2024_labels_are_texts(read, tmp_path, labels, message):
    """Anything else is one line that names the file and the question."""
    (tmp_path / "label.json").write_text(labels)
    with pytest.raises(BenchmarkError, match=re.escape(message)) as caught:
        read(json.dumps({"data": [{"id": "a", "question": "Q?"}]}), "data.json")
    assert caught.value.path == tmp_path / "label.json"


def test_ehrsql_says_what_cannot_be_answered(read):
    """2023's form has a flag, and `null` as SQL."""
    records = [EHRSQL | {"id": "a", "is_impossible": True}, EHRSQL | {"id": "b", "query": "null"}, EHRSQL | {"id": "c"}]
    assert [question.is_unanswerable for question in read(json.dumps(records))] == [True, True, False]


def test_spider2_has_results_instead_of_sql(read, tmp_path):
    """One file, or several of which each is right, with the columns that matter."""
    folder = tmp_path / "gold" / "exec_result"
    folder.mkdir(parents=True)
    for name in ("local1_a.csv", "local1_b.csv", "local10.csv", "local2.csv"):
        (folder / name).write_text("n\n1\n")
    standards = [
        {"instance_id": "local1", "condition_cols": [[0], []], "ignore_order": True},
        {"instance_id": "local2", "condition_cols": [1], "ignore_order": False},
    ]
    (tmp_path / "gold" / "spider2lite_eval.jsonl").write_text(lines(*standards))
    first, second = read(lines(SPIDER2, SPIDER2 | {"instance_id": "local2"}))
    assert [(t.path.name, t.columns, t.is_ordered) for t in first.gold_tables] == [
        ("local1_a.csv", (0,), False),
        ("local1_b.csv", (), False),
    ]
    assert [(t.path.name, t.columns, t.is_ordered) for t in second.gold_tables] == [("local2.csv", (1,), True)]
    with pytest.raises(BenchmarkError, match="no question about SQLite"):
        read(lines(SPIDER2 | {"instance_id": "bq1"}))
    with pytest.raises(BenchmarkError, match="is not a folder"):
        read(lines(SPIDER2), gold=tmp_path / "shop.sqlite")


def test_spider2_shares_columns_and_counts_all_where_none_are_named(read, tmp_path):
    """A plain list is that of every result; a list that is too short leaves the rest with all columns."""
    folder = tmp_path / "gold" / "exec_result"
    folder.mkdir(parents=True)
    for name in ("local1_a.csv", "local1_b.csv"):
        (folder / name).write_text("n,m\n1,2\n")
    expected = {"[1]": [(1,), (1,)], "[[1]]": [(1,), ()], "[null, [0]]": [(), (0,)], "[]": [(), ()], "null": [(), ()]}
    for columns, chosen in expected.items():
        standard = f'{{"instance_id": "local1", "condition_cols": {columns}}}'
        (tmp_path / "gold" / "spider2lite_eval.jsonl").write_text(standard)
        assert [table.columns for table in read(lines(SPIDER2))[0].gold_tables] == chosen


@pytest.mark.parametrize(
    ("standard", "message"),
    [
        ({"condition_cols": [0]}, "entry 2: the id 'None' is no text and no number"),
        ({"instance_id": ["local1"]}, "entry 2: the id ['local1'] is no text and no number"),
        ({"instance_id": "local1", "condition_cols": "0"}, "condition_cols is '0', but must be a list"),
        ({"instance_id": "local1", "condition_cols": ["a"]}, "condition_cols is ['a'], but must list positions"),
        ({"instance_id": "local1", "condition_cols": [[0], 1]}, "condition_cols is [[0], 1], but must list positions"),
        ({"instance_id": "local1", "condition_cols": [[True]]}, "condition_cols is [[True]], but must list positions"),
        ({"instance_id": "local1", "ignore_order": "no"}, "ignore_order is 'no', but must be true or false"),
        ({"instance_id": "local2", "condition_cols": [1]}, "entry 2: the id 'local2' occurs twice"),
    ],
)
def test_spider2_standards_are_what_they_should_be(read, tmp_path, standard, message):
    """What cannot be followed is an error: left out, it would make answers right that are not."""
    (tmp_path / "exec_result").mkdir()
    (tmp_path / "spider2lite_eval.jsonl").write_text(lines({"instance_id": "local2"}, standard))
    with pytest.raises(BenchmarkError, match=re.escape(message)) as caught:
        read(lines(SPIDER2))
    assert caught.value.path == tmp_path / "spider2lite_eval.jsonl"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"question_id": 7, "difficulty": None}], "entry 1: the difficulty 'None' is not a text"),
        ([{"difficulty": "easy"}], "entry 1: the id 'None' is no text and no number"),
        ([{"question_id": 7, "difficulty": "a"}, {"question_id": 7, "difficulty": "b"}], "the id '7' occurs twice"),
    ],
)
def test_difficulties_are_texts(read, tmp_path, records, message):
    """One for each question."""
    (tmp_path / "difficulty.jsonl").write_text(lines(*records))
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        read(lines(BIRD), difficulty=tmp_path / "difficulty.jsonl")


def test_gold_lines_and_difficulties_come_from_other_files(read, tmp_path):
    """BIRD's test form has neither; their lines may hold anything that is no line feed."""
    records = [BIRD | {"question_id": 0}, BIRD | {"question_id": 1}]
    bare = json.dumps([{key: record[key] for key in record.keys() - {"SQL", "difficulty"}} for record in records])
    (tmp_path / "gold.sql").write_text("SELECT 'a\u2028\x0bb'\tshop\nSELECT\t2\tshop\n\n", encoding="utf-8")
    (tmp_path / "diff.jsonl").write_text(
        lines({"question_id": 1, "difficulty": "hard"}, {"question_id": 0, "difficulty": "easy"})
    )
    first, second = read(bare, gold=tmp_path / "gold.sql", difficulty=tmp_path / "diff.jsonl")
    assert (first.golds, first.difficulty) == (("SELECT 'a\u2028\x0bb'",), "easy")
    assert (second.golds, second.difficulty) == (("SELECT\t2",), "hard")
    (tmp_path / "diff.jsonl").write_text(lines({"question_id": 1, "difficulty": "hard"}))
    with pytest.raises(BenchmarkError, match="no difficulty for the question '0'"):
        read(bare, difficulty=tmp_path / "diff.jsonl")


@pytest.mark.parametrize("place", ["shop.sqlite", "shop/shop.sqlite", "database/shop/shop.sqlite", "databases/shop.db"])
def test_databases_are_found_where_benchmarks_keep_them(read, tmp_path, shop, place):
    """Flat or in folders of their own, beside the questions."""
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True, parents=True)
    shop.rename(path)
    assert read(json.dumps([SPIDER]))[0].db == path


def test_databases_can_be_named(read, tmp_path, shop):
    """A folder, or one file for all questions; then nowhere else is looked."""
    folder = tmp_path / "others" / "shop"
    folder.mkdir(parents=True)
    missing = read(json.dumps([SPIDER]), databases=tmp_path / "others")[0].db
    assert missing == tmp_path / "others" / "shop.sqlite"
    shop.rename(folder / "shop.sqlite")
    assert read(json.dumps([SPIDER]), databases=tmp_path / "others")[0].db == folder / "shop.sqlite"
    assert read(json.dumps([SPIDER]), databases=folder / "shop.sqlite")[0].db == folder / "shop.sqlite"


WRONG = {
    "nothing": (b"", "neither JSON nor a CSV"),
    "an empty list": (b"[]", "holds nothing"),
    "prose": (b"hello\n", "neither JSON nor a CSV"),
    "half a list": (b'[{"id": 1},', "line 1: not valid JSON"),
    "a broken line": (lines(PLAIN) + "{'id': 8}\n", "line 2: not valid JSON"),
    "a key twice": ('{"id": 1, "id": 2, "db": "a", "question": "b"}', "the key 'id' occurs twice"),
    "no objects": ("[1]", "entry 1 is '1', but must be an object"),
    "unknown fields": (lines({"a": 1}), "no known form: their fields are 'a'"),
    "an id twice": (lines(PLAIN, PLAIN), "questions 1 and 2 have the same id '7'"),
    "a missing field": (lines(PLAIN, {"id": 8, "db": "a"}), "question 2 has no field 'question'"),
    "a number as question": (lines(PLAIN | {"question": 5}), "question 1: '5' is not a text"),
    "a list as gold": (lines(PLAIN | {"sql": ["SELECT 1"]}), "is not a text"),
    "a number as database": (lines(PLAIN | {"db": 5}), "question 1"),
    "Latin-1": (lines(PLAIN).encode() + b"\xe9", "is not UTF-8: byte 0xe9 in line 2"),
    "a short row": ("id,db,question,sql\n1,shop.sqlite,Q?\n", "line 2: the row does not have 4 cells"),
    "a long row": ("id,db,question\n1,shop.sqlite,Q?,x\n", "line 2: the row does not have 3 cells"),
    "a column twice": (
        "id,db,question,sql,sql\n1,shop.sqlite,Q?,SELECT 1,SELECT 2\n",
        "has two columns named 'sql'",
    ),
    "no id": (lines(PLAIN | {"id": None}), "question 1 (read as jsonl): the id 'None' is no text and no number"),
    "an object as id": (lines(BIRD | {"question_id": {"a": 1}}), "the id {'a': 1} is no text and no number"),
    "a number of 5,000 digits": ('{"id": ' + "9" * 5000 + ', "db": "a", "question": "b"}', "a number of 5000 digits"),
    "such a number in a list": ('[{"id": ' + "9" * 5000 + ', "db": "a", "question": "b"}]', "a number of 5000 digits"),
    "more choices than can be run": (
        'db_name,query,question\nshop,"SELECT {' + ",".join("abcdefghijklmnopqrstuvwxyz") + '} FROM t",Q?\n',
        "question 1 (read as defog): its choices of columns stand for more than 1000 statements",
    ),
    "many keys of which the last is there twice": (
        "{" + "".join(f'"{n}": 1, ' for n in range(100_000)) + '"99999": 1}',
        "the key '99999' occurs twice",
    ),
    "an open quote": ('id,db,question\n1,shop.sqlite,"Q\n', "not valid CSV"),
    "brackets without end": ("[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_clear_line(read, name):
    """With the file and the place."""
    content, message = WRONG[name]
    with pytest.raises(BenchmarkError, match=r"questions\.json") as caught:
        read(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path.name == "questions.json"


def test_columns_without_a_name_may_be_many(read):
    """A spreadsheet leaves some behind, and nothing is read of them."""
    assert read("id,db,question,sql,,\n7,shop.sqlite,Q?,SELECT 1,,\n")[0].golds == ("SELECT 1",)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
@pytest.mark.parametrize(
    "make", [getattr(os, "mkfifo", None), lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_a_file_without_an_end_is_not_read(tmp_path, make):
    """It would take forever, or all memory."""
    make(tmp_path / "q.jsonl")
    with pytest.raises(BenchmarkError, match="is a pipe or a device"):
        read_questions(tmp_path / "q.jsonl")


def test_a_file_that_is_not_there(tmp_path):
    """Or is a folder."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BenchmarkError, match="cannot be read"):
            read_questions(path)


@pytest.mark.parametrize("form", sorted(set(QUESTION_FORMS) - {"sqale", "jsonl", "csv"}))
def test_a_form_that_is_not_the_files_is_refused(read, form):
    """The field that is missing is named."""
    with pytest.raises(BenchmarkError, match=f"question 1 has no field '.*' \\(read as {form}\\)"):
        read(lines({"x": 1}), form=form)


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ("SELECT 1\tshop\n", "has 1 lines for 2 questions"),
        ("SELECT 1\tshop\nSELECT 2\tshop\nSELECT 3\tshop\n", "has 3 lines for 2 questions"),
        ("SELECT 1\tother\nSELECT 2\tshop\n", "line 1 is about the database 'other', but question '0' about 'shop'"),
    ],
)
def test_gold_lines_are_never_shifted(read, tmp_path, gold, message):
    """Their number and their databases must be those of the questions."""
    (tmp_path / "gold.sql").write_text(gold)
    with pytest.raises(BenchmarkError, match=message):
        read(json.dumps([SPIDER, SPIDER | {"db_id": "other"}]), gold=tmp_path / "gold.sql")


def test_samples_are_repeatable(read):
    """The same seed gives the same questions, in the order of the file."""
    questions = read(lines(*({**PLAIN, "id": i} for i in range(100))))
    some = [question.id for question in sample(questions, 10, 1)]
    assert some == [question.id for question in sample(questions, 10, 1)]
    assert some == sorted(some, key=int)
    assert some != [question.id for question in sample(questions, 10, 2)]
    assert sample(questions, 1000, 1) == questions


@pytest.mark.skipif(importlib.util.find_spec("sqale") is not None, reason="the SQaLe library is installed")
def test_sqale_needs_its_library(tmp_path):
    """And says so, with the command that installs it."""
    (tmp_path / "test-0.parquet").write_bytes(b"PAR1")
    for path in (tmp_path / "test-0.parquet", tmp_path, "trl-lab/sqale2_queries"):
        with pytest.raises(BenchmarkError, match="needs the SQaLe library") as caught:
            read_questions(path)
        assert "pip install" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("sqale") is None, reason="the SQaLe library is not installed")
@pytest.mark.parametrize("is_old", [False, True])
def test_sqale_is_read_by_its_library(tmp_path, shop, is_old):
    """Both published layouts; questions without the original phrasing are left out."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    verbose = "verbose (original)" if is_old else "verbose"
    texts = ["Q?", "..."]
    rows = [
        {
            "question id" if is_old else "question_id": f"q{i}",
            "schema id" if is_old else "schema_id": "my shop",
            "sql statament" if is_old else "sql": "SELECT 1",
            "difficulty": "hard",
            "questions": json.dumps({verbose: text}),
        }
        for i, text in enumerate(texts)
    ]
    path = tmp_path / "test-0.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    shop.rename(tmp_path / "my_shop.db")  # as sqale-extract names it
    (question,) = read_questions(path)
    assert (question.id, question.golds, question.difficulty) == ("q0", ("SELECT 1",), "hard")
    assert (question.db, question.form) == (tmp_path / "my_shop.db", "sqale")
    rows[0]["questions"] = "[" * 3000 + "]" * 3000
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    with pytest.raises(BenchmarkError, match="cannot be read as SQaLe"):
        read_questions(path)
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(BenchmarkError, match="cannot be read as SQaLe"):
        read_questions(path)
