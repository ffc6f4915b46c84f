"""Snapshots in files, for the next start: each is whole, unchanged and this user's own, or it is not used.

A file bears the digest of its key as its name and in its head, and a SHA-256 of key and snapshot; it is written under
another name and then renamed. So a file that is torn, damaged, swapped, out of date or somebody else's is seen before
anything of it is used. It costs one line in the log, never an error, and so does a folder that cannot be written.
SHA-256 and not a CRC: it costs 27 ms for the 29 MB of a 2B model, 20 ms more, and leaves nothing to chance.

Not guaranteed: the limit, for as long as two processes write at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import StoreError
from sqale_edge.home import home_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

_MAGIC = b"SQALEEDGE-PREFIX-1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEAD_BYTES = len(_MAGIC) + 2 * _DIGEST_BYTES  # and the digests of the key, and of key and snapshot
_SUFFIX, _UNFINISHED = ".prefix", ".prefix-tmp"
_SECONDS_TO_WRITE = 600.0  # an unfinished file that is older has lost its process
# A symbolic link, or a pipe that would be waited for, is not opened; Windows has neither flag, and needs the last.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


class _UnusableError(Exception):
    """Why a file is not used, as the end of a sentence; `is_ours`: it may be deleted."""

    def __init__(self, reason: str, *, is_ours: bool) -> None:
        super().__init__(reason)
        self.is_ours = is_ours


def default_folder() -> Path | None:
    """`prefixes` in `SQALE_EDGE_HOME`, or in this user's cache folder for this program; None where there is no home."""
    try:
        return home_folder("cache") / "prefixes"
    except StoreError:
        return None


class PrefixFiles:
    """The files in a folder, which is made when the first one is written.

    Args:
        folder: For nothing else; only this user may look into it.
        limit_bytes: What all files may take together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def read(self, key: str) -> bytes | None:
        """The snapshot that was written for `key`; None where there is none, or none that can be used."""
        digest = _digest(key)
        path = self._path(digest)
        try:
            snapshot = _check(self._read(path), digest)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the prefix snapshot %r is not used: %s", str(path), error.strerror or error)
            return None
        except _UnusableError as error:
            _log.warning("the prefix snapshot %r is not used: %s", str(path), error)
            if error.is_ours:
                _delete(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now: others go first
        return snapshot

    def write(self, key: str, snapshot: bytes) -> None:
        """Keep `snapshot` for `key`, if that can be done within the limit."""
        digest = _digest(key)
        if _HEAD_BYTES + len(snapshot) > self.limit_bytes:
            _log.info("a prefix snapshot of %d bytes is not written: the limit is %d", len(snapshot), self.limit_bytes)
            return
        try:
            self._make_folder()
            self._make_room(self._path(digest), _HEAD_BYTES + len(snapshot))
            self._put(self._path(digest), [_MAGIC, digest, _checksum(digest, snapshot), snapshot])
        except OSError as error:
            _log.warning("no prefix snapshot could be written to %r: %s", str(self.folder), error.strerror or error)

    def measure(self) -> tuple[int, int]:
        """How many snapshots there are, and the bytes that they take."""
        sizes = [found.st_size for path, found in self._list() if path.suffix == _SUFFIX]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Delete all of them, unfinished ones included."""
        for path, _ in self._list():
            _delete(path)

    def _path(self, digest: bytes) -> Path:
        return self.folder / f"{digest.hex()}{_SUFFIX}"

    def _list(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The files here that are or will be snapshots."""
        with contextlib.suppress(OSError):
            for path in list(self.folder.iterdir()):
                with contextlib.suppress(OSError):  # another process may delete it meanwhile
                    found = path.lstat()
                    if path.suffix in (_SUFFIX, _UNFINISHED) and stat.S_ISREG(found.st_mode):
                        yield path, found

    def _read(self, path: Path) -> bytes:
        """What is in a file of this user's that nobody else can write. Raises OSError, _UnusableError."""
        handle = os.open(path, os.O_RDONLY | _FLAGS)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise _UnusableError("it is no regular file", is_ours=False)
            if not _is_private(found):
                raise _UnusableError("it is another user's, or others can write it", is_ours=False)
            if found.st_size > self.limit_bytes:
                raise _UnusableError(f"its {found.st_size} bytes are more than the limit", is_ours=True)
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(self.folder.stat().st_mode)
        if mode & 0o077:
            with contextlib.suppress(OSError):  # somebody else's; what is written there is private nevertheless
                self.folder.chmod(mode & 0o700)

    def _make_room(self, path: Path, n_bytes: int) -> None:
        """Delete what was used longest ago until `n_bytes` fit in for `path`, and what a process that died left."""
        files = []
        for other, found in self._list():
            if other.suffix == _UNFINISHED and found.st_mtime < time.time() - _SECONDS_TO_WRITE:
                _delete(other)
            elif other.suffix == _SUFFIX and other != path:
                files.append((found.st_mtime_ns, found.st_size, other))
        n_left = self.limit_bytes - n_bytes - sum(size for _, size, _ in files)
        for _, size, other in sorted(files):
            if n_left >= 0:
                break
            _delete(other)
            n_left += size

    def _put(self, path: Path, parts: list[bytes]) -> None:
        """Write a file that is there as a whole or not at all, also where the process is killed meanwhile."""
        handle, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=self.folder)  # which nobody else may read
        try:
            with os.fdopen(handle, "wb") as file:
                _require_private(handle)
                file.writelines(parts)
            Path(name).replace(path)
        except BaseException:
            _delete(Path(name))
            raise


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).digest()


def _checksum(digest: bytes, snapshot: bytes | memoryview) -> bytes:
    """Of all that varies in a file."""
    checksum = hashlib.sha256(digest)
    checksum.update(snapshot)
    return checksum.digest()


def _check(data: bytes, digest: bytes) -> bytes:
    """The snapshot in a file's bytes. Raises _UnusableError unless they are whole, unchanged and of this key."""
    start, snapshot = data[:_HEAD_BYTES], memoryview(data)[_HEAD_BYTES:]
    if not start.startswith(_MAGIC):
        raise _UnusableError("it is no snapshot of this version", is_ours=True)
    if not start.startswith(_MAGIC + digest):
        raise _UnusableError("it is of another model, build or setting", is_ours=True)
    if start != _MAGIC + digest + _checksum(digest, snapshot):
        raise _UnusableError("it is damaged", is_ours=True)
    return bytes(snapshot)


def _is_private(found: os.stat_result) -> bool:
    """Whether the file is this user's and nobody else can write it; Windows has access lists instead."""
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)


def _require_private(handle: int) -> None:
    """Raise OSError on a file system without owners, where a file is everybody's."""
    if not _is_private(os.fstat(handle)):
        raise OSError("others could change the files there")


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
