"""What happens while a question is answered, on stderr: the whole trace, or one line that changes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.text import Text

from sqale_edge.cli.text import printable
from sqale_edge.episode import (
    Event,
    Finished,
    Noted,
    Prefilled,
    Thought,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    Usage,
    Wrote,
)

if TYPE_CHECKING:
    from rich.console import Console

    from sqale_edge.episode import Episode

_TOOL_CHARS = 60


class Trace:
    """Prints every event, live."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_in_text = False

    def show(self, event: Event) -> None:
        """Print `event`."""
        if isinstance(event, (Thought, Wrote)):
            self._put(event.text, "dim italic" if isinstance(event, Thought) else "", end="")
            self._is_in_text = True
            return
        if self._is_in_text:
            self._put("")
            self._is_in_text = False
        if isinstance(event, Noted):
            self._put(f"note: {event.text}", "yellow")
        elif isinstance(event, Prefilled):
            n_new = event.n_prompt - event.n_cached
            self._put(
                f"── turn {event.turn}: {n_new} new tokens evaluated, {event.n_cached} cached, {event.seconds:.2f} s",
                "bold",
            )
        elif isinstance(event, ToolCalled):
            self._put(
                f"→ {event.call.name or 'unreadable call'} {json.dumps(event.call.args, ensure_ascii=False)}", "cyan"
            )
        elif isinstance(event, ToolReturned):
            self._put(
                event.result.output + ("  (answered from memory)" if event.is_repeat else ""),
                "red" if event.result.is_error else "green",
            )
        elif isinstance(event, TurnEnded):
            self._put(describe_usage(event.usage), "dim")
        elif isinstance(event, Finished):
            self._put(describe_end(event.episode), "bold")

    def _put(self, text: str, style: str = "", end: str = "\n") -> None:
        self._console.print(Text(printable(text)), style=style, end=end, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put away."""


class Progress:
    """One line that says what is going on; only where stderr is a terminal."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("loading the model")
        if sys.stderr.isatty():  # also where FORCE_COLOR makes rich take a file for one
            self._status.start()

    def show(self, event: Event) -> None:
        """Say what `event` means for someone who waits."""
        if isinstance(event, Prefilled):
            self.say(f"turn {event.turn}: thinking")
        elif isinstance(event, ToolCalled):
            args = json.dumps(event.call.args, ensure_ascii=False)
            self.say(f"turn {event.turn}: {event.call.name} {args[:_TOOL_CHARS]}")
        elif isinstance(event, Finished):
            self._status.stop()

    def say(self, text: str) -> None:
        """Let the line be `text`."""
        self._status.update(Text(printable(text)))

    def close(self) -> None:
        """Take the line away."""
        self._status.stop()


def describe_usage(usage: Usage) -> str:
    """Token counts as one line."""
    extras = [f"{usage.n_forced} forced"] * bool(usage.n_forced) + [f"{usage.n_refused} refused by the grammar"] * bool(
        usage.n_refused
    )
    return ", ".join(
        [f"tokens: {usage.n_evaluated} evaluated", f"{usage.n_cached} cached", f"{usage.n_decoded} decoded", *extras]
    )


def describe_end(episode: Episode) -> str:
    """How the episode ended and what it cost, as one line."""
    timing = episode.timing
    return (
        f"── {episode.ended_by} after {len(episode.turns)} turns; {describe_usage(episode.usage)}; "
        f"first token {timing.ttft_s:.1f} s, prefill {timing.prefill_s:.1f} s, decode {timing.decode_s:.1f} s, "
        f"tools {timing.tool_s:.1f} s, total {timing.total_s:.1f} s; {episode.prompt} prompt, seed {episode.seed}"
    )
