"""Training episodes are the logs of real ones."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from episodes import TOKEN_KINDS, Classroom, is_right, make_lessons, make_questions, open_world, write_script
from prompt import read_metadata

from sqale_edge import Agent, EpisodeLimits
from sqale_edge.protocol import Protocol
from sqale_edge.testing import ScriptedEngine


@pytest.fixture(scope="module")
def taught(vocabulary, tmp_path_factory):
    """Lessons with what they are made of: question, world, script, tool turns."""
    folder, found = tmp_path_factory.mktemp("worlds"), []
    classroom, rng = Classroom(vocabulary), random.Random(4)
    while len(found) < 160:
        world, questions = make_questions(rng, "train", 1.0)
        with open_world(world, folder) as database:
            for question in questions:
                n_turns = rng.choice((6, 6, 6, 4, 3, 2))
                script = write_script(question, rng, n_turns, mishaps=0.3)
                lesson = classroom.teach(question, database, script, n_turns)
                if lesson:
                    found.append((lesson, question, world, script, n_turns))
    return found


def test_an_agent_builds_the_same_log(taught, vocabulary, tmp_path):
    """Another engine that writes the same turns has the same log, character by character; its answer is right."""
    for lesson, question, world, script, n_turns in taught:
        texts = [f"{turn.thought}</think>\n\n{turn.text}" for turn in script]
        engine = ScriptedEngine(texts, thinks=True, metadata=read_metadata())
        with open_world(world, tmp_path) as database:
            episode = Agent(engine, limits=EpisodeLimits(tool_turns=n_turns)).run(question.text, database)
            gold = database.query(question.sql(), max_rows=1_000)
        assert vocabulary.decode(lesson.tokens).decode() == engine.sequences[-1].log_text
        assert is_right(episode.rows, gold.rows, question)
        assert episode.ended_by in ("submit_sql", "final_turn")


def test_prompts_are_tokenised_as_the_real_engine_does(taught, demo_engine, vocabulary):
    """The first prompt has the real engine's tokens, made of the texts in the converted model."""
    protocol = Protocol(demo_engine.info)
    assert protocol.source == "training"
    assert not protocol.notes
    for lesson, question, *_ in taught:
        prompt = demo_engine.tokenize_pieces(protocol.first_prompt(question.text))
        assert lesson.tokens[: len(prompt)] == prompt
        assert not any(lesson.is_learned[: len(prompt)])


def test_only_what_the_teacher_writes_is_learned(taught, vocabulary):
    """The learned tokens are the turns of the script that are lessons, with their ends."""
    for lesson, _, _, script, _ in taught:
        learned = [token for token, flag in zip(lesson.tokens, lesson.is_learned, strict=True) if flag]
        turns = [f"{turn.thought}</think>\n\n{turn.text}<|im_end|>" for turn in script if turn.is_lesson]
        written = "".join(turns).removesuffix("<|im_end|>")
        assert vocabulary.decode(learned).decode().removesuffix("<|im_end|>") == written


def test_some_go_wrong_first_and_some_end_as_text(taught):
    """There are turns that fail and are not learned, looked-up texts, joins, and answers in a final turn."""
    scripts = [script for _, _, _, script, _ in taught]
    assert any(not turn.is_lesson for script in scripts for turn in script)
    assert any("Nothing found." in turn.thought for script in scripts for turn in script)
    assert any('"join_path"' in turn.text for script in scripts for turn in script)
    assert {script[-1].text.startswith("SELECT") for script in scripts} == {True, False}


def test_a_lesson_follows_each_failure_and_says_so(taught):
    """Behind a turn that goes wrong comes the same one again, or a lesson whose thought begins with the failure."""
    n_failures = 0
    for _, _, _, script, n_turns in taught:
        for turn, following in itertools.pairwise(script):
            is_again = following == turn
            if not turn.is_lesson and not is_again and len(script) <= n_turns:
                n_failures += 1
                assert following.is_lesson
                assert following.thought.startswith(("That failed. ", "Nothing found. "))
    assert n_failures


def test_token_kinds_mark_names_and_literals(taught, vocabulary):
    """Tables, columns and literals are marked, in learned tokens only."""
    seen = set()
    for lesson, question, *_ in taught:
        assert not any(kind for kind, flag in zip(lesson.kinds, lesson.is_learned, strict=True) if not flag)
        tables = [
            token for token, kind in zip(lesson.tokens, lesson.kinds, strict=True) if TOKEN_KINDS[kind] == "table"
        ]
        marked = vocabulary.decode(tables).decode().lstrip()
        assert marked.startswith(question.tables[0][1]) or question.path or not tables
        seen |= {TOKEN_KINDS[kind] for kind in lesson.kinds}
    assert seen == set(TOKEN_KINDS)


def test_lessons_are_the_same_for_the_same_seed_only():
    """The seed decides, and two seeds share nothing."""
    one, same, other = (
        [lesson.tokens for lesson in itertools.islice(make_lessons(seed, "train"), 8)] for seed in (1, 1, 2)
    )
    assert one == same
    assert not {tuple(tokens) for tokens in one} & {tuple(tokens) for tokens in other}


def test_calls_are_in_the_form_of_the_protocol(taught):
    """Each turn of a script holds bare JSON objects, one a line, or a final statement."""
    for _, _, _, script, _ in taught:
        for turn in script:
            for line in turn.text.splitlines():
                assert line.startswith(("SELECT", '{"tool": "'))
                assert line.startswith("SELECT") or json.loads(line)["tool"]


def test_every_world_gives_lessons():
    """A held-out world yields lessons as well."""
    assert len(list(itertools.islice(make_lessons(5, "held_out"), 3))) == 3
