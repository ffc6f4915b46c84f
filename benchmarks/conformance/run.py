"""Every tool and text of a checkpoint's own `sqale_agent.py` beside ours: the drift that no figure of a model shows."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import sys
import tomllib
from typing import TYPE_CHECKING, Any

from sqale_edge._version import __version__
from sqale_edge.database import Database
from sqale_edge.errors import BenchmarkError, ConversionError
from sqale_edge.private_files import PrivateDirectory
from sqale_edge.tools import SPECS, Toolbox

from .cases import list_calls
from .child import ReferenceProcess
from .comparison import Comparison
from .texts import ROLES, OwnTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqale_edge.convert.training_prompt import TrainingPrompt

SOURCE_NAME = "sqale_agent.py"
_HEAD = b"SQLite format 3\0"


@dataclasses.dataclass(frozen=True)
class Conformance:
    """What was compared.

    Attributes:
        source: The checkpoint's file.
        source_sha256: Its digest.
        stand_ins: Packages that it imports and that are not installed; nothing of them was run.
        notes: About what was read out of it without running it.
    """

    source: Path
    source_sha256: str
    databases: tuple[Path, ...]
    comparisons: tuple[Comparison, ...]
    stand_ins: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def count(self, outcome: str) -> int:
        """How many comparisons ended so."""
        return sum(one.outcome == outcome for one in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        return {
            "source": str(self.source),
            "source_sha256": self.source_sha256,
            "databases": [str(path) for path in self.databases],
            "sqale_edge": __version__,
            "n_same": self.count("same"),
            "n_different": self.count("different"),
            "n_not_compared": self.count("not compared"),
            "stand_ins": list(self.stand_ins),
            "notes": list(self.notes),
            "comparisons": [one.to_dict() for one in self.comparisons],
        }


def compare_checkpoint(
    checkpoint: Path,
    databases: Sequence[Path],
    *,
    adapter: Mapping[str, str] | None = None,
    python: str = sys.executable,
    timeout_s: float = 10.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Conformance:
    """Compare every tool and text.

    This RUNS the checkpoint's `sqale_agent.py`, in a process of its own, with this user's rights. It gets copies of the
    databases.

    Args:
        checkpoint: A folder with that file, or the file itself.
        databases: SQLite files.
        adapter: Expressions for what is not found by itself, see `read_adapter`.
        python: Which Python runs the file.
        timeout_s: For each call.
        should_stop: Asked often; then Cancelled is raised.

    Raises:
        BenchmarkError: There is no such file, or it cannot be loaded.
        DatabaseOpenError: A database cannot be opened.
    """
    source = _find_source(checkpoint)
    content = source.read_bytes()
    private = PrivateDirectory()
    comparisons: list[Comparison] = []
    stand_ins: list[str] = []
    try:
        prompt = _read_prompt(content, private.path)
        for number, path in enumerate(databases):
            with contextlib.ExitStack() as held:
                database = held.enter_context(Database.open(path))
                copy = _copy_database(path, private.path / str(number))
                reference = held.enter_context(
                    ReferenceProcess(
                        source.resolve(),
                        copy,
                        adapter or {},
                        python=python,
                        timeout_s=timeout_s,
                        should_stop=should_stop,
                    )
                )
                if number == 0:
                    comparisons += _compare_texts(reference, OwnTexts(prompt))
                comparisons += _compare_tools(reference, database, path)
                stand_ins = reference.stand_ins
    finally:
        private.remove()
    digest = hashlib.sha256(content).hexdigest()
    return Conformance(source, digest, tuple(databases), tuple(comparisons), tuple(stand_ins), prompt.notes)


def _find_source(checkpoint: Path) -> Path:
    source = checkpoint / SOURCE_NAME if checkpoint.is_dir() else checkpoint
    if not source.is_file():
        raise BenchmarkError(
            f"there is no {SOURCE_NAME} at {str(source)!r}",
            path=source,
            hint="give the folder of a checkpoint that has one, or the file itself",
        )
    return source


def _read_prompt(content: bytes, folder: Path) -> TrainingPrompt:
    """What the conversion would find in the source; nothing where it cannot read it."""
    from sqale_edge.convert.training_prompt import TrainingPrompt, read_training_prompt  # noqa: PLC0415 - not light

    (folder / SOURCE_NAME).write_bytes(content)
    try:
        return read_training_prompt(folder)
    except ConversionError as error:
        return TrainingPrompt({}, {}, (), (f"the conversion finds no texts in it: {error}",))


def _copy_database(path: Path, folder: Path) -> Path:
    """A copy for the code to do with as it likes; with what a writer has not yet put into the file."""
    folder.mkdir()
    with path.open("rb") as file:
        if file.read(len(_HEAD)) != _HEAD:
            raise BenchmarkError(
                f"{str(path)!r} is not a SQLite database", path=path, hint="give SQLite files; others are not compared"
            )
    copy = folder / path.name
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
    return copy


def _compare_texts(reference: ReferenceProcess, own: OwnTexts) -> Iterator[Comparison]:
    for role, values, ours in own.list_cases():
        answer = reference.ask({"text": role, "values": values, **own.describe(role)})
        yield _take_answer(Comparison("text", role, values, ours), answer)


def _compare_tools(reference: ReferenceProcess, database: Database, path: Path) -> Iterator[Comparison]:
    toolbox = Toolbox(database)
    for name, args in list_calls(database):
        ours = toolbox.run(name, args).output
        comparison = Comparison("tool", name, args, ours, database=str(path))
        yield _take_answer(comparison, reference.ask({"tool": name, "args": args}))


def _take_answer(comparison: Comparison, answer: Mapping[str, str]) -> Comparison:
    """The comparison with the reference's text, or why there is none."""
    if "text" in answer:
        return dataclasses.replace(comparison, theirs=answer["text"])
    return dataclasses.replace(comparison, reason=answer.get("missing") or f"it raises {answer['raised']}")


def read_adapter(path: Path) -> dict[str, str]:
    """A TOML file that says how to reach what is not found by itself.

    One line for each tool or text: its name, and a Python expression in quotes, with the names of the source,
    `db_path`, `connection`, and the tool's arguments (`args` has those that are given); for texts `question`,
    `evidence`, `n_left`, `last_query`, `outputs`. Texts are `system`, `user`, `turn`, `budget`, `limit`.

    Raises:
        BenchmarkError: It is something else.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BenchmarkError(f"the adapter {str(path)!r} cannot be read: {error}", path=path) from None
    known = {*SPECS, *ROLES}
    for name, expression in values.items():
        if name not in known or not isinstance(expression, str):
            what = f"{name!r} is none of {', '.join(sorted(known))}" if name not in known else f"{name} is no text"
            raise BenchmarkError(
                f"the adapter {str(path)!r} cannot be used: {what}",
                path=path,
                hint='write lines like run_query = "..."',
            )
    return values
