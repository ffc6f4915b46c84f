"""The held-out questions: databases, names and values of the split that nothing was trained on.

    python demo/held_out.py FOLDER --questions 300
    sqale-edge eval FOLDER/questions.jsonl --model demo

Writes them as a benchmark that `sqale-edge eval` reads: a SQLite file for each database, a line for each question.
They are the questions of `evaluate.py`, word for word.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from episodes import make_questions, open_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parts import Question
    from world import World

    from sqale_edge.database import Database

SEED = 1_000_003


def make_worlds(n_questions: int, seed: int) -> Iterator[tuple[World, list[Question]]]:
    """Fresh held-out databases, and a few questions about each."""
    rng = random.Random(f"{seed} evaluate")
    while n_questions > 0:
        world, questions = make_questions(rng, "held_out", 1.0)
        yield world, questions[:n_questions]
        n_questions -= len(questions)


def make_held_out(n_questions: int, seed: int, folder: Path) -> Iterator[tuple[Question, Database]]:
    """Each question with its database, which is open as long as its questions last."""
    for world, questions in make_worlds(n_questions, seed):
        with open_world(world, folder) as database:
            for question in questions:
                yield question, database


def write_benchmark(n_questions: int, seed: int, folder: Path) -> Path:
    """Write the databases and `questions.jsonl` into a new folder; the path of the latter."""
    folder.mkdir(parents=True)
    lines = []
    for n_worlds, (world, questions) in enumerate(make_worlds(n_questions, seed)):
        name = f"world{n_worlds:03}.sqlite"
        world.write(folder / name)
        lines += [
            {"id": f"{len(lines) + n}", "db": name, "question": one.text, "sql": one.sql(), "difficulty": one.kind}
            for n, one in enumerate(questions)
        ]
    path = folder / "questions.jsonl"
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Write the demo model's held-out questions as a benchmark.")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    print(write_benchmark(arguments.questions, arguments.seed, arguments.folder))  # noqa: T201


if __name__ == "__main__":
    main()
