"""Predictions that are written come back as what they were, and replace nothing by accident."""

import sys
from pathlib import Path

import pytest
from sqale_edge.benchmarks import Question, choose_rules, read_predictions, score, write_predictions
from sqale_edge.benchmarks.forms import QUESTION_FORMS
from sqale_edge.benchmarks.predictions import BIRD_MARK, PREDICTION_FORMS
from sqale_edge.benchmarks.submissions import submission_form

from sqale_edge.errors import BenchmarkError

QUESTIONS = [Question(str(i), Path(f"{name}.sqlite"), "Q?") for i, name in enumerate(("shop", "shop", "world"))]
# Ids that are no positions, as in BIRD's mini-dev.
SPARSE = [Question(id_, q.db, "Q?") for id_, q in zip(("5", "1", "0"), QUESTIONS, strict=True)]
# What a model may answer, and that it gives where it runs; None where it does not.
ANSWERS = {
    "plain": ("SELECT 1", (1,)),
    "an answer that says null": ("SELECT 'null'", ("null",)),
    "non-ASCII": ("SELECT 'Zoë \u2028\x85\x0b\x1c'", ("Zoë \u2028\x85\x0b\x1c",)),
    "quotes": ("SELECT 'it''s', 1 AS \"a\"\"b\", 2 AS [b  c], 3 AS `d`", ("it's", 1, 2, 3)),
    "semicolons": ("; SELECT ';' ;;", (";",)),
    "comments": ("-- one ' \n/* two -- */ SELECT 1 -- three\n, 2 -- /* four", (1, 2)),
    "a comment that ends in another": ("SELECT 1 -- */ x\n, 2", (1, 2)),
    "lines": ("\nSELECT 1\r\n,\n\n2\n", (1, 2)),
    "tabs": ("\tSELECT\t1\tAS shop\t", (1,)),
    "the mark of BIRD's form": (f"SELECT '{BIRD_MARK}'", (BIRD_MARK,)),
    "that mark and a database": (f"SELECT '{BIRD_MARK}world'", (f"{BIRD_MARK}world",)),
    "tabs and lines in a literal": ("SELECT 'a\tb\r\nc\rd\ne'", ("a\tb\r\nc\rd\ne",)),
    "a brace first": ("{not SQL}", None),
    "a bracket first": ("[not SQL]", None),
    "the columns of a CSV file": ("id,sql", None),
    "JSON lines": ('{"id": "0", "sql": "SELECT 1"}', None),
}
IN_LITERALS = {"tabs and lines in a literal", "the mark of BIRD's form", "that mark and a database"}


@pytest.mark.parametrize("form", PREDICTION_FORMS)
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("questions", [QUESTIONS, SPARSE], ids=["positions", "ids"])
def test_round_trip(tmp_path, form, name, questions):
    """What is written is read again, with the question in the middle unanswered, and nothing else is left."""
    sql, path = ANSWERS[name][0], tmp_path / "predictions"
    given = {questions[0].id: sql, questions[1].id: None, questions[2].id: "SELECT 3"}
    if form == "spider" and name in IN_LITERALS:
        with pytest.raises(BenchmarkError, match="has a tab or a line end in a literal"):
            write_predictions(path, questions, given, form=form)
        assert list(tmp_path.iterdir()) == []
        return
    write_predictions(path, questions, given, form=form)
    # Only prose can deceive: a line of Spider's form that looks like another one.
    found = read_predictions(path, questions, form="spider" if form == "spider" and ANSWERS[name][1] is None else None)
    assert (found.form, found.unknown) == (form, ())
    if form == "spider":
        assert not {"\t", "\n", "\r"} & set(found.sql[questions[0].id])
        given = given | {questions[0].id: found.sql[questions[0].id]}
    assert found.sql == given
    assert list(tmp_path.iterdir()) == [path]


def as_gold(row):
    """SQL of a row in which no character has to be quoted."""
    texts = ["||".join(f"char({ord(c)})" for c in cell) if isinstance(cell, str) else str(cell) for cell in row]
    return f"SELECT {', '.join(texts)}"


@pytest.mark.parametrize("form", PREDICTION_FORMS)
def test_outcomes_stay_the_same(tmp_path, shop, form):
    """Each answer still gives its rows, one that fails fails in the same way, and none is still none."""
    names = [name for name, (_, row) in ANSWERS.items() if row and not (form == "spider" and name in IN_LITERALS)]
    golds = [as_gold(ANSWERS[name][1]) for name in names] + ["SELECT 1", "SELECT 1"]
    questions = [Question(str(number), shop, "?", (gold,)) for number, gold in enumerate(golds)]
    questions.append(Question("alone", shop, "?", is_unanswerable=True))
    answers = [*(ANSWERS[name][0] for name in names), None, "SELECT nothing", None]
    given = {question.id: sql for question, sql in zip(questions, answers, strict=True)}
    write_predictions(tmp_path / "p", questions, given, form=form)
    again = read_predictions(tmp_path / "p", questions).sql
    pairs = list(score(questions, [given, again], choose_rules("spider")))
    assert [one.right["strict"] for one, _ in pairs] == [True] * len(names) + [False, False, True]
    assert [one.to_dict() for one, _ in pairs] == [other.to_dict() for _, other in pairs]


@pytest.mark.parametrize("form", PREDICTION_FORMS)
def test_what_was_not_asked_is_left_out(tmp_path, form):
    """But not where that would move the others to the wrong questions."""
    write_predictions(tmp_path / "p", QUESTIONS, {"2": "SELECT 3", "unknown": "SELECT 4"}, form=form)
    found = read_predictions(tmp_path / "p", QUESTIONS)
    left = {"0": None, "1": None} if form in ("bird", "spider") else {}
    assert (found.sql, found.unknown) == ({**left, "2": "SELECT 3"}, ())


@pytest.mark.parametrize("form", PREDICTION_FORMS)
def test_no_answers_at_all(tmp_path, form):
    """A run without one has a file that says so; nothing asked has none."""
    none = dict.fromkeys("012")
    write_predictions(tmp_path / "p", QUESTIONS, none, form=form)
    found = read_predictions(tmp_path / "p", QUESTIONS)
    assert (found.form, found.sql) == (form, none)
    with pytest.raises(BenchmarkError, match="there is no answer to write"):
        write_predictions(tmp_path / "q", QUESTIONS, {}, form=form)
    assert list(tmp_path.iterdir()) == [tmp_path / "p"]


@pytest.mark.parametrize("form", ["spider", "spider2"])
def test_half_a_character_cannot_be_held(tmp_path, form):
    """The question is named, and the way out; JSON has a form for it."""
    sql = {"1": "SELECT '\ud800'"}
    with pytest.raises(BenchmarkError, match="the SQL of question '1' has half a character") as caught:
        write_predictions(tmp_path / "p", QUESTIONS, sql, form=form)
    assert "--predictions-form jsonl" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    write_predictions(tmp_path / "p", QUESTIONS, sql, form="jsonl")
    assert read_predictions(tmp_path / "p", QUESTIONS).sql == sql


@pytest.mark.parametrize("id_", ["../1", "a/b", "a b", "", "nul\0"])
def test_an_id_that_is_no_name_of_a_file(tmp_path, id_):
    """It is never used as one."""
    with pytest.raises(BenchmarkError, match="cannot be the name of a file"):
        write_predictions(tmp_path / "p", [Question(id_, Path("shop.sqlite"), "Q?")], {id_: "SELECT 1"}, form="spider2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", PREDICTION_FORMS)
def test_nothing_is_replaced_unless_that_is_asked_for(tmp_path, form):
    """An error leaves what was there; `overwrite` replaces it as a whole."""
    path = tmp_path / "p"
    write_predictions(path, QUESTIONS, {"0": "SELECT 1", "1": "SELECT 2"}, form=form)
    before = read_predictions(path, QUESTIONS)
    with pytest.raises(BenchmarkError, match="exists already") as caught:
        write_predictions(path, QUESTIONS, {"0": "SELECT 9"}, form=form)
    assert "--overwrite" in caught.value.hint
    assert read_predictions(path, QUESTIONS) == before
    write_predictions(path, QUESTIONS, {"0": "SELECT 9"}, form=form, overwrite=True)
    assert read_predictions(path, QUESTIONS).sql["0"] == "SELECT 9"
    assert read_predictions(path, QUESTIONS).sql.get("1") is None
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="not everybody may make links there")
@pytest.mark.parametrize("form", PREDICTION_FORMS)
def test_a_link_to_nothing_is_taken(tmp_path, form):
    """It is somebody's, and is not written through."""
    (tmp_path / "p").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BenchmarkError, match="exists already"):
        write_predictions(tmp_path / "p", QUESTIONS, {"0": "SELECT 1"}, form=form)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    """Nor is one by a file, or a file by one."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "0.sql").write_text("SELECT 1")
    (tmp_path / "p" / "thesis.tex").write_text("mine")
    with pytest.raises(BenchmarkError, match="is no folder of SQL files alone"):
        write_predictions(tmp_path / "p", QUESTIONS, {"0": "SELECT 9"}, form="spider2", overwrite=True)
    with pytest.raises(BenchmarkError, match="is no file, and is not replaced"):
        write_predictions(tmp_path / "p", QUESTIONS, {"0": "SELECT 9"}, form="jsonl", overwrite=True)
    with pytest.raises(BenchmarkError, match="is no folder of SQL files alone"):
        write_predictions(tmp_path / "p" / "0.sql", QUESTIONS, {"0": "SELECT 9"}, form="spider2", overwrite=True)
    assert {path.name: path.read_text() for path in (tmp_path / "p").iterdir()} == {
        "0.sql": "SELECT 1",
        "thesis.tex": "mine",
    }


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
def test_a_device_is_not_replaced(tmp_path):
    """Not even where files may be."""
    with pytest.raises(BenchmarkError, match="is no file, and is not replaced"):
        write_predictions("/dev/null", QUESTIONS, {"0": "SELECT 9"}, form="jsonl", overwrite=True)
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("form", PREDICTION_FORMS)
@pytest.mark.parametrize(
    ("name", "message"),
    [("none/p", "there is no folder"), ("file/p", "there is no folder"), ("x" * 300, "cannot be written")],
)
def test_a_place_that_cannot_be_written(tmp_path, form, name, message):
    """Is one line."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BenchmarkError, match=message) as caught:
        write_predictions(tmp_path / name, QUESTIONS, {"0": "SELECT 1"}, form=form)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_long_name_is_a_name(tmp_path):
    """As long as the file system takes it."""
    write_predictions(tmp_path / ("x" * 255), QUESTIONS, {"0": "SELECT 1"}, form="jsonl")
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


def test_each_benchmark_has_its_form():
    """Those without one of their own get JSON lines."""
    forms = {form: submission_form(form) for form in QUESTION_FORMS}
    assert {form for form, written in forms.items() if written == "jsonl"} == {"defog", "jsonl", "csv", "sqale"}
    assert set(forms.values()) == set(PREDICTION_FORMS)
    assert forms["ehrsql2024"] == "ehrsql"
