"""Predictions in the benchmarks' forms: never at another question."""

import json
from pathlib import Path

import pytest
from sqale_edge.benchmarks import Question, read_predictions

from sqale_edge.errors import BenchmarkError

BIRD = "\t----- bird -----\t"
QUESTIONS = [Question(str(i), Path(f"{name}.sqlite"), "Q?") for i, name in enumerate(("shop", "shop", "world"))]
# Ids that are no positions.
SPARSE = [Question(id_, q.db, "Q?") for id_, q in zip(("5", "1", "0"), QUESTIONS, strict=True)]


def write(tmp_path, content):
    path = tmp_path / "predictions"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


READ = {
    "bird, 0 where there is none": (json.dumps({"0": 0, "1": f"A{BIRD}shop"}), "bird", {"0": None, "1": "A"}),
    "bird without any answer": (json.dumps({"0": 0, "1": 0}), "bird", {"0": None, "1": None}),
    "bird in another order": (
        json.dumps({"2": f"C{BIRD}world", "0": f"A{BIRD}shop"}),
        "bird",
        {"0": "A", "2": "C"},
    ),
    "spider with databases": ("A\tshop\nB\nC\tworld\n", "spider", {"0": "A", "1": "B", "2": "C"}),
    "spider with tabs in the SQL": ("A\nSELECT\t1\nC\n", "spider", {"0": "A", "1": "SELECT\t1", "2": "C"}),
    "spider with an empty line": ("A\n\nC\n", "spider", {"0": "A", "1": None, "2": "C"}),
    "spider with empty lines at the end": ("A\nB\nC\n\n\n", "spider", {"0": "A", "1": "B", "2": "C"}),
    "spider from Windows": ("A\r\nB\r\nC\r\n", "spider", {"0": "A", "1": "B", "2": "C"}),
    "ehrsql": (json.dumps({"0": "null", "1": "B"}), "ehrsql", {"0": None, "1": "B"}),
    "jsonl": ('{"id": 0, "sql": "A"}\n\n{"id": "1", "sql": null}\n', "jsonl", {"0": "A", "1": None}),
    "one line of jsonl": ('{"id": 0, "sql": "A"}', "jsonl", {"0": "A"}),
    "a JSON list": ('[{"id": 0, "sql": "A", "turns": 3}]', "jsonl", {"0": "A"}),
    "csv": ('id,sql\n0,"A\nB"\n', "jsonl", {"0": "A\nB"}),
    "nothing but white space": ('{"id": 0, "sql": " \\n"}', "jsonl", {"0": None}),
}


@pytest.mark.parametrize("name", READ)
def test_reading(tmp_path, name):
    """Each form is known by its look; None says that there is no answer, and a missing one is not there."""
    content, form, expected = READ[name]
    found = read_predictions(write(tmp_path, content), QUESTIONS)
    assert (found.form, dict(found.sql), found.unknown) == (form, expected, ())


def test_birds_keys_are_ids_or_positions(tmp_path):
    """All of them one or the other: ids if every key is one."""
    by_position = {"0": f"A{BIRD}shop", "1": f"B{BIRD}shop", "2": f"C{BIRD}world"}
    found = read_predictions(write(tmp_path, json.dumps(by_position)), SPARSE)
    assert found.sql == {"5": "A", "1": "B", "0": "C"}
    by_id = {"0": f"C{BIRD}world", "5": f"A{BIRD}shop"}
    assert read_predictions(write(tmp_path, json.dumps(by_id)), SPARSE).sql == {"5": "A", "0": "C"}


def test_unknown_ids_are_told(tmp_path):
    """Some may be for other questions; if all are, it is the wrong file."""
    path = write(tmp_path, '{"id": "x", "sql": "A"}\n{"id": "1", "sql": "B"}\n')
    assert read_predictions(path, QUESTIONS).unknown == ("x",)
    with pytest.raises(BenchmarkError, match="is for other questions: its first id is 'x', theirs '0'"):
        read_predictions(write(tmp_path, '{"id": "x", "sql": "A"}\n'), QUESTIONS)


WRONG = {
    "a line too few": ("A\nB\n", "has 2 lines for 3 questions"),
    "a line too many": ("A\nB\nC\nD\n", "has 4 lines for 3 questions"),
    "SQL on two lines": ("SELECT\n1\nB\nC\n", "has 4 lines for 3 questions"),
    "lines in another order": ("C\tworld\nB\tshop\nA\tshop\n", "line 1 is about the database 'world'"),
    "nothing": ("", "has 0 lines for 3 questions"),
    "an id twice": ('{"id": 1, "sql": "A"}\n{"id": "1", "sql": "B"}\n', "two predictions for '1'"),
    "a key twice": ('{"1": "A", "1": "B"}', "the key '1' occurs twice"),
    "no id": ('{"id": 1, "sql": "A"}\n{"sql": "B"}\n', "prediction 2 has no id or no sql"),
    "a column twice": ("id,sql,sql\n0,A,B\n", "has two columns named 'sql'"),
    "an id twice as a column": ("id,sql,id\n0,A,1\n", "has two columns named 'id'"),
    "a list as id": ('{"id": [1], "sql": "A"}\n', "prediction 1: the id [1] is no text and no number"),
    "no id at all": ('{"id": null, "sql": "A"}\n', "the id 'None' is no text and no number"),
    "a number of 5,000 digits": ('{"id": "0", "sql": "A", "n": ' + "9" * 5000 + "}", "a number of 5000 digits"),
    "such a number in a later line": (
        '{"id": "0", "sql": "A"}\n{"id": ' + "9" * 5000 + ', "sql": "B"}\n',
        "line 2: not valid JSON: a number of 5000 digits",
    ),
    "a number as SQL": ('{"1": 5}', "the SQL of '1' is '5', but must be a text"),
    "BIRD's other questions": (json.dumps({"0": f"A{BIRD}world"}), "prediction '0' is about the database 'world'"),
    "Latin-1": (b"SELECT '\xe9'\nB\nC\n", "is not UTF-8: byte 0xe9 in line 1"),
    "half a file": ('{"0": "A", ', "not valid JSON"),
    "a list of texts": ('["A", "B", "C"]', "entry 1 is 'A', but must be an object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_clear_line(tmp_path, name):
    """And never a shift of all answers by one."""
    content, message = WRONG[name]
    with pytest.raises(BenchmarkError) as caught:
        read_predictions(write(tmp_path, content), QUESTIONS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path == tmp_path / "predictions"


def test_a_form_can_be_forced(tmp_path):
    """Where the look deceives; a file that is not of it is refused."""
    assert read_predictions(write(tmp_path, '{"a"}\nB\nC\n'), QUESTIONS, form="spider").sql["0"] == '{"a"}'
    with pytest.raises(BenchmarkError, match="no JSON object, which the form bird is"):
        read_predictions(write(tmp_path, "[]"), QUESTIONS, form="bird")


def test_a_folder_has_a_file_for_each_question(tmp_path):
    """As Spider 2 takes it: `ID.sql`, to the byte; other files are not looked at."""
    for name, content in {"0.sql": b"SELECT '\r\n'", "2.sql": b" \n", "9.sql": b"A", "0.csv": b"n\n1\n"}.items():
        (tmp_path / name).write_bytes(content)
    found = read_predictions(tmp_path, QUESTIONS)
    assert (found.form, found.sql, found.unknown) == ("spider2", {"0": "SELECT '\r\n'", "2": None}, ("9",))


def test_a_folder_of_results_is_one_clear_line(tmp_path):
    """What is judged is SQL."""
    (tmp_path / "0.csv").write_text("n\n1\n")
    with pytest.raises(BenchmarkError, match=r"has no file with SQL, such as '0\.sql'") as caught:
        read_predictions(tmp_path, QUESTIONS)
    assert "CSV" in caught.value.hint
