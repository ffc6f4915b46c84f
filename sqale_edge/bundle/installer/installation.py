"""A bundle becomes an environment with this program in it, and models in this user's store."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from venv import EnvBuilder
from zipfile import BadZipFile, ZipFile

from .children import RUN_COMMAND, RUN_PIP, TRY, run_python
from .contents import WHEELS, InstallError, check_bundle, damaged
from .machine import check_machine
from .place import clear, find_python, held, is_complete, write_marker

if TYPE_CHECKING:
    from .contents import Contents, Show, Source

_UNPACKED = ".wheels"  # in an unfinished installation: copies of the wheels, and pip's list


def install_bundle(source: Source, venv: Path, show: Show, *, digest: str | None = None, models: bool = True) -> str:
    """Install the program into the folder `venv`, and the models into this user's store.

    Returns the bundle's digest.

    Raises:
        InstallError: It cannot be done. The program is installed whole, where only a model failed, or not at all.
        KeyboardInterrupt: What `show` raised. What this call has made is removed.
        OSError: The disk fails.
    """
    _check_outside(source, venv)
    contents = check_bundle(source, show, digest)
    about = contents.read_about()
    check_machine(about)
    wanted = ", ".join(about["models"]) if models else ""
    if is_complete(venv, contents.digest):
        _add_models(contents, venv, wanted, show)
        return contents.digest
    with held(venv):
        try:
            if not is_complete(venv, contents.digest):
                _make(contents, about, venv, show)
            _add_models(contents, venv, wanted, show)
        except BaseException as error:
            if not (isinstance(error, InstallError) and is_complete(venv, contents.digest)):
                clear(venv, with_marker=True)
            raise
    return contents.digest


def _make(contents: Contents, about: dict[str, Any], venv: Path, show: Show) -> None:
    """A new environment with every wheel of the bundle; marked as complete when llama.cpp has run in it."""
    write_marker(venv, contents.digest, is_complete=False)
    clear(venv, with_marker=False)
    files = [str(one["file"]) for one in about["wheels"]]
    pip = next((file for file in files if file.startswith("pip-")), None)
    if pip is None:
        raise damaged(contents.source, "it has no wheel of pip")
    _check_space(contents, files, venv)
    show("make", str(venv), 0, 1)
    EnvBuilder(symlinks=os.name != "nt").create(venv)
    unpacked = venv / _UNPACKED
    unpacked.mkdir()
    for file in files:
        contents.copy(f"{WHEELS}/{file}", unpacked / file, lambda _: show("unpack", WHEELS, 0, 1))
    pins = unpacked / "requirements.txt"
    pins.write_text(contents.list_pins(), encoding="ascii")
    options = [
        "--no-index",
        "--no-deps",
        "--require-hashes",
        "--no-cache-dir",
        "--no-input",
        "--find-links",
        str(unpacked),
    ]
    options += ["--no-warn-script-location", "--disable-pip-version-check", "--requirement", str(pins)]
    python = find_python(venv)
    run_python(python, [*RUN_PIP, str(unpacked / pip), "install", *options], show, "install", f"{len(files)} wheels")
    shutil.rmtree(unpacked)
    run_python(python, TRY, show, "try", "the demo model")
    if sys.platform != "win32":
        os.sync()  # pip does not see to it that what it writes outlives a power cut
    write_marker(venv, contents.digest, is_complete=True)


def _check_outside(source: Source, venv: Path) -> None:
    """Raise InstallError if the folder is in the bundle, which would not be whole any more."""
    real = Path(os.path.realpath(venv))
    if Path(os.path.realpath(source.path)) in (real, *real.parents):
        raise InstallError(f"{str(venv)!r} is in the bundle itself", hint="choose another place with --venv")


def _check_space(contents: Contents, files: list[str], venv: Path) -> None:
    needed = n_copies = 0
    for file in files:
        try:
            with contents.source.open(f"{WHEELS}/{file}") as wheel, ZipFile(wheel) as archive:
                needed += sum(info.file_size for info in archive.infolist())
                n_copies += wheel.seek(0, io.SEEK_END)
        except BadZipFile:
            raise damaged(contents.source, f"{file!r} is no wheel") from None
    needed += needed // 4 + n_copies  # a quarter is what Python makes of the sources
    free = shutil.disk_usage(venv).free
    if needed > free:
        raise InstallError(
            f"the disk of {str(venv)!r} has {free / 1e6:,.0f} MB free, but {needed / 1e6:,.0f} MB are needed",
            hint="free some space, or choose a place on another disk with --venv",
        )


def _add_models(contents: Contents, venv: Path, names: str, show: Show) -> None:
    """Have the new program put the models into the store of this user."""
    if names:
        options = ["--models-only", "--digest", contents.digest, str(contents.source.path.absolute())]
        run_python(find_python(venv), [*RUN_COMMAND, "bundle", "install", *options], show, "models", names)
