"""SQaLe's questions, read by its authors' own library: the extra `bench`.

The databases are not in that file. `sqale-extract`, a command of the same library, writes them to a folder.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from sqale_edge.errors import BenchmarkError

from .question import Question

DATASETS = ("trl-lab/sqale2_queries", "trl-lab/SQaLe_2")
"""The names under which the questions were published; the test split is read, which the library downloads."""

STYLE = "verbose"
"""Which of the eight phrasings of a question is asked: the original one."""


def is_sqale(path: Path) -> bool:
    """The questions are SQaLe's: a Parquet or Arrow file, a folder with some, or the name of a dataset."""
    is_folder = path.is_dir() and any(file.suffix in (".parquet", ".arrow") for file in path.rglob("*"))
    return path.suffix in (".parquet", ".arrow") or is_folder or (path.as_posix() in DATASETS and not path.exists())


def read_sqale(path: Path) -> list[Question]:
    """The questions of the test split that have a usable original phrasing.

    Raises:
        BenchmarkError: The library is not installed, or cannot read the file.
    """
    try:
        library: Any = importlib.import_module("sqale")
    except ImportError as error:
        raise BenchmarkError(
            f"{str(path)!r} needs the SQaLe library, which is not installed",
            path=path,
            hint="pip install 'sqale-edge[bench]', or pip install SQaLe",
        ) from error
    try:
        entries = library.load_questions(str(path), split="test")
    except Exception as error:  # other people's libraries, and what they raise of a damaged file is not told
        raise BenchmarkError(
            f"{str(path)!r} cannot be read as SQaLe: {' '.join(str(error).split())}", path=path
        ) from error
    questions = [_question(entry) for entry in entries if entry["questions"].get(STYLE) and entry["sql"]]
    if not questions:
        raise BenchmarkError(
            f"{str(path)!r} has no question with SQL", path=path, hint="schemas are another file than questions"
        )
    return questions


def _question(entry: dict[str, Any]) -> Question:
    return Question(
        id=entry["question_id"],
        db=Path(re.sub(r"[^\w\-]", "_", entry["schema_id"])),  # the name that sqale-extract gives its file
        question=entry["questions"][STYLE],
        golds=(entry["sql"],),
        difficulty=entry["difficulty"],
        form="sqale",
    )
