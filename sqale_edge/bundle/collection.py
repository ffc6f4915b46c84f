"""Every wheel that a bundle needs: this program, what it requires, what that requires, and pip.

Each comes from a file that was given, else out of what is installed here, else, for another kind of machine, from the
index that pip uses. What is asked for there is written in `docs/security.md`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

from sqale_edge.bundle.installer.children import without_settings_of_pip
from sqale_edge.bundle.wheels import check_repackable, read_requirements, read_tags, repack
from sqale_edge.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from packaging.tags import Tag

    from sqale_edge.bundle.targets import Target

_ROOTS = ("sqale-edge", "pip")  # pip installs the others, also where a Python comes without it
_COMPILED = "llama-cpp-python"
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A wheel for the bundle.

    Attributes:
        name: In the form that names are compared in.
        origin: `installed`, `given` or `downloaded`.
    """

    name: str
    version: str
    path: Path
    origin: str


@dataclasses.dataclass(frozen=True)
class _Index:
    """Where pip looks for what is not here."""

    target: Target
    find_links: tuple[Path, ...]
    is_offline: bool


@dataclasses.dataclass
class _Needed:
    """A package, and what is asked of it."""

    name: str
    versions: SpecifierSet = dataclasses.field(default_factory=SpecifierSet)
    extras: set[str] = dataclasses.field(default_factory=set)


def collect_wheels(
    target: Target,
    folder: Path,
    *,
    given: Iterable[Path] = (),
    find_links: Iterable[Path] = (),
    is_offline: bool = False,
    show: Callable[[int, int], None] = lambda *_: None,
) -> list[Wheel]:
    """Put every wheel into `folder`.

    Args:
        target: The machines that they are for.
        folder: A new one.
        given: Wheels that are taken rather than what is installed.
        find_links: Folders with wheels that pip may take.
        is_offline: Connect to nothing.
        show: Told how many bytes of how many are packed; what it raises stops the work.

    Raises:
        BundleError: A wheel cannot be had; the message names all such.
    """
    files: dict[str, Path] = {canonicalize_name(parse_name(path)[0]): path for path in given}
    index = _Index(target, tuple(find_links), is_offline or target.is_here)
    found: dict[str, Wheel] = {}
    reasons: dict[str, str] = {}
    needed = {name: _Needed(name) for name in _ROOTS}
    todo = list(needed)
    while todo:
        missing: list[_Needed] = []
        for name in todo:
            show(0, 1)
            wheel = _take(needed[name], target, files)
            if wheel:
                found[name] = wheel
            else:
                missing.append(needed[name])
        new, failed = _download(missing, index, folder, lambda: show(0, 1))
        found |= new
        reasons |= failed
        todo = _follow(todo, found, needed, target)
    if reasons:
        raise _cannot_be_had(reasons, target)
    if unused := sorted(files.keys() - found.keys()):
        path = files[unused[0]]
        raise BundleError(f"{str(path)!r} is not needed", path=path, hint="leave that --wheel out")
    _check_versions(found, needed)
    return list(_finish(found, folder, show))


def parse_name(path: Path) -> tuple[str, str, frozenset[Tag]]:
    """Name, version and tags of a wheel by its file's name. Raises BundleError if that is none."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except ValueError as error:
        raise BundleError(f"{str(path)!r} is no wheel: {error}", path=path, hint="give a .whl file") from None
    return name, str(version), frozenset(tags)


def _finish(found: dict[str, Wheel], folder: Path, show: Callable[[int, int], None]) -> Iterator[Wheel]:
    """All of them by name; those of installed packages are made now, when it is known that nothing is missing."""
    installed = {
        name: importlib.metadata.distribution(name) for name, one in found.items() if one.origin == "installed"
    }
    sizes = {name: sum(file.size or 0 for file in one.files or []) for name, one in installed.items()}
    n_done = 0
    for name in sorted(found):
        if name not in installed:
            yield found[name]
            continue
        show(n_done, sum(sizes.values()))
        yield dataclasses.replace(found[name], path=repack(installed[name], folder))
        n_done += sizes[name]


def _take(needed: _Needed, target: Target, files: dict[str, Path]) -> Wheel | None:
    """The wheel that was given, or that of the installed package; None if neither is for the target."""
    if needed.name in files:
        path = files[needed.name]
        _, version, tags = parse_name(path)
        if not tags & target.tags:
            raise BundleError(
                f"{path.name!r} is not for {target.platform} with Python {target.python}",
                path=path,
                hint="give the wheel for that system",
            )
        read_requirements(path)
        return Wheel(needed.name, version, path, "given")
    installed = _find_installed(needed.name)
    if installed is None or not read_tags(installed) & target.tags:
        return None
    check_repackable(installed)
    return Wheel(needed.name, installed.version, Path(), "installed")


def _find_installed(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _follow(names: list[str], found: dict[str, Wheel], needed: dict[str, _Needed], target: Target) -> list[str]:
    """What the wheels of these names require: take note of it, and return what is new, or new in its extras."""
    new: dict[str, None] = {}
    for name in names:
        for requirement in _find_requirements(name, found):
            environments = [{**target.markers, "extra": extra} for extra in ("", *sorted(needed[name].extras))]
            if requirement.marker and not any(requirement.marker.evaluate(one) for one in environments):
                continue
            other = canonicalize_name(requirement.name)
            is_new = other not in needed
            one = needed.setdefault(other, _Needed(other))
            is_new = is_new or not requirement.extras <= one.extras
            one.versions &= requirement.specifier
            one.extras |= requirement.extras
            if is_new and other in found:
                new |= dict.fromkeys(_follow([other], found, needed, target))
            elif is_new:
                new[other] = None
    return list(new)


def _find_requirements(name: str, found: dict[str, Wheel]) -> list[Requirement]:
    """Of the wheel; of the installed package if there is none yet, or none to be had."""
    if name in found and found[name].origin != "installed":
        return read_requirements(found[name].path)
    installed = _find_installed(name)
    return [Requirement(line) for line in (installed.requires or [])] if installed else []


def _check_versions(found: dict[str, Wheel], needed: dict[str, _Needed]) -> None:
    for name, wheel in found.items():
        if not needed[name].versions.contains(wheel.version, prereleases=True):
            raise BundleError(
                f"{name} {wheel.version} does not fit: {needed[name].versions} is required",
                path=wheel.path,
                hint=f"give its wheel with --wheel, or install it anew: pip install '{name}{needed[name].versions}'",
            )


def _download(
    missing: list[_Needed], index: _Index, folder: Path, wait: Callable[[], None]
) -> tuple[dict[str, Wheel], dict[str, str]]:
    """Let pip get these, all at once; or one by one, to know which of them cannot be had, and why."""
    reasons: dict[str, str] = {}
    if missing and _run_pip([_pin(one) for one in missing], index, folder, wait):
        reasons = {one.name: reason for one in missing if (reason := _run_pip([_pin(one)], index, folder, wait))}
    wheels: dict[str, Wheel] = {}
    for path in folder.iterdir():
        name, version, _ = parse_name(path)
        wheels[canonicalize_name(name)] = Wheel(canonicalize_name(name), version, path, "downloaded")
    return {one.name: wheels[one.name] for one in missing if one.name not in reasons}, reasons


def _pin(needed: _Needed) -> str:
    """The version that is installed here, which is the tested one; else one that fits."""
    installed = _find_installed(needed.name)
    return f"{needed.name}=={installed.version}" if installed else f"{needed.name}{needed.versions}"


def _cannot_be_had(reasons: dict[str, str], target: Target) -> BundleError:
    names = ", ".join(reasons)
    where = f"{target.platform} with Python {target.python}"
    hint = f"give each with --wheel FILE or in a folder with --find-links, or run sqale-edge bundle create on {where}"
    if _COMPILED in reasons:
        hint += f"; {_COMPILED} has to be compiled there: pip wheel --no-deps {_COMPILED}=={_version_of(_COMPILED)}"
    return BundleError(f"there is no wheel for {where} of {names} ({next(iter(reasons.values()))})", hint=hint)


def _version_of(name: str) -> str:
    installed = _find_installed(name)
    return installed.version if installed else "VERSION"


def _run_pip(requirements: list[str], index: _Index, folder: Path, wait: Callable[[], None]) -> str:
    """Download wheels. What pip says is wrong; nothing if all is right."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    target = index.target
    if not target.is_here:
        digits = target.python.replace(".", "")
        command += ["--python-version", target.python, "--implementation", "cp"]
        command += [word for abi in (f"cp{digits}", "abi3", "none") for word in ("--abi", abi)]
        command += [word for name in target.pip_platforms for word in ("--platform", name)]
    command += [word for path in index.find_links for word in ("--find-links", str(path))]
    command += ["--no-index"] if index.is_offline else []
    environment = without_settings_of_pip() if index.is_offline else dict(os.environ)  # a setting may name an address
    with subprocess.Popen(  # noqa: S603 - pip, with requirements of packages
        [*command, *requirements],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**environment, "PYTHONUTF8": "1"},
    ) as child:
        text = ""
        try:
            while child.poll() is None:
                wait()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    text = child.communicate(timeout=_POLL_S)[1]
            text = text or child.communicate()[1]
            wait()
        except BaseException:
            child.kill()
            raise
    if child.returncode == 0:
        return ""
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    return errors[-1].rstrip(".") if errors else text.strip()[-200:] or f"pip ended with {child.returncode}"
