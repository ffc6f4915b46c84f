"""The machines that a bundle can be made for, and which wheels run there."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from typing import TYPE_CHECKING

from packaging.markers import default_environment
from packaging.tags import compatible_tags, cpython_tags, sys_tags

from sqale_edge.bundle.installer.machine import name_platform, name_python
from sqale_edge.errors import BundleError

if TYPE_CHECKING:
    from packaging.tags import Tag

# The oldest systems that a bundle for another machine asks for: glibc of RHEL 8 and Debian 10, macOS 14.
_GLIBC_MINOR, _MACOS_MAJOR = 28, 14
_OLD_GLIBC = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_MARKERS = {
    "linux": ("posix", "linux", "Linux", {}),
    "macos": ("posix", "darwin", "Darwin", {}),
    "windows": ("nt", "win32", "Windows", {"x86_64": "AMD64", "arm64": "ARM64"}),
}
PLATFORMS = ("linux-x86_64", "linux-aarch64", "macos-arm64", "macos-x86_64", "windows-x86_64", "windows-arm64")


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of machine with a version of CPython.

    Attributes:
        platform: One of `PLATFORMS`, or what this machine is.
        python: Such as `3.12`.
        is_here: Whether it is what runs this.
        tags: Of the wheels that run there.
        markers: What the conditions of requirements are judged by.
        pip_platforms: The same for pip.
    """

    platform: str
    python: str
    is_here: bool
    tags: frozenset[Tag]
    markers: dict[str, str]
    pip_platforms: tuple[str, ...]


def find_target(name: str | None = None, python: str | None = None) -> Target:
    """The target of that name and that version of CPython; what is None is as here.

    Raises:
        BundleError: There is no such platform, or the version is one that this program does not run on.
    """
    name, python = (name or name_platform()).lower(), python or name_python()
    if (name, python) == (name_platform(), name_python()):
        return Target(name, python, True, frozenset(sys_tags()), dict(default_environment()), ())  # type: ignore[arg-type] # a TypedDict of str
    if name not in PLATFORMS:
        raise BundleError(f"there is no platform {name!r}", hint=f"choose one of {', '.join(PLATFORMS)}")
    match = re.fullmatch(r"(\d+)\.(\d{1,2})", python)
    if not match:
        raise BundleError(f"{python!r} is no version in two numbers", hint="choose one such as 3.12")
    version = (int(match[1]), int(match[2]))
    if version[0] != 3 or version < (3, 11):
        raise BundleError(f"Python {python!r} cannot run this program", hint="choose 3.11 or newer, such as 3.12")
    system, _, machine = name.partition("-")
    platforms = _list_platforms(system, machine)
    tags = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, f"cp3{version[1]}", platforms)]
    return Target(name, python, False, frozenset(tags), _make_markers(system, machine, python), tuple(platforms))


def find_libc() -> str | None:
    """The version of this machine's glibc, which what is compiled here needs at least."""
    return platform.libc_ver()[1] or None if sys.platform == "linux" else None


def _list_platforms(system: str, machine: str) -> list[str]:
    """The platform tags that run there, the newest first."""
    if system == "windows":
        return ["win_amd64" if machine == "x86_64" else "win_arm64"]
    if system == "macos":
        versions = [f"{major}_0" for major in range(_MACOS_MAJOR, 10, -1)]
        versions += [f"10_{minor}" for minor in range(16, 8, -1)] if machine == "x86_64" else []
        return [f"macosx_{version}_{kind}" for version in versions for kind in (machine, "universal2")]
    names = []
    for minor in range(_GLIBC_MINOR, 4, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        names += [f"{_OLD_GLIBC[minor]}_{machine}"] if minor in _OLD_GLIBC else []
    return [*names, f"linux_{machine}"]


def _make_markers(system: str, machine: str, python: str) -> dict[str, str]:
    os_name, sys_platform, platform_system, machines = _MARKERS[system]
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": os_name,
        "platform_machine": machines.get(machine, machine),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": platform_system,
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": sys_platform,
    }
