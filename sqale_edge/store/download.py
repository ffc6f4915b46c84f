"""Files of a repository, downloaded so that a kill costs nothing, and compared with what the hub says they are.

A file grows under the name `FILE.part`; it gets its own name when it is complete and right. Whoever starts again with
the same folder goes on where the last one ended.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import time
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import StoreError
from sqale_edge.store.hub import InterruptedTransferError
from sqale_edge.store.steps import Listener, Step, hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from sqale_edge.installed import StoredFile
    from sqale_edge.store.hub import Hub, HubFile, Listing

_PART = ".part"
_MOST_FAILED = 5  # tries in a row that brought nothing
_WAIT_S = 0.25  # before the second try; twice as long before each further one
_MEMORY_BYTES = 1 << 26  # files that git counts itself are small


@dataclasses.dataclass(frozen=True)
class Downloads:
    """Files of one commit, on their way into a folder; they lie there without the folders of their names.

    Attributes:
        hub: Where they come from.
        listing: The repository and the commit.
        folder: Where they go; what a killed run has left there is of the same commit.
        listener: Told how far it is.
    """

    hub: Hub
    listing: Listing
    folder: Path
    listener: Listener

    def fetch(self, files: Iterable[HubFile]) -> Iterator[StoredFile]:
        """Each file, as it is on the disk; all of them are one step.

        Raises:
            StoreError: One cannot be had, or is not what the hub says; what is wrong is deleted.
            OSError: It cannot be written.
        """
        files = list(files)
        n_total, n_done = sum(file.n_bytes for file in files), 0
        label = f"{self.listing.repository} ({len(files)} file{'s' * (len(files) != 1)})"

        def report(n_bytes: int) -> None:
            self.listener.show(Step("download", label, n_done + n_bytes, n_total))

        for file in files:
            yield self._fetch_one(file, report)
            n_done += file.n_bytes

    def _fetch_one(self, file: HubFile, report: Callable[[int], None]) -> StoredFile:
        target = self.folder / file.name.rpartition("/")[2]
        if target.exists():  # a killed run has checked it, but who knows since when it lies there
            found = hash_file(target, target.name, self.listener)
            _check(target, file, found)
        else:
            part = target.with_name(target.name + _PART)
            _download(self.hub, self.listing, file, part, report)
            found = hash_file(part, target.name, self.listener)
            _check(part, file, found)
            with part.open("r+b") as written:
                os.fsync(written.fileno())
            part.replace(target)
        report(found.n_bytes)
        return found

    def count_left(self, files: Iterable[HubFile]) -> int:
        """How many bytes of the files are not there yet."""
        n_left = 0
        for file in files:
            base = file.name.rpartition("/")[2]
            paths = [self.folder / base, self.folder / f"{base}{_PART}"]
            n_left += max(0, file.n_bytes - next((path.stat().st_size for path in paths if path.exists()), 0))
        return n_left


def _download(hub: Hub, listing: Listing, file: HubFile, part: Path, report: Callable[[int], None]) -> None:
    """All bytes of the file, in as many tries as it takes."""
    n_failed = 0
    while (n_there := _measure(part)) != file.n_bytes:
        if n_there > file.n_bytes:
            part.unlink()
            continue
        report(n_there)
        try:
            with hub.open_file(listing, file, n_there) as response:
                _append(response, file, part, n_there, report)
        except InterruptedTransferError as error:
            n_failed = 0 if _measure(part) > n_there else n_failed + 1
            if n_failed > _MOST_FAILED:
                raise StoreError(
                    f"{file.name} of {listing.repository} could not be downloaded: {error}, {n_failed} times in a row",
                    hint="run the same command again: it goes on where it was",
                ) from error
            time.sleep(_WAIT_S * 2 ** max(0, n_failed - 1))
    if not file.n_bytes:
        part.touch()


def _measure(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _append(response: Any, file: HubFile, part: Path, n_there: int, report: Callable[[int], None]) -> None:
    """What the response brings, behind the bytes that are there, or in place of them if it starts at the first."""
    if response.status_code == 416 or (n_there and not _goes_on(response, n_there)):
        part.unlink(missing_ok=True)
        n_there = 0
        if response.status_code != 200:
            raise InterruptedTransferError(f"the server answers {response.status_code} to the rest of it")
    with part.open("ab") as output:
        for chunk in response.iter_bytes():
            n_there += len(chunk)
            if n_there > file.n_bytes:
                raise StoreError(
                    f"{file.name} is longer than the {file.n_bytes:,} bytes that it should have",
                    hint="run the same command again; if it stays so, a proxy may change what is downloaded",
                )
            output.write(chunk)
            output.flush()
            report(n_there)
    if n_there < file.n_bytes:
        raise InterruptedTransferError(f"it ended after {n_there:,} of {file.n_bytes:,} bytes")


def _goes_on(response: Any, n_there: int) -> bool:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status_code == 206 and found is not None and int(found[1]) == n_there


def _check(path: Path, file: HubFile, found: StoredFile) -> None:
    """Raise StoreError, and delete it, unless the file is what the hub says."""
    pairs: list[tuple[str, object, object]] = [("bytes", found.n_bytes, file.n_bytes)]
    if file.sha256:
        pairs.append(("SHA-256", found.sha256, file.sha256))
    elif file.git_id and found.n_bytes <= _MEMORY_BYTES:
        content = path.read_bytes()
        pairs.append(("git's SHA-1", hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(), file.git_id))  # noqa: S324 - git's
    for what, is_value, wanted in pairs:
        if is_value != wanted:
            path.unlink()
            raise StoreError(
                f"{file.name} is not what the hub promises: {what} {is_value} instead of {wanted}",
                hint="run the same command again: it is downloaded anew; if it stays so, a proxy may change it",
            )
