"""CSV and TSV files as records: the delimiter, the lines, what is wrong with them."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
import threading
from typing import TYPE_CHECKING

from sqale_edge.text_files import MAX_LINE_CHARS, WrongFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.text_files import TextFile

_SAMPLE_CHARS = 1 << 20
_SAMPLE_LINES = 100
_SEPARATOR_LINE = re.compile(r'"?sep=([^\w"\s]|\t)"?\s*', re.IGNORECASE)
_ONE_IMPORT = threading.Lock()


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """For the block, a CSV field may be long. That limit is the whole process's, so one import runs at a time."""
    with _ONE_IMPORT:
        limit = csv.field_size_limit(MAX_LINE_CHARS)
        try:
            yield
        finally:
            csv.field_size_limit(limit)


class CsvFile:
    """A CSV or TSV file.

    Args:
        delimiters: The characters that may separate its fields; of those that fit equally well the first.

    Attributes:
        header: The fields of the first line that is not blank, but for Excel's `sep=;`.
    """

    def __init__(self, file: TextFile, delimiters: str) -> None:
        self._file = file
        self._delimiter, self._is_named = _find_delimiter(file, delimiters)
        self._header_line, self.header = next(self._records(), (1, []))

    def records(self) -> Iterator[list[str]]:
        """The fields of each line after the header; none has more than that. Raises WrongFileError."""
        for line, fields in itertools.islice(self._records(), 1, None):
            if len(fields) > len(self.header):
                raise WrongFileError(
                    f"line {line} has {len(fields)} fields, "
                    f"but line {self._header_line} names {len(self.header)} columns",
                    hint=f"put a field with {self._delimiter!r} in it into double quotes, or name the missing columns",
                )
            yield fields

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The header and the records with their lines, without the blank lines, also those before the header."""
        reader = csv.reader(self._file.lines(), delimiter=self._delimiter, strict=True)
        found = ((reader.line_num, fields) for fields in reader if _is_record(fields))
        try:
            yield from itertools.islice(found, self._is_named, None)
        except csv.Error as error:
            hint = 'a field with quotes in it is written "so ""quoted"" text"'
            raise WrongFileError(f"line {reader.line_num}: {error}", hint=hint) from error


def _is_record(fields: list[str]) -> bool:
    """Not a blank line."""
    return len(fields) > 1 or (bool(fields) and not fields[0].isspace())


def _find_delimiter(file: TextFile, delimiters: str) -> tuple[str, bool]:
    """The one of `delimiters` that cuts most lines as the first, and whether a `sep=` line before it names it."""
    sample: list[str] = []
    n_chars = 0
    for line in itertools.dropwhile(lambda line: not line.strip(), file.lines()):
        if n_chars + len(line) > _SAMPLE_CHARS and sample:
            break
        if len(sample) == _SAMPLE_LINES:
            break
        sample.append(line)
        n_chars += len(line)
    named = _SEPARATOR_LINE.fullmatch(sample[0])
    if named:
        return named[1], True

    def score(delimiter: str) -> tuple[bool, int, int]:
        records: list[list[str]] = []
        with contextlib.suppress(csv.Error):
            records.extend(fields for fields in csv.reader(sample, delimiter=delimiter) if _is_record(fields))
        n_fields = len(records[0]) if records else 0
        return n_fields > 1, sum(len(fields) == n_fields for fields in records[1:]), n_fields

    best = max(delimiters, key=score)
    return (best if score(best)[0] else delimiters[-1]), False
