"""The files of a new bundle are written, into a folder or a zip."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, BinaryIO

from sqale_edge.bundle.archive import ArchiveWriter
from sqale_edge.bundle.installer.contents import CHUNK_BYTES, LIST_NAME
from sqale_edge.new_files import write_to_disk
from sqale_edge.store.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqale_edge.store.steps import Listener


def is_zip(path: Path) -> bool:
    """Whether a bundle of that name is a zip."""
    return path.suffix.lower() == ".zip"


class Output:
    """The files of a new bundle.

    Attributes:
        digests: SHA-256 of each that is written, by its name.
    """

    def __init__(self, path: Path, n_total: int, listener: Listener) -> None:
        """Begin a bundle of about `n_total` bytes, for those who are told how far it is."""
        self._path, self._listener = path, listener
        self._n_done, self._n_total = 0, n_total
        self._archive = ArchiveWriter(path) if is_zip(path) else None
        self.digests: dict[str, str] = {}

    def add(self, name: str, content: bytes | Path) -> None:
        """Write one file: these bytes, or what is in that file."""
        if isinstance(content, bytes):
            self._add(name, len(content), [content])
            return
        with content.open("rb") as file:
            n_total = os.fstat(file.fileno()).st_size
            self._add(name, n_total, self._read(file, n_total))

    def _read(self, file: BinaryIO, n_left: int) -> Iterator[bytes]:
        while n_left and (chunk := file.read(min(CHUNK_BYTES, n_left))):
            n_left -= len(chunk)
            self._n_done += len(chunk)
            self._listener.show(Step("write", self._path.name, self._n_done, max(self._n_done, self._n_total)))
            yield chunk

    def _add(self, name: str, n_bytes: int, chunks: Iterable[bytes]) -> None:
        digest = hashlib.sha256()

        def summed() -> Iterator[bytes]:
            for chunk in chunks:
                digest.update(chunk)
                yield chunk

        if self._archive:
            self._archive.add(name, n_bytes, summed())
        else:
            path = self._path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for chunk in summed():
                    file.write(chunk)
            write_to_disk(path)
        self.digests[name] = digest.hexdigest()

    def finish(self) -> str:
        """Write the list of digests, and return its own."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.digests.items()))
        self.add(LIST_NAME, lines.encode("ascii"))
        if self._archive:
            self._archive.close()
        return self.digests[LIST_NAME]

    def abandon(self) -> None:
        """Let go of a file that will be deleted."""
        if self._archive:
            self._archive.abandon()
