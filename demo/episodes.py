"""The episodes that the model learns from: a question about a fresh world, and a teacher who knows the answer.

    for lesson in make_lessons(seed=1, split="train"):
        ...

What is thought and called the teacher decides; the rest is `sqale_edge.Agent` at work (see `teacher.py`). Its way:
list the tables; describe those that the question is about; look up a text that the question writes in lower case; try
the statement; submit it. Sometimes it goes wrong first (a name that does not exist, a text that is spelled otherwise),
once or twice, and goes on from what the tools say; the thought says that it failed, so that what failed is not copied
as what worked is. The turns that go wrong are read by the model, but not learned. Some episodes get few turns, and end
with the answer as text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import re
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from domains import make_world
from questions import ask, is_answerable
from teacher import TeacherEngine, Turn
from vocabulary import Vocabulary
from words import plural

from sqale_edge import Agent, EpisodeLimits
from sqale_edge.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parts import Question
    from words import Split
    from world import World

    from sqale_edge.episode import Row

TOKEN_KINDS = ("fixed", "table", "column", "literal")
_N_PER_WORLD = 6
_LONGEST = 4_096  # tokens; the few longer episodes are left out
_ALL_TURNS = EpisodeLimits().tool_turns
_MISHAPS = 0.12  # how likely something goes wrong that need not, twice in an episode
_N_FAILURES = (1, 1, 2)  # how often the same thing is tried in vain
_SQL_WORDS = {"GROUP", "BY", "ORDER", "DESC", "LIMIT", "COUNT", "HAVING", "IS", "NULL", "DISTINCT"}


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One episode.

    Attributes:
        kind: The question's.
        is_learned: For each token whether the model should have written it.
        kinds: For each token its place in `TOKEN_KINDS`.
    """

    kind: str
    tokens: list[int]
    is_learned: list[bool]
    kinds: list[int]


def is_right(rows: Sequence[Row], gold: Sequence[Row], question: Question) -> bool:
    """Whether `rows` are those of the right statement, in any order if the question asks for none."""
    return list(rows) == list(gold) if question.is_ordered else sorted(rows, key=repr) == sorted(gold, key=repr)


def call(tool: str, **args: str | int) -> str:
    """A tool call as the model writes it."""
    return json.dumps({"tool": tool, "args": args} if args else {"tool": tool}, ensure_ascii=False)


def write_script(question: Question, rng: random.Random, n_turns: int = _ALL_TURNS, mishaps: float = 0.0) -> list[Turn]:
    """What the teacher writes, turn by turn.

    Args:
        question: About the world that the agent will see.
        rng: Decides about mishaps.
        n_turns: Tool turns before the final answer.
        mishaps: How likely something goes wrong that need not.
    """
    turns = [Turn("Which tables are there?", call("list_tables"))]
    describe = _describe(question)
    if rng.random() < mishaps:
        turns += [_fail(_describe(_misspell_table(question, rng)))] * rng.choice(_N_FAILURES)
        describe = _recover(describe)
    turns.append(describe)
    lookup = question.lookup
    literal = lookup.stored if lookup else None
    if lookup and not lookup.spoken[:1].isupper():
        turns.append(_look_up(question))
    elif lookup and lookup.spoken != lookup.stored:
        turns += [_query(question, lookup.spoken), _look_up(question, "Nothing found. ")]
    query = _query(question, literal)
    if lookup and lookup.spoken != lookup.stored and rng.random() < mishaps:
        turns.append(_fail(_query(question, lookup.spoken)))  # looked up in vain
        query = _recover(query, "Nothing found. ")
    elif rng.random() < mishaps:
        turns += [_fail(_query(_misspell_column(question, rng), literal))] * rng.choice(_N_FAILURES)
        if rng.random() < 0.3:
            turns.append(_recover(_describe(question)))
        else:
            query = _recover(query)
    turns.append(query)
    turns = turns[:n_turns]
    if len(turns) < n_turns:
        return [*turns, Turn("Done.", call("submit_sql", sql=question.sql(literal)))]
    has_run = turns[-1] is query
    return [*turns, Turn("Done." if has_run else question.plan(literal), question.sql(literal))]


def _describe(question: Question) -> Turn:
    thought = "; ".join(f"{phrase}: {name}" for phrase, name in question.tables)
    calls = [call("describe_table", table_name=name) for _, name in question.tables]
    if question.path:
        calls.append(call("join_path", table_a=question.path[0], table_b=question.path[1]))
    return Turn(thought, "\n".join(calls))


def _look_up(question: Question, before: str = "") -> Turn:
    lookup = question.lookup
    assert lookup is not None, "only a text is looked up"
    thought = f"{before}How is {lookup.spoken} written?"
    return Turn(thought, call("distinct_values", table_name=lookup.table, column_name=lookup.column))


def _query(question: Question, literal: str | None) -> Turn:
    return Turn(question.plan(literal), call("run_query", sql=question.sql(literal)))


def _fail(turn: Turn) -> Turn:
    """The turn as one that is read, but not learned."""
    return dataclasses.replace(turn, is_lesson=False)


def _recover(turn: Turn, before: str = "That failed. ") -> Turn:
    """The turn as one that follows a failure."""
    return dataclasses.replace(turn, thought=before + turn.thought)


def _misspell(name: str, words: str, rng: random.Random) -> str:
    """`name` as somebody might write it who only remembers the words, or loses the thread while copying."""
    start = rng.randrange(len(name))
    piece = name[start : start + rng.randint(2, 4)]
    forms = [words.replace(" ", "_"), words.replace(" ", ""), plural(name), name[:-1], words.rsplit(maxsplit=1)[-1]]
    forms += [name.replace(piece, ""), name.replace(piece, piece * rng.randint(2, 3)), name[: start + 1] + words]
    forms = [re.sub(r"\W+", "", form) for form in forms]
    return rng.choice([form for form in forms if form and form.lower() != name.lower()])


def _misspell_table(question: Question, rng: random.Random) -> Question:
    """The question with one of its tables called otherwise, wherever it is named."""
    phrase, name = rng.choice(question.tables)
    wrong = _misspell(name, phrase, rng)
    tables = tuple((words, wrong if words == phrase else other) for words, other in question.tables)
    path = (tables[0][1], tables[-1][1]) if question.path else None
    return dataclasses.replace(question, tables=tables, path=path)


def _misspell_column(question: Question, rng: random.Random) -> Question:
    """The question with a wrong column in one of its parts; without any column, with a word of SQL gone wrong."""
    part = rng.choice([part for part in question.parts if re.search(r"[a-z]", part.sql, re.IGNORECASE)])
    names = re.findall(r"(?:T\d\.)?\b([A-Za-z]\w+)\b(?!\()", part.sql)
    names = [name for name in names if name not in _SQL_WORDS]
    if not names:
        return dataclasses.replace(question, source=question.source.replace("FROM", "FORM", 1))
    wrong = part.sql.replace(names[0], _misspell(names[0], part.words, rng), 1)
    parts = tuple(dataclasses.replace(one, sql=wrong) if one is part else one for one in question.parts)
    return dataclasses.replace(question, parts=parts)


class Classroom:
    """Turns questions into lessons; one agent for each number of tool turns."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.engine = TeacherEngine(vocabulary)
        self._agents: dict[int, Agent] = {}

    def teach(
        self, question: Question, database: Database, script: list[Turn], n_turns: int = _ALL_TURNS
    ) -> Lesson | None:
        """The lesson, or None where the episode does not end with the right rows (a name that is there twice, say)."""
        if n_turns not in self._agents:
            self._agents[n_turns] = Agent(self.engine, limits=EpisodeLimits(tool_turns=n_turns))
        self.engine.script = script
        episode = self._agents[n_turns].run(question.text, database)
        gold = database.query(question.sql(), max_rows=1_000)
        if len(episode.turns) != len(script) or not is_right(episode.rows, gold.rows, question):
            return None
        log = self.engine.log
        is_learned = [writer is not None and script[writer].is_lesson for writer in log.writers]
        return Lesson(question.kind, log.tokens, is_learned, self._mark(question, database, is_learned))

    def _mark(self, question: Question, database: Database, is_learned: list[bool]) -> list[int]:
        """The kind of each token that is to be learned."""
        tables = [str(row[0]) for row in database.read("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [
            str(row[0]) for name in tables for row in database.read("SELECT name FROM pragma_table_info(?)", (name,))
        ]
        literals = [question.lookup.stored, question.lookup.spoken] if question.lookup else []
        literals += re.findall(r"(?<=[<>=] )[\d.]+|\d{4}-\d\d-\d\d", question.sql())
        groups = (tables, columns, literals)
        patterns = ["|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)" for names in groups]
        pattern = re.compile("|".join(rf"(?<!\w)({names})(?!\w)" for names in (patterns[2], patterns[0], patterns[1])))
        kind_of_group = {1: 3, 2: 1, 3: 2}
        vocabulary, tokens = self.engine.vocabulary, self.engine.log.tokens
        kinds = [0] * len(tokens)
        text, starts = "", []
        for token in tokens:
            starts.append(len(text))
            text += vocabulary.decode([token]).decode("utf-8", "replace")
        place = 0
        for match in pattern.finditer(text):
            kind = kind_of_group[match.lastindex or 1]
            while place + 1 < len(starts) and starts[place + 1] <= match.start():
                place += 1  # up to the token in which the name begins, perhaps with the blank before it
            while place < len(starts) and starts[place] < match.end():
                kinds[place] = kind if is_learned[place] else 0
                place += 1
        return kinds


@contextlib.contextmanager
def open_world(world: World, folder: Path) -> Iterator[Database]:
    """The world as a database, which is deleted again."""
    path = folder / "world.sqlite"
    path.unlink(missing_ok=True)
    world.write(path)
    with Database.open(path) as database:
        yield database


def make_questions(rng: random.Random, split: Split, difficulty: float) -> tuple[World, list[Question]]:
    """A world and a few questions that it answers."""
    world = make_world(rng, split, difficulty)
    connection = sqlite3.connect(":memory:")
    world.fill(connection)
    questions: dict[str, Question] = {}
    for _ in range(3 * _N_PER_WORLD):
        question = ask(rng, world, difficulty, is_practice=split == "train")
        if question and len(questions) < _N_PER_WORLD and is_answerable(question, connection):
            questions[question.text] = question
    connection.close()
    return world, list(questions.values())


def make_lessons(
    seed: int, split: Split, difficulty: float = 1.0, vocabulary: Vocabulary | None = None
) -> Iterator[Lesson]:
    """Lessons without end; the same ones for the same seed."""
    rng = random.Random(f"{seed} {split}")
    classroom = Classroom(vocabulary or Vocabulary.load())
    memory = Path("/dev/shm")  # noqa: S108 - databases that live for milliseconds, where memory is a folder
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        while True:
            world, questions = make_questions(rng, split, difficulty)
            if not questions:
                continue
            with open_world(world, Path(name)) as database:
                for question in questions:
                    n_turns = rng.choices((_ALL_TURNS, 4, 3, 2), (88, 4, 6, 2))[0] if difficulty > 0.3 else _ALL_TURNS
                    script = write_script(question, rng, n_turns, mishaps=_MISHAPS * difficulty)
                    lesson = classroom.teach(question, database, script, n_turns)
                    if lesson is not None and len(lesson.tokens) <= _LONGEST:
                        yield lesson


def sample_texts(n_texts: int) -> list[str]:
    """Whole episodes as text, for learning the vocabulary."""
    vocabulary = Vocabulary([])
    lessons = make_lessons(0, "train", vocabulary=vocabulary)
    return [vocabulary.decode(next(lessons).tokens).decode() for _ in range(n_texts)]
