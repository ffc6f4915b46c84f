"""A bundle as a zip: written in one form only, so that any other byte in it is noticed.

Every entry is stored as it is, without a compression, a comment, a time or a link, one behind the other and nothing
between them; reading compares the whole structure with what writing the same files would give. So a zip holds nothing
but the files that its directory names, takes no more room than itself, and two bundles of the same files are the same
bytes. Any program for zips can unpack it; one that was packed anew by another program is refused, and its folder is as
good.

Source: APPNOTE.TXT of PKWARE, 4.3 (structure) and 4.5.3 (sizes of 4 GiB and more).
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from sqale_edge.bundle.installer.contents import InstallError, is_safe_name
from sqale_edge.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_MAX_32, _MAX_16 = 0xFFFFFFFF, 0xFFFF
_PLAIN, _ZIP64 = 20, 45  # the version of the format that is needed to read it
_UNIX_FILE = 0o100644 << 16
_MADE_ON_UNIX = 3 << 8
_DATE = 1 << 5 | 1  # 1980-01-01, the first day that a zip knows
_LONGEST_DIRECTORY = 1 << 24  # bytes; a bundle has dozens of files


class _Entry(NamedTuple):
    name: str
    n_bytes: int
    crc: int
    offset: int

    def local(self) -> bytes:
        """What stands before the file's bytes."""
        is_large = self.n_bytes >= _MAX_32
        extra = struct.pack("<2H2Q", 1, 16, self.n_bytes, self.n_bytes) if is_large else b""
        size, name = min(self.n_bytes, _MAX_32), self.name.encode("ascii")
        version = _ZIP64 if is_large else _PLAIN
        head = _LOCAL.pack(b"PK\3\4", version, 0, 0, 0, _DATE, self.crc, size, size, len(name), len(extra))
        return head + name + extra

    def central(self) -> bytes:
        """What the directory says."""
        large = [self.n_bytes, self.n_bytes] if self.n_bytes >= _MAX_32 else []
        large += [self.offset] if self.offset >= _MAX_32 else []
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size, offset, name = min(self.n_bytes, _MAX_32), min(self.offset, _MAX_32), self.name.encode("ascii")
        version = _ZIP64 if large else _PLAIN
        numbers = (len(name), len(extra), 0, 0, 0, _UNIX_FILE, offset)
        made = _MADE_ON_UNIX | version
        head = _CENTRAL.pack(b"PK\1\2", made, version, 0, 0, 0, _DATE, self.crc, size, size, *numbers)
        return head + name + extra


def _directory(entries: list[_Entry], offset: int) -> bytes:
    """All that follows the files' bytes."""
    body = b"".join(entry.central() for entry in entries)
    n, end = len(entries), offset + len(body)
    tail = b""
    if n >= _MAX_16 or offset >= _MAX_32:
        tail = _END64.pack(b"PK\6\6", 44, _MADE_ON_UNIX | _ZIP64, _ZIP64, 0, 0, n, n, len(body), offset)
        tail += _LOCATOR.pack(b"PK\6\7", 0, end, 1)
    short, start = min(n, _MAX_16), min(offset, _MAX_32)
    return body + tail + _END.pack(b"PK\5\6", 0, 0, short, short, len(body), start, 0)


class ArchiveWriter:
    """Writes a bundle into a new file, from the first byte to the last."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._entries: list[_Entry] = []

    def add(self, name: str, n_bytes: int, chunks: Iterable[bytes]) -> None:
        """Write one file of that length."""
        assert is_safe_name(name), name
        offset, crc, n_written = self._file.tell(), 0, 0
        self._file.write(_Entry(name, n_bytes, 0, offset).local())
        for chunk in chunks:
            self._file.write(chunk)
            crc = zlib.crc32(chunk, crc)
            n_written += len(chunk)
        if n_written != n_bytes:
            raise BundleError(f"{name!r} has changed while it was read", path=name, hint="run the same command again")
        entry = _Entry(name, n_bytes, crc, offset)
        end = self._file.tell()
        self._file.seek(offset)
        self._file.write(entry.local())
        self._file.seek(end)
        self._entries.append(entry)

    def close(self) -> None:
        """Write the directory, and see to it that all is on the disk."""
        self._file.write(_directory(self._entries, self._file.tell()))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Leave it as it is."""
        self._file.close()


class Archive:
    """A bundle that is a zip. Its structure is read and compared once; its files are read from where they lie.

    Raises:
        InstallError: It is not what `ArchiveWriter` writes.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._entries = {entry.name: entry for entry in _read_directory(file)}
        except (struct.error, ValueError, UnicodeDecodeError) as error:
            raise InstallError(
                f"the zip {str(path)!r} is damaged, or was not written by sqale-edge: {error}",
                hint="copy it again; or unpack it, and give the folder",
            ) from None

    def list_names(self) -> tuple[list[str], list[str]]:
        """Every file; nothing else can be in it."""
        return list(self._entries), []

    def open(self, name: str) -> BinaryIO:
        """The file of that name."""
        entry = self._entries[name]
        return io.BufferedReader(_Part(self.path, entry), 1 << 20)


def _read_directory(file: BinaryIO) -> list[_Entry]:
    """The entries, if every byte around their contents is as it is written here. Raises ValueError or struct.error."""
    n_bytes = file.seek(0, io.SEEK_END)
    file.seek(max(0, n_bytes - _END.size - _LOCATOR.size - _END64.size))
    tail = file.read()
    mark, _, _, n, _, n_directory, offset, _ = _END.unpack(tail[-_END.size :])
    if mark != b"PK\5\6":
        raise ValueError("it does not end as a zip does")
    if offset == _MAX_32 or n == _MAX_16:
        mark, _, _, _, _, _, _, n, n_directory, offset = _END64.unpack(tail[: _END64.size])
    if n_directory > _LONGEST_DIRECTORY or offset > n_bytes:
        raise ValueError("its directory is too long")
    file.seek(offset)
    directory = file.read(_LONGEST_DIRECTORY + 1)
    entries = list(_parse_entries(directory[:n_directory], n))
    if _directory(entries, offset) != directory:
        raise ValueError("its directory is not in the one form that sqale-edge writes")
    end = 0
    for entry in entries:
        file.seek(end)
        head = entry.local()
        if entry.offset != end or file.read(len(head)) != head:
            raise ValueError(f"what stands before {entry.name!r} is not in the one form that sqale-edge writes")
        end += len(head) + entry.n_bytes
    if end != offset:
        raise ValueError("there is something between its last file and its directory")
    return entries


def _parse_entries(directory: bytes, n: int) -> Iterator[_Entry]:
    """The entries of a directory, not compared with anything yet, but with names that cannot lead out of a folder."""
    place, seen = 0, set()
    for _ in range(n):
        fields = _CENTRAL.unpack_from(directory, place)
        crc, size, n_name, n_extra, offset = fields[7], fields[9], fields[10], fields[11], fields[16]
        place += _CENTRAL.size
        name = directory[place : place + n_name].decode("ascii")
        large = list(struct.unpack_from(f"<{(n_extra - 4) // 8}Q", directory, place + n_name + 4)) if n_extra else []
        place += n_name + n_extra
        if size == _MAX_32:
            size, large = large[0] if large else size, large[2:]
        if offset == _MAX_32 and large:
            offset = large[0]
        if not is_safe_name(name) or name.lower() in seen:
            raise ValueError(f"it has a file {name!r}, or has it twice")
        seen.add(name.lower())
        yield _Entry(name, size, crc, offset)


class _Part(io.RawIOBase):
    """One file of a zip. Reading it from its first byte to its last compares its checksum."""

    def __init__(self, path: Path, entry: _Entry) -> None:
        self._file = path.open("rb")
        self._path, self._entry = path, entry
        self._start = entry.offset + len(entry.local())
        self._place = self._n_summed = self._crc = 0
        self._file.seek(self._start)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._entry.n_bytes}[whence]
        self._place = max(0, base + offset)
        self._file.seek(self._start + self._place)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read what fits. Raises InstallError behind the last byte, if the checksum is wrong."""
        view = memoryview(buffer).cast("B")
        n_read = self._file.readinto(view[: max(0, min(len(view), self._entry.n_bytes - self._place))])
        if self._place == self._n_summed:
            self._crc = zlib.crc32(view[:n_read], self._crc)
            self._n_summed += n_read
            if self._n_summed == self._entry.n_bytes and self._crc != self._entry.crc:
                raise InstallError(
                    f"the zip {str(self._path)!r} is damaged: {self._entry.name!r} has the wrong checksum",
                    hint="copy it again, or have it made again",
                )
        self._place += n_read
        return n_read

    def close(self) -> None:
        """Let the zip go."""
        self._file.close()
        super().close()
