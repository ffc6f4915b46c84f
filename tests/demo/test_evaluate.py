"""The evaluation: an agent that is always right counts as such, and errors are named."""

from __future__ import annotations

import dataclasses
import json
import random

from batches import split_batches
from episodes import Classroom, make_lessons, write_script
from evaluate import find_failure, judge, summarize
from held_out import make_held_out, write_benchmark
from sqale_edge.benchmarks.questions import read_questions
from sqale_edge.benchmarks.scoring import score
from teacher import TeacherEngine

from sqale_edge import Agent


def test_the_teacher_is_always_right(vocabulary, tmp_path):
    """Episodes that follow the teacher's script are judged right, with the right tables."""
    engine = TeacherEngine(vocabulary)
    agent, outcomes = Agent(engine), []
    for question, database in make_held_out(25, 1, tmp_path):
        engine.script = write_script(question, random.Random(0))
        outcomes.append(judge(question, database, agent.run(question.text, database)))
    report = summarize(outcomes)
    assert (report["n"], report["n_right"], report["has_tables"]) == (25, 25, 1.0)
    assert report["failures"] == {}
    assert sum(kind["n"] for kind in report["by_kind"].values()) == 25


def test_the_harness_reads_the_same_questions(tmp_path):
    """A benchmark of its own whose gold, as a prediction, is right everywhere."""
    path = write_benchmark(25, 1, tmp_path / "benchmark")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "world").mkdir()
    asked = [(one.text, one.sql()) for one, _ in make_held_out(25, 1, tmp_path / "world")]
    assert [(line["question"], line["sql"]) for line in lines] == asked
    questions = read_questions(path)
    outcomes = [outcome for (outcome,) in score(questions, [{one.id: one.golds[0] for one in questions}], ["strict"])]
    assert {outcome.gold for outcome in outcomes} <= {"scorable", "empty", "not_deterministic"}
    scorable = [outcome for outcome in outcomes if outcome.gold == "scorable"]
    assert len(scorable) >= 20
    assert all(outcome.right["strict"] for outcome in scorable)


def test_failures_are_named(vocabulary, tmp_path):
    """Another statement is wrong, and the report says in what."""
    engine = TeacherEngine(vocabulary)
    agent = Agent(engine)
    for question, database in make_held_out(6, 2, tmp_path):
        engine.script = write_script(question, random.Random(0))
        episode = agent.run(question.text, database)
        assert find_failure(question, dataclasses.replace(episode, sql=None), has_tables=True) == "no answer"
        assert find_failure(question, episode, has_tables=False) == "wrong tables"
        wrong = dataclasses.replace(episode, sql="SELECT 1", rows=((1234567,),))
        outcome = judge(question, database, wrong)
        assert not outcome.is_right
        assert outcome.failure in ("wrong text", "wrong names or clauses", "other")


def test_batches_hold_every_lesson_within_their_size(vocabulary):
    """Lessons of about the same length go together; padding is not learned."""
    stream = make_lessons(9, "train", 0.0, vocabulary)
    lessons = [next(stream) for _ in range(40)]
    batches = split_batches(lessons, 4_096)
    assert sum(batch.n_tokens for batch in batches) == sum(len(lesson.tokens) for lesson in lessons)
    assert sum(int(batch.is_learned.sum()) for batch in batches) == sum(sum(lesson.is_learned) for lesson in lessons)
    assert all(batch.tokens.size <= 4_096 for batch in batches)


def test_a_classroom_refuses_a_wrong_answer(vocabulary, tmp_path):
    """A script whose statement gives other rows is no lesson."""
    classroom = Classroom(vocabulary)
    for question, database in make_held_out(3, 3, tmp_path):
        script = write_script(question, random.Random(0))
        wrong = [*script[:-1], dataclasses.replace(script[-1], text=script[-1].text.replace("SELECT", "SELECT 7,", 1))]
        assert classroom.teach(question, database, script) is not None
        assert classroom.teach(question, database, wrong) is None
