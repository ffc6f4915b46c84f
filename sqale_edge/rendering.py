"""Runs a chat template. It is a program out of a model file, so it gets a process with little time and memory.

Jinja's sandbox keeps a template from the system, but not from computing without end or filling the memory: compiling it
already computes its constants, and one operator can take all there is. Counting inside would have to know the cost of
every operator, filter and method; the system's own limits on a process hold for all of them, and a child costs a tenth
of a second. This module imports nothing of ours: the child runs it as a script.

Not guaranteed: a limit on memory where the system has none (Windows, macOS); any limit where no child can be started,
which is so in programs in which `sys.executable` is not a Python interpreter.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

_CPU_S = 5.0
_WALL_S = 60.0  # for a machine that is busy with other things
_MEMORY_BYTES = 512 << 20
_LONGEST = 1_000_000  # characters of a rendered conversation
_REASON_CHARS = 300
_PYTHON = re.compile(r"(python|pypy)w?[\d.]*[dt]*(\.exe)?")  # a program that embeds Python must not be started again

# Private-use characters: no template contains them, and no template trims them.
_USER, _REPLY, _NEXT = "\ue000user\ue001", "\ue000reply\ue001", "\ue000next\ue001"


class UnusableTemplateError(Exception):
    """The template failed, or took too much; `str()` says how, in one line."""


def cut_in_child(template: str, system: str, variables: dict[str, Any], *, cpu_s: float = _CPU_S) -> list[str]:
    """As `cut`, in a child with limits. Raises UnusableTemplateError."""
    request = [template, system, variables]
    # The child imports what this process would import, and never modules that happen to lie in the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        if not _is_python(sys.executable):
            return _cut_here(request)
        done = subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-P", __file__, str(cpu_s)],
            input=json.dumps(request).encode(),
            capture_output=True,
            check=False,
            env=environment,
            timeout=_WALL_S,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone, which decides
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        raise UnusableTemplateError(f"it takes more than {_WALL_S:g} s") from None
    except OSError:  # no process can be started here
        return _cut_here(request)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise UnusableTemplateError(f"it takes more than {cpu_s:g} s, or too much memory") from None
    if "error" in answer:
        raise UnusableTemplateError(answer["error"])
    texts: list[str] = answer["texts"]
    return texts


def _is_python(executable: str | None) -> bool:
    is_named_so = _PYTHON.fullmatch(Path(executable or "").name.lower())
    return bool(is_named_so) and not getattr(sys, "frozen", False)


def _cut_here(request: list[Any]) -> list[str]:
    try:
        return cut(*request)
    except Exception as error:  # noqa: BLE001 - a template is a program, and may fail as any can
        raise UnusableTemplateError(_describe(error)) from None


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return " ".join(str(error).split())[:_REASON_CHARS] or type(error).__name__


def cut(template: str, system: str, variables: dict[str, Any]) -> list[str]:
    """What `template` puts before the first user message, after it, and between a reply and the next user message.

    Without limits: for a template that is trusted. Raises whatever the template makes go wrong.
    """
    compiled = _environment().from_string(template)
    conversation = [("user", _USER), ("assistant", _REPLY), ("user", _NEXT)]
    first = _render(compiled, system, conversation[:1], variables)
    whole = _render(compiled, system, conversation, variables)
    if len(first) + len(whole) > _LONGEST:
        raise ValueError(f"it writes more than {_LONGEST} characters around the messages")
    before_user, after_user = first.split(_USER)
    return [before_user, after_user, whole.split(_REPLY)[1].split(_NEXT)[0]]


def _render(template: Any, system: str, conversation: list[tuple[str, str]], variables: dict[str, Any]) -> str:
    messages = [{"role": role, "content": content} for role, content in conversation]
    with contextlib.suppress(TemplateError):
        text = str(template.render(messages=[{"role": "system", "content": system}, *messages], **variables))
        if system.strip() in text:
            return text
    # Some templates refuse a system message, or leave it out; its text then opens the first user message.
    messages[0]["content"] = f"{system}\n\n{_USER}"
    return str(template.render(messages=messages, **variables))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, indent=options.get("indent")
    )
    environment.globals["raise_exception"] = _raise
    # A date in the prompt would make every day's prompt another one, and the cached prefixes worthless.
    environment.globals["strftime_now"] = dt.datetime(2025, 1, 1, tzinfo=dt.UTC).strftime
    return environment


def _raise(message: str) -> None:
    raise TemplateError(message)


def _limit(cpu_s: float) -> None:
    """Let the system end this process where it takes more than the limits."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - not on Windows

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s)))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def main() -> None:
    """The child: cut the template that stdin holds, and print what comes of it as one JSON document."""
    request = json.loads(sys.stdin.buffer.read())
    _limit(float(sys.argv[1]))
    try:
        answer: dict[str, Any] = {"texts": _cut_here(request)}
    except UnusableTemplateError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
