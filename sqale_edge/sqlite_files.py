"""Opening a SQLite file so that neither it nor anything beside it changes.

`mode=ro` alone does not do that: of a database in WAL mode it creates the `-wal` and `-shm` files. So the way of
reading is chosen:

| the file | how it is read |
|---|---|
| rollback journal | under SQLite's locks |
| WAL mode, no `-wal` or an empty one | `immutable`, without locks; `has_changed` tells afterwards whether that held |
| WAL mode, a `-wal` and a `-shm` | shared with the program that writes, whose `-shm` is only read |
| WAL mode, a `-wal` without a `-shm` (a copied or crashed database) | a private copy of both |
| a journal that a crashed program left | a private copy of both, rolled back |

A database is opened through SQLite, which knows about the locks of its other connections; where its bytes are needed,
the descriptor stays open: closing one drops the locks that the same process has on the file (POSIX), also those of a
program that embeds this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import stat
import threading
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import DatabaseOpenError
from sqale_edge.private_files import NoDirectoryError, PrivateDirectory
from sqale_edge.sql_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import PurePath
    from typing import IO

BUSY_TIMEOUT_S = 2.0
_ATTEMPTS = 50
SECONDS_BETWEEN = 0.02

_MAGIC = b"SQLite format 3\0"

# UnicodeError: Python cannot decode SQLite's own message, which quotes the file.
_ERRORS = (sqlite3.Error, UnicodeError)

_PARTS = ("", "-wal", "-journal")

# What the files look like from outside: identity, size and time of the database, of its -wal and of its -journal.
Signature = tuple[tuple[int, int, int, int] | None, ...]


class FileBusyError(DatabaseOpenError):
    """Another program keeps the file from being read now; later it may work."""


@dataclasses.dataclass(frozen=True)
class OpenFile:
    """An open database file.

    Attributes:
        is_locked: SQLite's locks keep a reader from seeing half of a change.
        is_shared: As long as it is open, the other program cannot fold its `-wal` into the database when it ends.
        note: What the person should know about the way of reading; mostly empty.
        directory: Holds the private copy that is read instead; removed with it.
        pid: The process that opened it. SQLite's connections do not survive a fork.
    """

    path: Path
    connection: sqlite3.Connection
    signature: Signature
    is_locked: bool = True
    is_shared: bool = False
    note: str = ""
    directory: PrivateDirectory | None = None
    pid: int = dataclasses.field(default_factory=os.getpid)

    def has_changed(self) -> bool:
        """The file, its `-wal` or its `-journal` is not what it was when it was opened, or this is a forked process."""
        return _signature(self.path) != self.signature or self.pid != os.getpid()

    def close(self) -> None:
        """Close the connection, and delete what was private."""
        self.connection.close()
        if self.directory:
            self.directory.remove()


def wait_open(path: Path, check: Callable[[], None]) -> OpenFile:
    """`open_file`, tried again for 2 s while another program keeps the file. `check` is called meanwhile; may raise."""
    waits_until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            check()
            return open_file(path)
        except FileBusyError:
            if time.monotonic() > waits_until:
                raise
        time.sleep(SECONDS_BETWEEN)


def open_file(path: Path) -> OpenFile:
    """The SQLite file `path`, read-only. Does not wait for a lock.

    Raises:
        FileBusyError: Another program has locked it, or changes it all the time.
        DatabaseOpenError: It is missing, unreadable or not a SQLite database.
    """
    _check_file(path)
    absolute = path.absolute()
    for _ in range(_ATTEMPTS):
        signature = _signature(absolute)
        try:
            return _open_in_place(absolute, signature)
        except _ERRORS as error:
            if error_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise _open_error(path, error) from error
        if copy := _open_copy(absolute, signature):
            return copy
        time.sleep(SECONDS_BETWEEN)
    raise FileBusyError(
        f"{str(path)!r} changes all the time", path=path, hint="try again when the other program has finished"
    )


def _open_in_place(path: Path, signature: Signature) -> OpenFile:
    real = path.resolve()  # SQLite looks for the -wal beside the real file, too
    if not _is_wal(real):
        return OpenFile(path, _connect_and_read(real), signature)
    if not signature[1] or signature[1][2] == 0:
        return OpenFile(path, _connect_and_read(real, immutable=1), signature, is_locked=False)
    return OpenFile(path, _connect_and_read(real), signature, is_shared=True)


def sqlite_uri(path: PurePath, **parameters: object) -> str:
    """The URI of an absolute `path`, in which SQLite takes nothing of the path for a parameter."""
    text = path.as_posix()
    prefix = "file://" if text.startswith("/") else "file:///"  # a drive letter; a UNC path brings its own two slashes
    return prefix + urllib.parse.quote(os.fsencode(text), safe="/:") + "?" + urllib.parse.urlencode(parameters)


def connect(path: PurePath, **parameters: object) -> sqlite3.Connection:
    """A connection for any thread, without transactions of Python's own and without a cache of prepared statements.

    A statement is authorized when it is prepared: a cached one would run without being asked about again.
    """
    connection = sqlite3.connect(
        sqlite_uri(path, **parameters),
        uri=True,
        timeout=0,  # whoever waits can be cancelled, which SQLite's own waiting cannot
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )
    connection.text_factory = _decode
    return connection


def error_code(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _decode(text: bytes) -> str:
    """Text as SQLite stores it; what is not UTF-8 stays recognisable and lossless."""
    return text.decode("utf-8", "surrogateescape")


def _connect_and_read(path: Path, **parameters: object) -> sqlite3.Connection:
    # readonly_shm: never create or write the shared memory of a database in WAL mode.
    connection = connect(path, mode="ro", readonly_shm=1, **parameters)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _is_wal(path: Path) -> bool:
    """Without locks SQLite refuses a database in WAL mode before it touches a file. Other faults are found later."""
    try:
        _connect_and_read(path, nolock=1).close()
    except _ERRORS as error:
        return error_code(error) == sqlite3.SQLITE_CANTOPEN
    return False


def is_sqlite_file(path: Path) -> bool:
    """A regular file that begins as a SQLite database does, also one that is in use, damaged or of a newer format."""
    if not path.is_file():
        return False
    with _open_bytes(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _signature(path: Path) -> Signature:
    real = path.resolve()
    return tuple(_file_signature(Path(f"{real}{suffix}")) for suffix in _PARTS)


def _file_signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def make_directory(path: Path) -> PrivateDirectory:
    """A directory for what is made of `path`. Raises DatabaseOpenError where no temporary files can be written."""
    try:
        return PrivateDirectory()
    except NoDirectoryError as error:
        hint = "free some space, or let TMPDIR (on Windows TEMP) name a folder on a local disk that can be written"
        raise DatabaseOpenError(f"{str(path)!r} needs a private copy: {error}", path=path, hint=hint) from error


def _open_copy(path: Path, signature: Signature) -> OpenFile | None:
    """`path` with its `-wal` or `-journal`, copied, recovered and opened; None if they changed meanwhile.

    No other program should have them open: there would be a `-shm`, or a lock.
    """
    directory = make_directory(path)
    try:
        if not _copy(path, signature, directory.path / "copy"):
            directory.remove()
            return None
        with contextlib.closing(connect(directory.path / "copy", mode="rw")) as connection:
            connection.execute("PRAGMA journal_mode=delete").fetchone()
        connection = _connect_and_read(directory.path / "copy")
    except _ERRORS as error:
        directory.remove()
        raise _open_error(path, error) from error
    except OSError as error:
        directory.remove()
        raise DatabaseOpenError(f"{str(path)!r} cannot be copied: {error.strerror}", path=path) from error
    except BaseException:
        directory.remove()
        raise
    note = (
        f"{path.name} was left in the middle of a change; a private copy is read, with that change completed or undone"
    )
    return OpenFile(path, connection, signature, note=note, directory=directory)


def _copy(path: Path, signature: Signature, target: Path) -> bool:
    """Copy the parts that there are, and say whether the copies are whole and nothing has changed."""
    try:
        for suffix, part in zip(_PARTS, signature, strict=True):
            if part and suffix:
                shutil.copyfile(f"{path.resolve()}{suffix}", f"{target}{suffix}")
            elif part:
                with _open_bytes(path) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except FileNotFoundError:
        return False
    sizes = [part and part[2] for part in signature]
    copied = [part and part[2] for part in _signature(target)]
    return copied == sizes and _signature(path) == signature


_KEPT: list[int] = []
_ONE_READER = threading.Lock()


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """`path`, past SQLite. On POSIX the descriptor of a database stays open until this process ends, one for each."""
    if os.name != "posix":
        with path.open("rb") as file:
            yield file
        return
    with _ONE_READER:
        descriptor = next((kept for kept in _KEPT if os.path.samestat(os.fstat(kept), path.stat())), -1)
        if descriptor < 0:
            descriptor = os.open(path, os.O_RDONLY)
            _KEPT.append(descriptor)
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            is_database = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            try:
                yield file
            finally:
                if not is_database:
                    _KEPT.remove(descriptor)
                    os.close(descriptor)


def _check_file(path: Path) -> None:
    """Raises DatabaseOpenError for what SQLite would describe badly."""
    name = repr(str(path))
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise DatabaseOpenError(f"there is no file {name}", path=path, hint="check the path") from error
    except (OSError, ValueError) as error:
        raise DatabaseOpenError(f"{name} cannot be read: {getattr(error, 'strerror', error)}", path=path) from error
    if stat.S_ISDIR(found.st_mode):
        raise DatabaseOpenError(f"{name} is a directory", path=path, hint="name a database file in it")
    for part in (path, *(Path(f"{path.resolve()}{suffix}") for suffix in _PARTS[1:])):  # SQLite would wait for a pipe
        if _is_irregular(part):
            hint = "name a file; what comes out of a pipe can be saved as one"
            raise DatabaseOpenError(f"{str(part)!r} is not a regular file", path=path, hint=hint)
    if not os.access(path, os.R_OK):
        raise DatabaseOpenError(f"{name} may not be read: permission denied", path=path)
    if found.st_size == 0:
        raise DatabaseOpenError(
            f"{name} is empty (0 bytes)", path=path, hint="a database that holds tables has at least 512 bytes"
        )


def _is_irregular(path: Path) -> bool:
    """A pipe, a socket, a device or a folder; asked once, as another program may delete the file meanwhile."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _open_error(path: Path, error: Exception) -> DatabaseOpenError:
    code = error_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return FileBusyError(
            f"{str(path)!r} is locked by another program", path=path, hint="try again when it has finished writing"
        )
    if isinstance(error, UnicodeError) or "malformed database schema" in str(error):
        detail = "a name in it is not UTF-8" if isinstance(error, UnicodeError) else visible(str(error))
        fault = f"has a schema that SQLite {sqlite3.sqlite_version} cannot read: {detail}"
        hint = "it is damaged, or needs a Python with a newer SQLite"
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "unsupported file format" in str(error):
        with _open_bytes(path) as file:
            fault, hint = _content_fault(file.read(4096), path.stat().st_size)
    else:
        fault, hint = f"cannot be read: {error}", ""
    return DatabaseOpenError(f"{str(path)!r} {fault}", path=path, hint=hint)


def _content_fault(head: bytes, size: int) -> tuple[str, str]:
    """What is the matter with a file that begins with `head`, and what to do."""
    if not head.startswith(_MAGIC):
        return f"is {_describe(head, size)}", _FOREIGN_HINT
    schema_format = int.from_bytes(head[44:48], "big")
    if max(head[18:20]) > 2 or schema_format > 4:
        return (
            f"has a newer file format than SQLite {sqlite3.sqlite_version} can read",
            "use a Python with a newer SQLite",
        )
    page_size = int.from_bytes(head[16:18], "big")
    n_promised = max(512, int.from_bytes(head[28:32], "big") * (65536 if page_size == 1 else page_size))
    if n_promised > size:
        return f"is truncated: it has {size} bytes of {n_promised}", "get it again"
    return "is damaged", "restore it from a backup, or try SQLite's .recover command"


_FOREIGN_HINT = (
    "SQLite databases are read, and files named .csv, .tsv, .json or .jsonl (also .gz); "
    "an encrypted database has to be exported with the program that made it"
)
_FORMATS = {
    b"\x1f\x8b": "compressed with gzip",
    b"PK\3\4": "a zip archive or an office document",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
}


def _describe(head: bytes, size: int) -> str:
    """What a file is that is not a SQLite database. An encrypted one has whole pages, and bytes without any order."""
    for magic, description in _FORMATS.items():
        if head.startswith(magic):
            return f"{description}, not a SQLite database"
    if b"\0" not in head and sum(byte < 32 for byte in head.translate(None, b"\t\r\n\f")) == 0:
        return "a text file, not a SQLite database"
    if size % 512 == 0 and len(set(head[:512])) > 180:
        return "encrypted (or not a SQLite database at all)"
    return "not a SQLite database"
