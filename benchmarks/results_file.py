"""What a model answered, question by question, in a file that a kill at any instant leaves usable.

JSON lines. The first says who was asked what and how; each further one is an answer: the question's id, its SQL, and
the whole episode. A line is written once, at the end of the file, and is on the disk before the next question begins.
So at most the last line is torn, and that one is dropped. Not guaranteed: anything where two programs write to one
file at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.episode import Episode, Usage
from sqale_edge.errors import BenchmarkError

from .files import BROKEN_JSON, clip, read_bytes
from .forms import as_answer
from .line_file import LineFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .question import Question

_FORM = "sqale-edge results 1"
_START = json.dumps({"form": _FORM}).encode().removesuffix(b"}")
_FREE = ("model", "n_parameters", "sqlite")  # may differ between two starts of one run


@dataclasses.dataclass(frozen=True)
class Run:
    """Who was asked what, and how.

    Attributes:
        model: Its name, for people.
        model_sha256: Digest of its file; empty for a model in a server, which `settings` then describes.
        n_parameters: Numbers in all its tensors; 0 where that is unknown.
        prompt: Whether it sees the texts that it was trained on, or this package's own.
        settings: Of engine, sampling and limits, as plain JSON types.
        seed: The same for each question.
        questions_sha256: Digest of what all questions of the benchmark ask; see `digest_questions`.
        sqale_edge, sqlite: Versions.
    """

    model: str
    model_sha256: str
    n_parameters: int
    prompt: str
    settings: Mapping[str, Any]
    seed: int
    questions_sha256: str
    sqale_edge: str
    sqlite: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """One question that was asked.

    Attributes:
        sql: None where there is no answer.
        episode: How it came about; None if the model could not be asked.
        error: Why it could not.
        votes: `Vote.to_dict`, if it was voted on; `episode` is the winner's.
    """

    id: str
    sql: str | None
    episode: Episode | None = None
    error: str = ""
    votes: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain JSON types."""
        episode = self.episode.to_dict() if self.episode else None
        return {"id": self.id, "sql": self.sql, "error": self.error, "episode": episode, "votes": self.votes}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The answer that `to_dict` made `data` of. Raises KeyError or TypeError for anything else."""
        episode = Episode.from_dict(data["episode"]) if data["episode"] is not None else None
        return cls(data["id"], data["sql"], episode, data["error"], data["votes"])


@dataclasses.dataclass(frozen=True)
class Results:
    """A results file: the run, and its answers by the ids of questions."""

    run: Run
    answers: Mapping[str, Answer]

    @property
    def sql(self) -> dict[str, str | None]:
        """The answers as predictions."""
        return {key: as_answer(answer.sql) for key, answer in self.answers.items()}


def digest_questions(questions: Sequence[Question]) -> str:
    """SHA-256 of ids, databases' names, questions and evidence; what is right does not count."""
    asked = [[question.id, question.db_name, question.question, question.evidence] for question in questions]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def is_results_file(path: str | Path) -> bool:
    """Whether the file begins as a results file does; false, too, for one that cannot be read."""
    path = Path(path)
    try:
        if not path.is_file():  # opening a pipe would wait for its other end
            return False
        with path.open("rb") as file:
            return file.read(len(_START)) == _START
    except OSError:
        return False


def read_results(path: str | Path, questions: Sequence[Question]) -> Results:
    """The results of asking all these questions, or some of them.

    Raises:
        BenchmarkError: The file is missing or broken, or is about other questions.
    """
    path = Path(path)
    results, _ = _read(path)
    if results is None:
        raise BenchmarkError(f"{str(path)!r} is no results file, or holds nothing", path=path, hint="check the path")
    if results.run.questions_sha256 != digest_questions(questions):
        raise BenchmarkError(
            f"{str(path)!r} has the answers to other questions", path=path, hint="give the questions it was asked"
        )
    return results


class ResultsFile(LineFile):
    """A results file that answers are added to. Close it, or use it in a `with` statement.

    Args:
        path: Made if it is not there. What it holds is kept; a torn last line is dropped.
        run: What is about to be asked. A file of another run is an error.

    Attributes:
        answers: Those in the file, by the ids of questions.

    Raises:
        BenchmarkError: It is no results file, is of another run, or cannot be read or written.
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        path = Path(path)
        found, n_bytes = _read(path) if path.exists() else (None, 0)
        self.answers = dict(found.answers) if found else {}
        if found:
            _check_same(path, found.run, run)
        super().__init__(path, n_bytes, hint="name another file with --output")
        if not found:
            self.write({"form": _FORM, **dataclasses.asdict(run)})

    def add(self, answer: Answer) -> None:
        """Put `answer` at the end; when this returns it is on the disk. Raises BenchmarkError."""
        self.write(answer.to_dict())
        self.answers[answer.id] = answer


def _read(path: Path) -> tuple[Results | None, int]:
    """The results in a file, None if not even the first line is whole; and how many bytes its whole lines have."""
    data = read_bytes(path)
    n_bytes = data.rfind(b"\n") + 1
    start = data[: len(_START)]
    if start != (_START if n_bytes else _START[: len(start)]):
        raise BenchmarkError(
            f"{str(path)!r} is no results file of sqale-edge", path=path, hint="name another file with --output"
        )
    if not n_bytes:
        return None, 0
    first, *lines = data[:n_bytes].split(b"\n")[:-1]
    try:
        fields = json.loads(first.decode("ascii"))
        run = Run(**{field.name: fields[field.name] for field in dataclasses.fields(Run)})
        _check_types(run)
    except BROKEN_JSON as error:
        raise BenchmarkError(
            f"{str(path)!r}, line 1: this does not say which run it is",
            path=path,
            hint="name another file with --output",
        ) from error
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, 2):
        try:
            answer = Answer.from_dict(json.loads(line.decode("ascii")))
            _check_types(answer)
        except BROKEN_JSON as error:
            raise _broken(path, number, "this is no answer") from error
        if answer.id in answers:
            raise _broken(path, number, f"this is a second answer to {clip(answer.id)}")
        answers[answer.id] = answer
    return Results(run, answers), n_bytes


def _check_types(value: Run | Answer) -> None:
    """Raise TypeError or KeyError unless the fields that others rely on are what they are said to be."""
    for field in dataclasses.fields(value):
        kind = _KINDS.get(str(field.type))
        if kind and not isinstance(getattr(value, field.name), kind):
            raise TypeError(f"{field.name} is of another type")
    if isinstance(value, Answer) and value.votes is not None:
        if not all(isinstance(value.votes[name], int) for name in ("n_votes", "n_agree")):
            raise TypeError("votes are not counted")
        for candidate in value.votes["candidates"]:
            Usage.from_dict(candidate["usage"])


# By the annotations of fields.
_KINDS: dict[str, Any] = {"str": str, "int": int, "str | None": str | None, "Mapping[str, Any]": dict}
_KINDS["Mapping[str, Any] | None"] = dict | None


def _broken(path: Path, line: int, fault: str) -> BenchmarkError:
    return BenchmarkError(f"{str(path)!r}, line {line}: {fault}", path=path, hint="take the line out, and ask again")


def _check_same(path: Path, found: Run, wanted: Run) -> None:
    """Raise unless both are the same run."""
    for field in dataclasses.fields(Run):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in _FREE or one == other:
            continue
        if isinstance(one, dict):
            one, other = _first_difference(one, other)
        raise BenchmarkError(
            f"{str(path)!r} is of another run: {field.name} {one!r} there, {other!r} now",
            path=path,
            hint="name another file with --output, or ask as that run did",
        )


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any], place: str = "") -> tuple[str, str]:
    """The first setting that differs, as it is in both."""
    for key in [*one, *other]:
        left, right = one.get(key), other.get(key)
        if isinstance(left, dict) and isinstance(right, dict) and left != right:
            return _first_difference(left, right, f"{place}{key}.")
        if left != right:
            return f"{place}{key}={left}", f"{place}{key}={right}"
    raise AssertionError("they are the same")
