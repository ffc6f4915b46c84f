"""Text from models and databases, made safe for a terminal."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without characters that could steer a terminal; each becomes its escape, newlines and tabs stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def write_out(text: str) -> None:
    """Put `text` on stdout as a line of its own, printable where that is a terminal and unchanged where it is not.

    Not `click.echo`, which takes escape sequences out of what is piped: in CSV or in a path they may be data.
    """
    sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def dump_json(value: Any, indent: int | None = None) -> str:
    r"""JSON that is readable, and harmless in a terminal: `json` leaves the controls from \x7f to \x9f as they are."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return re.sub(r"[\x7f-\x9f]", lambda match: f"\\u{ord(match.group()):04x}", text)
