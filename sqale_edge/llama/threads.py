"""How many threads make sense here: the CPUs that this process may really use. Platform-specific, like `memory.py`.

llama.cpp's threads spin at barriers, so one thread too many can make a token twenty times slower: a container with two
allowed CPUs must get two, whatever the host has.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.llama.tuning import Tuning, read_tuning

if TYPE_CHECKING:
    from sqale_edge.settings import EngineSettings


def allowed_cpus() -> int:
    """CPUs that this process may use: the affinity mask, cut by a cgroup quota. At least 1."""
    if sys.platform == "linux":
        n_cpus = len(os.sched_getaffinity(0))
        quota = read_cgroup_quota(own_cgroups())
        return max(1, min(n_cpus, math.ceil(quota)) if quota else n_cpus)
    return os.cpu_count() or 1


def own_cgroups(root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> list[Path]:
    """The folders of the control group that this process is in, or of `own`, and of the groups around it."""
    group = root / (_own_cgroup() if own is None else own).strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]


def read_cgroup_quota(groups: list[Path]) -> float | None:
    """CPUs that these control groups allow, version 2 or 1; None where none sets a limit."""
    return min((quota for group in groups if (quota := _read_quota(group))), default=None)


def _read_quota(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu/cpu.cfs_quota_us").read_text()
            period = (group / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return float(quota) / float(period) if float(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None  # "max" and -1 are no limits


def _own_cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def physical_cores() -> int:
    """Cores behind the allowed CPUs.

    Two hyper-threads of one core count once. Performance cores only, where macOS tells them apart.
    """
    n_allowed = allowed_cpus()
    if sys.platform == "linux":
        cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
        return max(1, min(len(cores), n_allowed))
    if sys.platform == "darwin":
        return min(_performance_cores() or n_allowed, n_allowed)
    # Windows counts hyper-threads, and its count of cores needs more than the standard library.
    return max(1, n_allowed // 2)


def choose_threads(settings: EngineSettings) -> tuple[int, int]:
    """Threads for decoding and for prefilling: what `settings` say, else the defaults."""
    n_threads, n_threads_batch = default_threads()
    return settings.threads or n_threads, settings.threads_batch or settings.threads or n_threads_batch


def default_threads() -> tuple[int, int]:
    """Threads for decoding and for prefilling: what was measured here, else the cores, for both.

    Decoding waits for memory and prefilling fills a core's vector units, so a second thread on a core should only get
    in the way; `sqale-edge bench --tune` measures it.
    """
    tuned = tuned_threads()
    if tuned:
        return tuned.threads, tuned.threads_batch
    n_cores = physical_cores()
    return n_cores, n_cores


def tuned_threads() -> Tuning | None:
    """What `sqale-edge bench --tune` found on this machine, if it was run."""
    return read_tuning(identify_machine())


def identify_machine() -> str:
    """What the best number of threads depends on: the processor, and how much of it this process may use."""
    return f"{cpu_name()}, {physical_cores()} cores, {allowed_cpus()} CPUs"


def cpu_name() -> str:
    """The processor, as the system calls it."""
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        return name or platform.machine()
    if sys.platform == "darwin":
        return _ask_sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _performance_cores() -> int | None:
    text = _ask_sysctl("hw.perflevel0.physicalcpu")
    return int(text) if text.isdigit() else None


def _ask_sysctl(name: str) -> str:
    """What macOS says; empty where it says nothing."""
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=5).stdout.decode().strip()  # noqa: S603 - a fixed command
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
