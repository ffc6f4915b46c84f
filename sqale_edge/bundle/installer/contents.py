"""What a bundle holds, and whether every byte of it is as its list of digests says."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

LIST_NAME, ABOUT_NAME, WHEELS, MODELS = "SHA256SUMS", "bundle.json", "wheels", "models"
FORMAT = 1
CHUNK_BYTES = 1 << 20
_MOST_BYTES = 1 << 22  # of a file that is read as a whole
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*", re.ASCII)
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}", re.ASCII)
_FULL = {errno.ENOSPC, errno.EDQUOT}

# Told how far a step is: its name, the file, bytes done, bytes in all. What it raises stops the work.
Show = Callable[[str, str, int, int], None]


class InstallError(Exception):
    """A bundle is damaged, or cannot be installed here; `hint` is the fix."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def explain(error: OSError, where: Path) -> InstallError:
    """What the system says, as an error with a fix; `where` is the place that was worked on."""
    if error.errno in _FULL:
        hint = "free some space, or choose a place on another disk"
        return InstallError(f"the disk of {str(where)!r} is full", hint=hint)
    return InstallError(
        f"{str(error.filename or where)!r} cannot be used: {error.strerror or error}",
        hint="check its permissions, or choose another place",
    )


def says_full(message: str) -> bool:
    """Whether another program says that a disk, or what this user may have of it, is full."""
    return any(os.strerror(code) in message for code in _FULL)


class Source(Protocol):
    """Where a bundle's files are: a folder, or a zip."""

    path: Path

    def list_names(self) -> tuple[list[str], list[str]]:
        """Every file, with `/`; and what is wrong with the rest, one line each."""

    def open(self, name: str) -> BinaryIO:
        """The file of that name."""


class Folder:
    """A bundle that is a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list_names(self) -> tuple[list[str], list[str]]:
        """Every file; links and the like are wrong."""
        names: list[str] = []
        wrong: list[str] = []
        todo = [self.path]
        while todo:
            for entry in os.scandir(todo.pop()):
                name = Path(entry.path).relative_to(self.path).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    names.append(name)
                else:
                    wrong.append(f"{name!r} is a link, or no file")
        return names, wrong

    def open(self, name: str) -> BinaryIO:
        """The file of that name."""
        return (self.path / name).open("rb")


class Contents:
    """What a bundle is found to hold.

    Attributes:
        source: The bundle.
        digest: SHA-256 of its list of digests.
        digests: SHA-256 of every other file, by its name.
    """

    def __init__(self, source: Source, digest: str, digests: dict[str, str]) -> None:
        self.source, self.digest, self.digests = source, digest, digests

    def read(self, name: str) -> bytes:
        """A small file, as the list says it is. Raises InstallError if it is not."""
        if name not in self.digests:
            raise damaged(self.source, f"{name!r} is missing")
        content = _read_small(self.source, name)
        if hashlib.sha256(content).hexdigest() != self.digests[name]:
            raise damaged(self.source, f"{name!r} is not as {LIST_NAME} says")
        return content

    def copy(self, name: str, target: Path, wait: Callable[[int], None]) -> int:
        """Copy a file, which must still be as the list says, to a new one; its length in bytes.

        Args:
            name: Of the file in the bundle.
            target: Of the copy. Only this may be used: whatever becomes of the bundle, it stays as it is.
            wait: Told again and again how many bytes are copied; what it raises stops the work.

        Raises:
            InstallError: It has changed.
            OSError: It cannot be read, or the copy not be written.
        """
        digest, n_done = hashlib.sha256(), 0
        with self.source.open(name) as source, target.open("xb") as copy:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
                n_done += len(chunk)
                wait(n_done)
        if digest.hexdigest() != self.digests[name]:
            raise InstallError(f"{name!r} has changed since it was looked at", hint="run the same command again")
        return n_done

    def read_about(self) -> dict[str, Any]:
        """What `bundle.json` says. Raises InstallError for one that this version does not know."""
        try:
            about = json.loads(self.read(ABOUT_NAME))
            pins = [(one["name"], one["version"], one["file"]) for one in about["wheels"]]
            words = [about["platform"], about["python"], *about["models"], *(text for pin in pins for text in pin)]
            fits = about["format"] == FORMAT and all(_PIN.fullmatch(word) for word in words)
            fits = fits and _VERSION.fullmatch(about.get("glibc") or "0") is not None
            fits = fits and all(f"{WHEELS}/{file}" in self.digests for _, _, file in pins)
        except (ValueError, KeyError, TypeError, RecursionError):
            fits = False
        if not fits:
            raise InstallError(
                f"the {ABOUT_NAME} of {str(self.source.path)!r} is not one that this version can read",
                hint="use the install.py of the bundle itself",
            )
        return about  # type: ignore[no-any-return] # looked at above

    def list_pins(self) -> str:
        """The wheels as pip's requirements, with their digests."""
        wheels = self.read_about()["wheels"]
        return make_requirements(
            [(one["name"], one["version"], self.digests[f"wheels/{one['file']}"]) for one in wheels]
        )


def make_requirements(pins: list[tuple[str, str, str]]) -> str:
    """Lines for pip, of names, versions and SHA-256 digests."""
    return "".join(f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in pins)


def is_safe_name(name: str) -> bool:
    """Whether a file of a bundle can be called that: on no system does it lead out of the bundle."""
    parts = name.split("/")
    return len(name) <= 240 and all(_PART.fullmatch(part) and not part.endswith(".") for part in parts)


def find_damage(source: Source, show: Show) -> tuple[Contents, list[str]]:
    """Read every byte. What the bundle should hold, and what is wrong, one line each.

    Raises:
        InstallError: It is no bundle at all.
    """
    names, problems = source.list_names()
    if LIST_NAME not in names:
        raise InstallError(
            f"{str(source.path)!r} is no bundle: there is no {LIST_NAME} in it",
            hint="give the folder or the zip that sqale-edge bundle create has made, with all that was in it",
        )
    content = _read_small(source, LIST_NAME)
    digests = _parse_list(source, content)
    problems += [f"{name!r} is missing" for name in sorted(digests.keys() - set(names))]
    problems += [f"{name!r} does not belong to it" for name in sorted(set(names) - digests.keys() - {LIST_NAME})]
    present = sorted(digests.keys() & set(names))
    n_done, n_total = 0, sum(_measure(source, name) for name in present)
    for name in present:
        found = ""
        try:
            for n_read, digest in _hash(source, name):
                n_done, found = n_done + n_read, digest
                show("check", source.path.absolute().name, n_done, n_total)
        except InstallError as error:  # a zip knows that something is wrong by itself
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(f"{name!r} cannot be read: {error.strerror}")
            continue
        if found != digests[name]:
            problems.append(f"{name!r} was changed or cut: its SHA-256 is {found} instead of {digests[name]}")
    return Contents(source, hashlib.sha256(content).hexdigest(), digests), problems


def check_bundle(source: Source, show: Show, wanted_digest: str | None = None) -> Contents:
    """The contents, every byte of which was read.

    Raises:
        InstallError: It is not whole, or not the one of `wanted_digest`.
    """
    contents, problems = find_damage(source, show)
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise damaged(source, f"{problems[0]}{more}")
    check_digest(contents, wanted_digest)
    return contents


def check_digest(contents: Contents, wanted: str | None) -> None:
    """Raise InstallError unless the bundle's digest is the one that is wanted."""
    if wanted is not None and contents.digest != wanted.strip().lower():
        raise InstallError(
            f"the digest of {str(contents.source.path)!r} is {contents.digest} instead of {wanted}",
            hint="this is another bundle than its maker speaks of: get it again, and ask for its digest again",
        )


def damaged(source: Source, what: str) -> InstallError:
    """The error for a bundle that is not as it was made."""
    return InstallError(
        f"the bundle {str(source.path)!r} is damaged: {what}", hint="copy it again, or have it made again"
    )


def _parse_list(source: Source, content: bytes) -> dict[str, str]:
    digests: dict[str, str] = {}
    seen = {LIST_NAME.lower()}
    for line in content.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        name = match[2] if match else ""
        if not match or not is_safe_name(name) or name.lower() in seen:
            raise damaged(source, f"{LIST_NAME} has the line {line[:200]!r}")
        seen.add(name.lower())
        digests[name] = match[1]
    return digests


def _read_small(source: Source, name: str) -> bytes:
    with source.open(name) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise damaged(source, f"{name!r} is longer than {_MOST_BYTES:,} bytes")
    return content


def _measure(source: Source, name: str) -> int:
    """Its length; 0 if it cannot be opened, which is found when it is read."""
    with contextlib.suppress(OSError), source.open(name) as file:
        return file.seek(0, io.SEEK_END)
    return 0


def _hash(source: Source, name: str) -> Iterator[tuple[int, str]]:
    """How many bytes were read, again and again; the digest with the last."""
    digest = hashlib.sha256()
    with source.open(name) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            yield len(chunk), ""
    yield 0, digest.hexdigest()
