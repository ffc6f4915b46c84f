"""Is this a machine and a Python that the wheels of a bundle are for?"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from typing import Any

from .contents import InstallError


def name_platform() -> str:
    """What this machine runs, such as `linux-x86_64`, as this Python sees it."""
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "aarch64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        system = "linux-without-glibc"
    return f"{system}-{machine}" if sys.maxsize > 1 << 32 else f"{system}-{machine}-32bit"


def name_python() -> str:
    """The version of this Python as far as wheels depend on it."""
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{sys.version_info.major}.{sys.version_info.minor}{threads}"


def check_machine(about: dict[str, Any]) -> None:
    """Raise InstallError if the wheels are of another system, another Python, or a newer C library."""
    here, python = name_platform(), name_python()
    if (about["platform"], about["python"]) != (here, python) or sys.implementation.name != "cpython":
        raise InstallError(
            f"the bundle is for {about['platform']} and CPython {about['python']}, this is {here} and "
            f"{platform.python_implementation()} {python}",
            hint=f"run it with python{about['python']} on such a machine, or make a bundle for this one",
        )
    libc, newest = platform.libc_ver()[1], str(about.get("glibc") or "0")
    if [int(part) for part in re.findall(r"\d+", libc or "999")] < [int(part) for part in re.findall(r"\d+", newest)]:
        raise InstallError(
            f"the bundle was made with glibc {newest}, this is glibc {libc}",
            hint="make it on a system that is as old as this one",
        )
