"""Predictions written as the benchmarks take them: the forms that `predictions` reads, and means the same by.

A file is written aside and gets its name when it is whole. Of a folder that replaces another, the old one keeps a name
beside it (`.sqale-edge-….part`) if the process is killed between the two moves.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import BenchmarkError
from sqale_edge.new_files import partial_name, put_in_place, write_to_disk
from sqale_edge.sql_text import one_line, tokens

from .files import clip
from .forms import NO_ANSWER, as_answer
from .predictions import BIRD_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .question import Question

_OWN_FORMS = {"bird": "bird", "spider": "spider", "ehrsql": "ehrsql", "ehrsql2024": "ehrsql", "spider2": "spider2"}
_FILE_NAME = re.compile(r"[\w.-]+")


def submission_form(form: str) -> str:
    """The form of predictions that belongs to questions of a form; `jsonl` where the benchmark has none."""
    return _OWN_FORMS.get(form, "jsonl")


def check_target(path: str | Path, *, form: str, overwrite: bool = False) -> None:
    """Raise what `write_predictions` would raise for the name alone, before there is anything to write.

    Raises:
        BenchmarkError: There is something of that name that may not be replaced, or there is no such folder.
    """
    path = Path(path)
    if not os.path.isdir(path.parent):  # noqa: PTH112 - no error for a name that is too long
        raise BenchmarkError(
            f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}", path=path, hint="make it first"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_write(path, error) from error
    if not overwrite:
        raise _name_taken(path)
    if form == "spider2":
        if not stat.S_ISDIR(mode) or any(file.suffix != ".sql" or not file.is_file() for file in path.iterdir()):
            raise BenchmarkError(
                f"{str(path)!r} is no folder of SQL files alone, and is not replaced", path=path, hint=_OTHER_NAME
            )
    elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise BenchmarkError(f"{str(path)!r} is no file, and is not replaced", path=path, hint=_OTHER_NAME)


_OTHER_NAME = "choose another name"


def _name_taken(path: Path) -> BenchmarkError:
    return BenchmarkError(
        f"{str(path)!r} exists already", path=path, hint="choose another name, or overwrite it with --overwrite"
    )


def _cannot_write(path: Path, error: OSError) -> BenchmarkError:
    return BenchmarkError(
        f"{str(path)!r} cannot be written: {error.strerror or error}", path=path, hint="choose another place"
    )


def write_predictions(
    path: str | Path,
    questions: Sequence[Question],
    sql: Mapping[str, str | None],
    *,
    form: str,
    overwrite: bool = False,
) -> None:
    """Write predictions in one of PREDICTION_FORMS, which `read_predictions` reads as what they were.

    Args:
        path: A file; the form `spider2` is a folder, in which an answer is a file.
        questions: All of the benchmark.
        sql: By their ids; None where there is no answer: 0 in BIRD's form, an empty line or file in Spider's, `null` in
            EHRSQL's. A question that is not there at all is left out, but not in BIRD's and Spider's forms, where it
            would move the others: there it looks like one without an answer.
        form: One of PREDICTION_FORMS.
        overwrite: Replace what has that name, if it is of the same kind.

    Raises:
        BenchmarkError: The form cannot hold a statement, there is nothing to write, or the file cannot be written.
            What was there stays.
    """
    path = Path(path)
    check_target(path, form=form, overwrite=overwrite)
    found = [(question, as_answer(sql[question.id])) for question in questions if question.id in sql]
    if not found:
        raise BenchmarkError(f"there is no answer to write to {str(path)!r}", path=path)
    try:
        with partial_name(path) as partial:
            if form == "spider2":
                partial.mkdir()
                for question, one in found:
                    (partial / _file_name(path, question)).write_bytes(_encode(path, question, one or ""))
                _place_folder(partial, path, overwrite=overwrite)
            else:
                with partial.open("xb") as file:
                    file.write(_make_text(path, form, questions, found))
                write_to_disk(partial)
                put_in_place(partial, path, overwrite=overwrite)
    except FileExistsError as error:
        raise _name_taken(path) from error
    except OSError as error:
        raise _cannot_write(path, error) from error


def _make_text(
    path: Path, form: str, questions: Sequence[Question], found: Sequence[tuple[Question, str | None]]
) -> bytes:
    """The content of a file of a form."""
    by_id = {question.id: one for question, one in found}
    if form == "spider":
        lines = [
            _encode(path, question, _as_line(path, question, by_id.get(question.id) or "")) for question in questions
        ]
        return b"\n".join(lines) + b"\n"
    if form == "bird":
        marked = [(question, by_id.get(question.id)) for question in questions]
        texts = {question.id: f"{one}{BIRD_MARK}{question.db_name}" if one else 0 for question, one in marked}
        return _encode_json(texts, indent=1)
    if form == "ehrsql":
        return _encode_json({question.id: one or NO_ANSWER for question, one in found}, indent=1)
    return b"".join(_encode_json({"id": question.id, "sql": one}) for question, one in found)


def _encode_json(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent).encode() + b"\n"


def _encode(path: Path, question: Question, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _cannot_hold(path, question, "has half a character") from error


def _as_line(path: Path, question: Question, sql: str) -> str:
    """`sql` on one line without a tab, which ends it in Spider's form; literals and names stay as they are."""
    pieces = []
    for kind, text in tokens(sql):
        if kind == "quoted" and set(text) & set("\t\n\r"):
            raise _cannot_hold(path, question, "has a tab or a line end in a literal")
        pieces.append(" " if kind == "space" else one_line(text) if kind == "comment" else text)
    return "".join(pieces).strip(" ")


def _cannot_hold(path: Path, question: Question, fault: str) -> BenchmarkError:
    return BenchmarkError(
        f"the SQL of question {clip(question.id)} {fault}, which this form cannot hold",
        path=path,
        hint="write another form with --predictions-form jsonl",
    )


def _file_name(path: Path, question: Question) -> str:
    if not _FILE_NAME.fullmatch(question.id):
        raise BenchmarkError(
            f"the id {clip(question.id)} cannot be the name of a file",
            path=path,
            hint="write another form with --predictions-form jsonl",
        )
    return f"{question.id}.sql"


def _place_folder(partial: Path, path: Path, *, overwrite: bool) -> None:
    """Give the folder its name, in place of one that `check_target` found replaceable."""
    if not os.path.lexists(path):
        partial.rename(path)
        return
    if not overwrite:
        raise FileExistsError
    with partial_name(path) as old:
        path.rename(old)
        try:
            partial.rename(path)
        except BaseException:
            old.rename(path)
            raise
