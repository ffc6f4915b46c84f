"""A terminal, as a test reads it: `from terminals import read_terminal`."""

from __future__ import annotations

import os


def read_terminal(master: int) -> str:
    """All that a process writes into its terminal, whose end here is `master`; it is closed."""
    chunks = []
    try:
        while chunk := os.read(master, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(master)
    return b"".join(chunks).decode()
