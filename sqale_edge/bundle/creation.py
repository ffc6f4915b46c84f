"""A bundle is made: all of it, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import importlib.resources
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge._version import __version__
from sqale_edge.bundle.archive import Archive
from sqale_edge.bundle.collection import collect_wheels
from sqale_edge.bundle.installer.contents import (
    ABOUT_NAME,
    FORMAT,
    LIST_NAME,
    MODELS,
    WHEELS,
    Folder,
    InstallError,
    explain,
    make_requirements,
)
from sqale_edge.bundle.models import pack_model
from sqale_edge.bundle.output import Output, is_zip
from sqale_edge.bundle.targets import find_libc, find_target
from sqale_edge.bundle.unfinished import REPLACED_NAME, work_folder
from sqale_edge.errors import BundleError
from sqale_edge.installed import MANIFEST_NAME
from sqale_edge.new_files import put_in_place
from sqale_edge.store.steps import Listener, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqale_edge.bundle.collection import Wheel
    from sqale_edge.bundle.installer.contents import Source
    from sqale_edge.bundle.models import PackedModel
    from sqale_edge.bundle.targets import Target
    from sqale_edge.installed import StoredFile

_INSTALLER = "sqale_edge_installer"  # what the folder with the installer is called in a bundle


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A bundle that was made.

    Attributes:
        path: Of the folder or zip.
        digest: SHA-256 of its list of digests, which stands for all of it.
        about: What its `bundle.json` says.
        notes: What a person should know.
    """

    path: Path
    digest: str
    n_bytes: int
    about: dict[str, Any]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The bundle as plain JSON types."""
        return {**dataclasses.asdict(self), "path": str(self.path), "notes": list(self.notes)}


def create_bundle(
    output: Path | None = None,
    models: Sequence[str] = (),
    *,
    platform: str | None = None,
    python: str | None = None,
    wheels: Sequence[Path] = (),
    find_links: Sequence[Path] = (),
    is_offline: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> Bundle:
    """Write this program, all that it needs and models into one folder or zip.

    Args:
        output: A zip if it ends with `.zip`, else a folder; None names a zip in the current folder after its content.
        models: Names in the store, or paths of GGUF files.
        platform: One of `targets.PLATFORMS`; None is what this machine is.
        python: The version of CPython; None is this one.
        wheels: Taken rather than what is installed here.
        find_links: Folders where pip may find wheels for another platform.
        is_offline: Connect to nothing. For this platform and this Python nothing is ever downloaded.
        overwrite: Replace a bundle of that name.
        listener: Told meanwhile; what it raises stops the work, and nothing of it stays.

    Raises:
        BundleError: It cannot be made.
        SqaleEdgeError: What is wrong with a model.
    """
    listener = listener or Listener()
    target = find_target(platform, python)
    name = f"sqale-edge-{__version__}-{target.platform}-python{target.python}"
    output = output or Path(f"{name}.zip")
    with _disk_errors(output):
        _check_free(output, overwrite=overwrite)
    with _disk_errors(output), work_folder(output, listener) as work:
        packed = [pack_model(text, work / f"model-{number}", listener) for number, text in enumerate(models)]
        _check_names(packed)
        _check_space(output, sum(file.n_bytes for one in packed for file in one.files))
        (work / WHEELS).mkdir()
        found = collect_wheels(
            target,
            work / WHEELS,
            given=wheels,
            find_links=find_links,
            is_offline=is_offline,
            show=lambda n_done, n_total: listener.show(Step("make", "wheels", n_done, n_total)),
        )
        about = _describe(target, found, packed)
        made = work / "bundle.zip" if is_zip(output) else work / "bundle"
        digest = _write(made, about, found, packed, listener, title=name)
        n_bytes = sum(each.stat().st_size for each in ([made] if made.is_file() else made.rglob("*")) if each.is_file())
        _put_in_place(made, output, overwrite=overwrite)
    return Bundle(output.absolute(), digest, n_bytes, about, tuple(_list_notes(target, found, packed)))


def open_bundle(path: Path) -> Source:
    """The files of a bundle, a folder or a zip.

    Raises:
        BundleError: There is nothing of that name.
        InstallError: It is a zip that was not written here.
    """
    if path.is_dir():
        return Folder(path)
    if not path.is_file():
        raise BundleError(f"there is no bundle {str(path)!r}", path=path, hint="give a folder or a .zip file")
    return Archive(path)


def _check_free(output: Path, *, overwrite: bool) -> None:
    """Raise BundleError if the name is taken, unless by a bundle that may be overwritten."""
    if not output.absolute().parent.is_dir():
        parent = str(output.absolute().parent)
        raise BundleError(f"there is no folder {parent!r}", path=output, hint="make it, or choose another place")
    try:
        output.lstat()
    except FileNotFoundError:
        return
    if not overwrite:
        raise BundleError(
            f"{str(output)!r} exists already", path=output, hint="choose another name, or overwrite it with --overwrite"
        )
    if not _is_bundle(output):
        raise BundleError(f"{str(output)!r} is no bundle", path=output, hint="choose another name")


def _is_bundle(path: Path) -> bool:
    """Whether it is a bundle, as far as its names say."""
    if path.is_symlink() or is_zip(path) != path.is_file():
        return False
    if path.is_dir():
        return (path / LIST_NAME).is_file() and (path / ABOUT_NAME).is_file()
    try:
        names, _ = Archive(path).list_names()
    except InstallError:
        return False
    return {LIST_NAME, ABOUT_NAME} <= set(names)


def _check_names(packed: list[PackedModel]) -> None:
    names = [one.manifest.name for one in packed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BundleError(f"the model {twice[0]!r} is given twice", hint="give each model once")


def _check_space(output: Path, n_bytes: int) -> None:
    """For the models; what the wheels take is known when they are made."""
    free = shutil.disk_usage(output.absolute().parent).free
    if n_bytes > free:
        raise BundleError(
            f"the disk of {str(output)!r} has {free / 1e9:.2f} GB free, the models alone need {n_bytes / 1e9:.2f} GB",
            path=output,
            hint="free some space, or choose a place on another disk",
        )


def _describe(target: Target, wheels: list[Wheel], packed: list[PackedModel]) -> dict[str, Any]:
    is_compiled_here = any(
        one.origin == "installed" and re.search(r"-linux_\w+\.whl$", one.path.name) for one in wheels
    )
    return {
        "format": FORMAT,
        "sqale_edge": __version__,
        "platform": target.platform,
        "python": target.python,
        # A wheel that was compiled for this machine alone does not say which C library it needs.
        "glibc": find_libc() if is_compiled_here and target.platform.startswith("linux-") else None,
        "wheels": [{"name": one.name, "version": one.version, "file": one.path.name} for one in wheels],
        "models": [one.manifest.name for one in packed],
        "made_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _list_notes(target: Target, wheels: list[Wheel], packed: list[PackedModel]) -> Iterator[str]:
    if not packed:
        yield "it holds no model but the demo model; --model adds others"
    downloaded = [one.name for one in wheels if one.origin == "downloaded"]
    if downloaded:
        yield f"downloaded by pip: {', '.join(downloaded)}"
    if not target.is_here:
        yield f"not tried on {target.platform} with Python {target.python}: install it there before you rely on it"


def _write(
    path: Path, about: dict[str, Any], wheels: list[Wheel], packed: list[PackedModel], listener: Listener, *, title: str
) -> str:
    """The bundle itself. Its digest."""
    n_total = sum(one.path.stat().st_size for one in wheels) + sum(file.n_bytes for one in packed for file in one.files)
    output = Output(path, n_total, listener)
    try:
        installer = importlib.resources.files("sqale_edge.bundle.installer")
        for module in sorted(installer.iterdir(), key=lambda each: each.name):
            if module.name.endswith(".py"):
                output.add(f"{_INSTALLER}/{module.name}", module.read_bytes())
        modules = {name.rpartition("/")[2]: digest for name, digest in output.digests.items()}
        output.add("install.py", _render("install.py", python=about["python"], modules=modules))
        output.add("INSTALL.md", _render("INSTALL.md", title=title, is_windows="windows" in about["platform"], **about))
        for wheel in wheels:
            output.add(f"{WHEELS}/{wheel.path.name}", wheel.path)
        pins = [(one.name, one.version, output.digests[f"{WHEELS}/{one.path.name}"]) for one in wheels]
        output.add("requirements.txt", make_requirements(pins).encode("ascii"))
        for one in packed:
            folder = f"{MODELS}/{one.manifest.name}"
            for file in one.files:
                output.add(f"{folder}/{file.name}", one.sources[file.name])
                _check_digest(output.digests[f"{folder}/{file.name}"], file, one)
            output.add(f"{folder}/{MANIFEST_NAME}", _dump(one.manifest.to_dict()))
        output.add(ABOUT_NAME, _dump(about))
        return output.finish()
    except BaseException:
        output.abandon()
        raise


def _check_digest(found: str, file: StoredFile, packed: PackedModel) -> None:
    path, name = packed.sources[file.name], packed.manifest.name
    if found != file.sha256:
        hint = f"sqale-edge models verify {name} says more"
        raise BundleError(f"{str(path)!r} of the model {name!r} is damaged", path=path, hint=hint)


def _dump(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "backslashreplace")


def _render(name: str, **values: Any) -> bytes:
    """A file of the bundle, out of its template."""
    import jinja2  # noqa: PLC0415 - not a light import

    template = importlib.resources.files("sqale_edge.bundle").joinpath(f"{name}.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - not HTML
    return environment.from_string(template).render(values).encode("utf-8")


def _put_in_place(made: Path, output: Path, *, overwrite: bool) -> None:
    """Give the bundle its name. A folder that is overwritten is moved away first, and deleted afterwards."""
    try:
        if made.is_file():
            put_in_place(made, output, overwrite=overwrite)
            return
        replaced = made.with_name(REPLACED_NAME)
        if overwrite and output.is_dir():
            output.rename(replaced)
        try:
            made.rename(output)
        except OSError:
            if replaced.exists():
                replaced.rename(output)
            raise
    except OSError as error:
        if isinstance(error, FileExistsError) or error.errno == errno.ENOTEMPTY:
            raise BundleError(
                f"{str(output)!r} exists already", path=output, hint="another process has just made it"
            ) from None
        raise


@contextlib.contextmanager
def _disk_errors(output: Path) -> Iterator[None]:
    """An OSError of the block becomes a BundleError that says what to do."""
    try:
        yield
    except OSError as error:
        known = explain(error, output.absolute().parent)
        raise BundleError(str(known), path=output, hint=known.hint) from error
