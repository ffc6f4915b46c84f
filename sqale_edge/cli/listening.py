"""Progress and remarks of work on the store and on bundles, and how a request to end stops it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Console

from sqale_edge.cli.signals import end_requests_handled
from sqale_edge.cli.steps import Steps
from sqale_edge.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.store.steps import Listener


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    """Progress and remarks on stderr; a request to end stops the work at its next step forward."""
    from sqale_edge.store.steps import Listener  # noqa: PLC0415 - keeps --help light

    steps = Steps(Console(stderr=True))
    try:
        with end_requests_handled(steps.end), steps:
            yield Listener(steps.show, lambda sentence: steps.say(f"Note: {sentence}."))
    except KeyboardInterrupt:
        raise Cancelled("the work was cancelled") from None
