"""Wheels made anew out of what is installed, so that a bundle needs no network and holds what runs here.

An installed package keeps, in its RECORD, every file of the wheel that it came from, with its digest. Written into a
zip in the order of their names, they are that wheel again; what pip has added (compiled files, commands, the place it
came from) is left out. It makes no difference whether the package was installed from PyPI, a folder or a file.

Source: the binary distribution format, https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from sqale_edge.errors import BundleError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, PackagePath

# What pip writes beside the files of a wheel.
_ADDED = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
_LEVEL = 1  # of compression: models are most of a bundle
_DATE = (1980, 1, 1, 0, 0, 0)  # the same wheel every time


def name_of(distribution: Distribution) -> str:
    """The name in the one form that names are compared in."""
    return canonicalize_name(distribution.metadata["Name"])


def read_tags(distribution: Distribution) -> frozenset[Tag]:
    """The systems that it is for, as its wheel said."""
    lines = re.findall(r"^Tag: *(\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE)
    return frozenset(tag for line in lines for tag in parse_tag(line))


def read_requirements(wheel: Path) -> list[Requirement]:
    """What a wheel requires. Raises BundleError if it is none."""
    try:
        parse_wheel_filename(wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
            metadata, _ = parse_email(archive.read(name))
        return [Requirement(line) for line in metadata.get("requires_dist", [])]
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise BundleError(f"{str(wheel)!r} is no wheel: {error}", path=wheel, hint="give a .whl file") from None


def check_repackable(distribution: Distribution) -> str:
    """The name of the folder that describes it. Raises BundleError if no wheel can be made of it."""
    files = distribution.files or []
    info = next((file.parts[0] for file in files if file.parts[-1] == "WHEEL" and len(file.parts) == 2), None)
    if info is None or not info.endswith(".dist-info") or _is_editable(distribution):
        raise BundleError(
            f"{name_of(distribution)} is not installed from a wheel, so none can be made of it",
            hint="install it in the usual way (pip install, not editable), or give its wheel with --wheel",
        )
    return info


def repack(distribution: Distribution, folder: Path) -> Path:
    """Write the wheel that the package was installed from into `folder`.

    Raises:
        BundleError: It was installed in a way that keeps no list of its files, or a file has changed since.
    """
    name, files, info = name_of(distribution), distribution.files or [], check_repackable(distribution)
    stem = info.removesuffix(".dist-info")
    commands = {entry.name for entry in distribution.entry_points if entry.group.endswith("_scripts")}
    entries: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    for file in files:
        target = _find_place(file, stem, commands)
        if target is None or (file.parts[0] == info and file.parts[-1] in _ADDED):
            continue
        path = Path(str(file.locate()))
        entries[target] = _read(path, file, name)
        modes[target] = 0o755 if os.access(path, os.X_OK) and os.name != "nt" else 0o644
        if ".data/scripts/" in target:
            entries[target] = re.sub(rb"\A#!.*python.*", b"#!python", entries[target])
    entries[f"{info}/RECORD"] = _make_record(entries, f"{info}/RECORD")
    wheel = folder / f"{stem}-{_name_tags(distribution)}.whl"
    with zipfile.ZipFile(wheel, "x", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for target in sorted(entries, key=lambda each: (each.startswith(info), each)):  # its description comes last
            head = zipfile.ZipInfo(target, _DATE)
            head.compress_type = zipfile.ZIP_DEFLATED
            head.external_attr = (0o100000 | modes.get(target, 0o644)) << 16
            archive.writestr(head, entries[target])
    return wheel


def _is_editable(distribution: Distribution) -> bool:
    return re.search(r'"editable": *true', distribution.read_text("direct_url.json") or "") is not None


def _find_place(file: PackagePath, stem: str, commands: set[str]) -> str | None:
    """Where the file was in the wheel; None for what was not in it."""
    if file.suffix == ".pyc":
        return None
    if file.parts[0] != "..":
        return file.as_posix()
    # Beside the folder of packages: commands, scripts, and other files below the same root.
    parts = [part for part in file.parts if part != ".."]
    if len(parts) == 2 and parts[0] in ("bin", "Scripts"):
        command = re.sub(r"(-script\.pyw?|\.exe)$", "", parts[1])
        return None if command in commands else f"{stem}.data/scripts/{parts[1]}"
    return f"{stem}.data/data/{'/'.join(parts)}"


def _read(path: Path, file: PackagePath, name: str) -> bytes:
    """The file, as RECORD says it is."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _changed(name, path, error.strerror or str(error)) from None
    if file.hash and file.hash.mode == "sha256" and _digest(content) != file.hash.value:
        raise _changed(name, path, "it is not as it was installed")
    return content


def _changed(name: str, path: Path, why: str) -> BundleError:
    return BundleError(
        f"{str(path)!r} of {name}: {why}",
        path=path,
        hint=f"install it again: pip install --force-reinstall --no-deps {name}",
    )


def _digest(content: bytes) -> str:
    """As RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")


def _make_record(entries: dict[str, bytes], own_name: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((name, f"sha256={_digest(content)}", len(content)) for name, content in sorted(entries.items()))
    rows.writerow((own_name, "", ""))
    return text.getvalue().encode("utf-8")


def _name_tags(distribution: Distribution) -> str:
    """The end of the wheel's name: build number, Pythons, interfaces and systems."""
    about = distribution.read_text("WHEEL") or ""
    tags = [line.split("-") for line in re.findall(r"^Tag: *(\S+)", about, re.MULTILINE)]
    parts = [".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True)]
    return "-".join([*re.findall(r"^Build: *(\S+)", about, re.MULTILINE), *parts])
