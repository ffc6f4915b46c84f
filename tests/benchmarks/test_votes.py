"""What votes are worth, out of runs with other seeds."""

import dataclasses
import json

import pytest
from sqale_edge.benchmarks import Run, ask_questions, read_questions
from sqale_edge.benchmarks.results_file import ResultsFile, digest_questions
from sqale_edge.benchmarks.votes import main, measure_votes, write_table

from sqale_edge import Agent
from sqale_edge.errors import BenchmarkError
from sqale_edge.sample_shop import write_sample_shop
from sqale_edge.testing import ScriptedEngine

RIGHT, WRONG, OTHER = "SELECT count(*) FROM customers", "SELECT 7", "SELECT 8"
NONE = "SELECT nothing"


@pytest.fixture
def asked(tmp_path):
    """A file of two questions with the same gold, and a function that asks them with a seed."""
    write_sample_shop(tmp_path / "shop.sqlite")
    lines = [{"id": f"q{n}", "db": "shop.sqlite", "question": f"Question {n}?", "sql": RIGHT} for n in range(2)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    questions = read_questions(path)
    settings = {"votes": 1, "sampling": {"temperature": 0.6}}
    run = Run("m.gguf", "ab" * 32, 7, "own", settings, 0, digest_questions(questions), "0.1", "3.45")

    def ask(seed, *statements, **changed):
        result = tmp_path / f"seed{seed}{len(changed)}.jsonl"
        with ResultsFile(result, dataclasses.replace(run, **{"seed": seed, **changed})) as results:
            for question, sql in zip(questions, statements, strict=False):
                agent = Agent(ScriptedEngine([json.dumps({"tool": "submit_sql", "args": {"sql": sql}})]))
                list(ask_questions(agent, [question], results, seed=seed))
        return result

    return path, questions, ask


def test_each_accuracy_is_the_mean_of_all_votes_of_its_size(asked):
    """Four runs: eight single answers, four votes of two, two of four; ties go to the earlier."""
    _, questions, ask = asked
    columns = (RIGHT, WRONG), (WRONG, RIGHT), (RIGHT, OTHER), (NONE, RIGHT)
    document = measure_votes(questions, [ask(seed, *column) for seed, column in enumerate(columns)])
    strict = {one["n"]: one["strict"] for one in document["votes"]}
    assert list(strict) == [1, 2, 4]
    assert strict[1]["accuracy"] == 4 / 8
    assert strict[2]["accuracy"] == 2 / 4  # q0: right and wrong, right and none; q1: wrong and right, other and right
    assert strict[4]["accuracy"] == 1.0  # two of four are right, and no two of the others agree
    assert strict[4]["gain"] == 0.5
    assert strict[1]["gain_interval"] == [0.0, 0.0]
    assert document["n_scorable"] == 2
    assert document["n_tokens"] > 0
    assert "| 4 | 100.0%" in write_table(document)


def test_the_order_of_the_files_does_not_matter(asked):
    """Candidates are in the order of their seeds, as in `ask --votes`; ties show it."""
    _, questions, ask = asked
    paths = [ask(0, RIGHT, RIGHT), ask(1, WRONG, WRONG)]
    for order in (paths, paths[::-1]):
        assert measure_votes(questions, order)["votes"][1]["strict"]["accuracy"] == 1.0


def test_questions_that_a_run_lacks_do_not_count(asked):
    """So that all numbers of votes are about the same ones."""
    _, questions, ask = asked
    document = measure_votes(questions, [ask(0, RIGHT, RIGHT), ask(1, RIGHT)])
    assert document["n_scorable"] == 1
    assert document["votes"][0]["strict"]["gain_interval"] == [-1.0, 1.0]


def test_runs_that_cannot_be_compared_are_errors(asked, tmp_path, capsys):
    """Another model, the same seed twice, answers of a vote, a single run: one line each."""
    path, questions, ask = asked
    first, voted = ask(0, RIGHT), ask(2, RIGHT, settings={"votes": 8, "sampling": {"temperature": 0.6}})
    for paths, message in (
        ([first, ask(1, RIGHT, model_sha256="cd" * 32)], "more than the seed differs"),
        ([first, first], "the same seed"),
        ([first], "two runs or more"),
        ([voted, ask(3, RIGHT, settings={"votes": 8, "sampling": {"temperature": 0.6}})], "voted on already"),
    ):
        with pytest.raises(BenchmarkError, match=message):
            measure_votes(questions, paths)
    assert main([str(path), str(first), str(tmp_path / "missing.jsonl")]) == 1
    assert capsys.readouterr().err.startswith("Error: ")
    assert main([str(path), str(first), str(ask(1, WRONG)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["votes"][0]["strict"]["accuracy"] == 0.5
