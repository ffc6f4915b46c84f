"""Text from models and databases, made safe for a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without characters that could steer a terminal; each becomes its escape, newlines and tabs stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
