"""What a model answered stays, whatever ends the program, and is never mixed with another run's."""

import dataclasses
import json
import re

import pytest
from sqale_edge.benchmarks import Answer, Question, ResultsFile, Run, ask_questions, read_results
from sqale_edge.benchmarks.results_file import digest_questions, is_results_file

from sqale_edge import Agent
from sqale_edge.errors import BenchmarkError, Cancelled
from sqale_edge.testing import ScriptedEngine

SUBMIT = '{"tool": "submit_sql", "args": {"sql": "SELECT count(*) FROM customers"}}'
LISTS = '{"tool": "list_tables", "args": {}}'


@pytest.fixture
def questions(shop):
    return [Question(str(number), shop, f"Question {number}?", ("SELECT 1",)) for number in range(4)]


@pytest.fixture
def described(questions):
    settings = {"engine": {"n_ctx": 4096}, "limits": {"tool_turns": 6}}
    return Run("m.gguf", "ab" * 32, 7, "own", settings, 0, digest_questions(questions), "0.1", "3.45")


def make_agent():
    return Agent(ScriptedEngine([LISTS, SUBMIT]))


def ask(path, described, questions, **options):
    with ResultsFile(path, described) as results:
        return [question.id for question in ask_questions(make_agent(), questions, results, **options)]


def test_answers_come_back_as_they_were(tmp_path, described, questions):
    """The whole episode, with its turns; the run, too."""
    path = tmp_path / "r.jsonl"
    assert not is_results_file(path)
    assert ask(path, described, questions) == list("0123")
    results = read_results(path, questions)
    assert is_results_file(path)
    assert results.run == described
    assert results.sql == dict.fromkeys("0123", "SELECT count(*) FROM customers")
    assert results.answers["2"].episode.rows == ((4,),)
    assert [turn.calls[0].name for turn in results.answers["2"].episode.turns] == ["list_tables", "submit_sql"]


def test_no_question_is_asked_twice(tmp_path, described, questions):
    """A second start asks what is left, and a third nothing."""
    path = tmp_path / "r.jsonl"
    assert ask(path, described, questions[1:3]) == ["1", "2"]
    before = path.read_bytes()
    assert ask(path, described, questions) == ["0", "3"]
    assert path.read_bytes().startswith(before)
    assert ask(path, described, questions) == []


def test_a_kill_at_any_byte_loses_the_line_in_progress(tmp_path, described, questions):
    """Wherever the file ends, its whole lines are kept, and the rest is asked again."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:2])
    whole = path.read_bytes()
    path.unlink()
    for n_bytes in [*range(0, len(whole), 97), len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:n_bytes])
        with ResultsFile(path, described) as results:
            assert len(results.answers) == max(0, whole[:n_bytes].count(b"\n") - 1)
            results.add(Answer("9", None))
        assert [*read_results(path, questions).answers][-1] == "9"


def test_a_stop_keeps_what_is_done(tmp_path, described, questions):
    """The question in progress has no answer."""
    path = tmp_path / "r.jsonl"
    done = []
    with ResultsFile(path, described) as results, pytest.raises(Cancelled):
        done += ask_questions(make_agent(), questions, results, should_stop=lambda: len(results.answers) == 2)
    assert [*read_results(path, questions).answers] == ["0", "1"]


def test_a_vote_on_each_question(tmp_path, described, questions):
    """The winner's episode is kept with how the candidates voted; too long a question is answered by its error."""
    other = '{"tool": "submit_sql", "args": {"sql": "SELECT 7"}}'
    agent = Agent(ScriptedEngine(lambda seed: [other if seed == 1 else SUBMIT], n_sequences=3, n_ctx=4_000))
    path = tmp_path / "r.jsonl"
    long = dataclasses.replace(questions[0], question="long " * 1000)
    with ResultsFile(path, described) as results:
        asked = [question.id for question in ask_questions(agent, [long, questions[1]], results, seed=0, n_votes=3)]
    answers = read_results(path, questions).answers
    assert asked == ["0", "1"]
    assert "4000" in answers["0"].error
    assert answers["1"].episode.seed == 0
    assert answers["1"].sql == json.loads(SUBMIT)["args"]["sql"]
    assert [one["group"] for one in answers["1"].votes["candidates"]] == [0, 1, 0]


def test_many_at_a_time(tmp_path, described, questions):
    """All are asked and kept, whatever the number of sequences."""
    agent = Agent(ScriptedEngine([SUBMIT], n_sequences=2))
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, described) as results:
        asked = [question.id for question in ask_questions(agent, questions, results)]
    assert sorted(asked) == sorted(question.id for question in questions)
    assert [*read_results(path, questions).answers] == asked


def test_what_cannot_be_asked(tmp_path, described, questions):
    """Too long a question is answered by its error; one without a database can be asked when that is there."""
    long = dataclasses.replace(questions[0], question="long " * 1000)
    nowhere = dataclasses.replace(questions[1], db=tmp_path / "none.sqlite")
    broken = dataclasses.replace(questions[2], db=tmp_path / "broken.sqlite")
    broken.db.write_bytes(b"no database" * 1000)
    agent = Agent(ScriptedEngine([SUBMIT], n_ctx=4000))
    with ResultsFile(tmp_path / "r.jsonl", described) as results:
        asked = [question.id for question in ask_questions(agent, [long, nowhere, broken], results)]
        assert asked == ["0", "2"]
        assert [*results.answers] == ["0"]
        assert results.answers["0"].sql is None
        assert "4000" in results.answers["0"].error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_sha256": "cd" * 32}, "model_sha256"),
        ({"prompt": "training"}, "prompt 'own' there, 'training' now"),
        ({"seed": 1}, "seed 0 there, 1 now"),
        ({"questions_sha256": "other"}, "questions_sha256"),
        ({"settings": {"engine": {"n_ctx": 8}, "limits": {"tool_turns": 6}}}, "'engine.n_ctx=4096' there"),
    ],
)
def test_another_run_is_an_error(tmp_path, described, questions, change, message):
    """It names what differs, and the file stays as it is."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:1])
    before = path.read_bytes()
    with pytest.raises(BenchmarkError, match=re.escape(message)) as caught:
        ResultsFile(path, dataclasses.replace(described, **change))
    assert "--output" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"mine", b"mine\n", b'{"id": 1, "sql": "SELECT 1"}\n', b"\x00"])
def test_somebody_elses_file_is_left_alone(tmp_path, described, content):
    """One that does not begin as a results file does is an error."""
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(BenchmarkError, match="no results file"):
        ResultsFile(path, described)
    assert path.read_bytes() == content


def test_a_broken_line_in_the_middle_is_named(tmp_path, described, questions):
    """No kill makes one: it is an error, not a question to be asked again."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:2])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{}\n" + lines[2])
    with pytest.raises(BenchmarkError, match="line 2"):
        ResultsFile(path, described)
    path.write_bytes(lines[0] + lines[1])
    with pytest.raises(BenchmarkError, match="other questions"):
        read_results(path, questions[:1])


DAMAGE = {
    "no object": b"[1]\n",
    "a number of 5,000 digits": b'{"id": "1", "sql": null, "error": "", "votes": null, "episode": '
    + b"9" * 5000
    + b"}\n",
    "brackets without end": b"[" * 100_000 + b"\n",
    "an episode without turns": b'{"id": "1", "sql": null, "error": "", "episode": {}, "votes": null}\n',
    "a number as SQL": b'{"id": "1", "sql": 5, "error": "", "episode": null, "votes": null}\n',
    "a list as id": b'{"id": ["1"], "sql": null, "error": "", "episode": null, "votes": null}\n',
    "votes that are none": b'{"id": "1", "sql": null, "error": "", "episode": null, "votes": {"n_votes": 3}}\n',
    "another encoding": b'{"id": "1", "sql": "SELECT \'\xe9\'", "error": "", "episode": null, "votes": null}\n',
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_line_is_one_clear_line(tmp_path, described, questions, name):
    """With its number."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:1])
    path.write_bytes(path.read_bytes() + DAMAGE[name])
    with pytest.raises(BenchmarkError, match="line 3: this is no answer") as caught:
        read_results(path, questions)
    assert (caught.value.path, "\n" in str(caught.value)) == (path, False)


def test_two_answers_to_one_question_are_an_error(tmp_path, described, questions):
    """Two programs have written at once, or a line was copied: which one counts is not guessed."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:1])
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(BenchmarkError, match="line 3: this is a second answer to '0'"):
        read_results(path, questions)


@pytest.mark.parametrize("settings", [b"5", b"[1]", b"9" * 5000])
def test_a_damaged_first_line_is_one_clear_line(tmp_path, described, questions, settings):
    """It says which run the answers belong to."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:1])
    path.write_bytes(re.sub(rb'"settings": \{.*?\}\}', b'"settings": ' + settings, path.read_bytes(), count=1))
    with pytest.raises(BenchmarkError, match="line 1: this does not say which run it is"):
        read_results(path, questions)


def test_what_says_that_there_is_no_answer_is_none(tmp_path, described, questions):
    """As in a file of predictions."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, described) as results:
        for key, sql in {"0": " ", "1": "null", "2": "SELECT 'null'", "3": None}.items():
            results.add(Answer(key, sql))
    assert read_results(path, questions).sql == {"0": None, "1": None, "2": "SELECT 'null'", "3": None}


@pytest.mark.parametrize("change", [(b'"n_decoded": ', b'"n_decoded": 1.5, "n": '), (b'"turns": [', b'"turns": [5, ')])
def test_an_episode_with_a_part_of_another_type_is_refused(tmp_path, described, questions, change):
    """Before anything is counted."""
    path = tmp_path / "r.jsonl"
    ask(path, described, questions[:1])
    content = path.read_bytes()
    assert change[0] in content
    path.write_bytes(content.replace(*change, 1))
    with pytest.raises(BenchmarkError, match="line 2: this is no answer"):
        read_results(path, questions)
