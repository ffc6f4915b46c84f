"""Token logs: real episodes as the ids that went through the model, in a file that a kill at any instant leaves usable.

JSON lines, UTF-8. The first says what they were made with, see `LogsHead`, and is marked by
`"form": "sqale-edge token logs 1"`. Each further one is an episode:

| field | what it holds |
|---|---|
| `id` | the question's |
| `tokens` | all token ids of the episode, in order, as one list |
| `spans` | what they are: a list of `[kind, n]`, the kinds of `token_kinds` for so many tokens each, in order |
| `episode` | the episode itself, as `Episode.to_dict` gives it |

A line is on the disk before the next question is asked; a torn last line is dropped. Ids of tokens mean nothing without
their vocabulary, so its digest is in the first line: SHA-256 of the lines `[id, text]` in JSON, in the order of the
ids, with unused ids left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.benchmarks.files import BROKEN_JSON, clip, read_bytes
from sqale_edge.benchmarks.line_file import LineFile

from sqale_edge.episode import Episode
from sqale_edge.errors import BenchmarkError

from .token_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

FORM = "sqale-edge token logs 1"
_FREE = ("model", "versions", "machine")  # may differ between two starts of one recording


@dataclasses.dataclass(frozen=True)
class LogsHead:
    """What the logs of a file were made with.

    Attributes:
        model: The name of its file, for people.
        model_sha256: Digest of that file.
        n_vocab: Logits behind a token.
        vocabulary_sha256: Digest of what the ids stand for.
        settings: Of engine, sampling and limits, as plain JSON types.
        seed: The same for each question.
        questions_sha256: Digest of what was asked; see `results_file.digest_questions`.
        versions: Of this package, SQLite and llama.cpp.
        machine: Where it was recorded: processor and system.
    """

    model: str
    model_sha256: str
    n_vocab: int
    vocabulary_sha256: str
    settings: dict[str, Any]
    seed: int
    questions_sha256: str
    versions: dict[str, str]
    machine: dict[str, str]


@dataclasses.dataclass(frozen=True)
class TokenLog:
    """One episode. `kinds` has an entry for each of `tokens`."""

    id: str
    tokens: tuple[int, ...]
    kinds: tuple[str, ...]
    episode: Episode

    @property
    def sha256(self) -> str:
        """Digest of the tokens, as a JSON list without blanks."""
        return hashlib.sha256(json.dumps(self.tokens, separators=(",", ":")).encode()).hexdigest()

    def turn_of(self, place: int) -> int:
        """The number, from 1, of the turn that token `place` was given or written in."""
        for number, turn in enumerate(self.episode.turns, 1):
            if place < turn.usage.n_prompt + turn.usage.n_decoded + turn.usage.n_forced:
                return number
        return len(self.episode.turns)

    def to_dict(self) -> dict[str, Any]:
        """The log as plain JSON types."""
        spans = [[kind, len(list(some))] for kind, some in itertools.groupby(self.kinds)]
        return {"id": self.id, "tokens": list(self.tokens), "spans": spans, "episode": self.episode.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The log that `to_dict` made `data` of. Raises ValueError, LookupError or TypeError for anything else."""
        tokens = tuple(data["tokens"])
        if not isinstance(data["id"], str) or any(type(token) is not int or token < 0 for token in tokens):
            raise TypeError("an id is no text, or a token no number")
        kinds = tuple(kind for kind, n_tokens in data["spans"] for _ in range(n_tokens))
        if len(kinds) != len(tokens) or not {*kinds} <= {*KINDS}:
            raise ValueError("the spans do not say what each token is")
        return cls(data["id"], tokens, kinds, Episode.from_dict(data["episode"]))


@dataclasses.dataclass(frozen=True)
class TokenLogs:
    """A file of logs.

    Attributes:
        n_bytes: Of its whole lines.
    """

    path: Path
    head: LogsHead
    logs: dict[str, TokenLog]
    n_bytes: int

    @property
    def n_tokens(self) -> int:
        """Of all logs."""
        return sum(len(log.tokens) for log in self.logs.values())

    @property
    def sha256(self) -> str:
        """Digest of all logs' tokens and of the vocabulary; not of the file, in which logs can stand in any order."""
        parts = [self.head.vocabulary_sha256, *sorted(log.sha256 for log in self.logs.values())]
        return hashlib.sha256("".join(parts).encode()).hexdigest()


def read_logs(path: str | Path) -> TokenLogs:
    """The logs of a file. Raises BenchmarkError if it is missing, broken or empty."""
    path = Path(path)
    data = read_bytes(path)
    n_bytes = data.rfind(b"\n") + 1
    first, *lines = data[:n_bytes].split(b"\n")
    try:
        fields = json.loads(first)
        if fields["form"] != FORM:
            raise ValueError("another form")
        head = LogsHead(**{field.name: fields[field.name] for field in dataclasses.fields(LogsHead)})
    except BROKEN_JSON as error:
        raise BenchmarkError(
            f"{str(path)!r} is no file of token logs", path=path, hint="make one with sqale-edge drift record"
        ) from error
    logs: dict[str, TokenLog] = {}
    for number, line in enumerate(lines[:-1], 2):
        try:
            log = TokenLog.from_dict(json.loads(line))
        except BROKEN_JSON as error:
            raise _broken(path, number, "this is no token log") from error
        if log.id in logs:
            raise _broken(path, number, f"this is a second log of {clip(log.id)}")
        if any(token >= head.n_vocab for token in log.tokens):
            raise _broken(path, number, f"a token is not in the vocabulary of {head.n_vocab}")
        logs[log.id] = log
    return TokenLogs(path, head, logs, n_bytes)


def _broken(path: Path, line: int, fault: str) -> BenchmarkError:
    return BenchmarkError(f"{str(path)!r}, line {line}: {fault}", path=path, hint="take the line out, and record again")


class LogsFile(LineFile):
    """A file that logs are added to. Close it, or use it in a `with` statement.

    Args:
        path: Made if it is not there. What it holds is kept; a torn last line is dropped.
        head: What is about to be recorded. A file of another recording is an error.

    Attributes:
        ids: Of the questions whose logs are in it.

    Raises:
        BenchmarkError: It holds something else, is of another recording, or cannot be written.
    """

    def __init__(self, path: str | Path, head: LogsHead) -> None:
        path = Path(path)
        found = read_logs(path) if path.exists() and b"\n" in read_bytes(path) else None
        if found:
            _check_same(path, found.head, head)
        self.ids = {*found.logs} if found else set()
        super().__init__(path, found.n_bytes if found else 0)
        if not found:
            self.write({"form": FORM, **dataclasses.asdict(head)})

    def add(self, log: TokenLog) -> None:
        """Put `log` at the end; when this returns it is on the disk. Raises BenchmarkError."""
        self.write(log.to_dict())
        self.ids.add(log.id)


def _check_same(path: Path, found: LogsHead, wanted: LogsHead) -> None:
    for field in dataclasses.fields(LogsHead):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name not in _FREE and one != other:
            raise BenchmarkError(
                f"{str(path)!r} is of another recording: {field.name} is {clip(one)} there, {clip(other)} now",
                path=path,
                hint="name another file with --output",
            )


def choose_logs(logs: TokenLogs, n_tokens: int | None) -> Sequence[TokenLog]:
    """The first logs of the file that have no more than `n_tokens` together, and at least one; None takes all."""
    chosen: list[TokenLog] = []
    n_chosen = 0
    for log in logs.logs.values():
        n_chosen += len(log.tokens)
        if chosen and n_tokens is not None and n_chosen > n_tokens:
            break
        chosen.append(log)
    return chosen
