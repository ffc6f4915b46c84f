"""What is shown on stderr while one question is answered once, or several times for a vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqale_edge.cli.trace import Progress, Trace
from sqale_edge.episode import Event, Finished, Prefilled

if TYPE_CHECKING:
    from rich.console import Console

    from sqale_edge.vote import Vote


class CandidatesView:
    """A single candidate live; of several, which write at the same time, each as a whole when it has ended."""

    def __init__(self, console: Console, n_votes: int, *, is_traced: bool) -> None:
        self._console, self._n_votes, self._is_traced = console, n_votes, is_traced
        self._progress = Progress(console)
        self._live = Trace(console) if is_traced else self._progress
        self._events: dict[int, list[Event]] = {}
        self._turns = dict.fromkeys(range(n_votes), 1)  # of those that are at work

    def show(self, number: int, event: Event) -> None:
        """Show what happened to candidate `number`, counted from 0; now, or when it has ended."""
        if self._n_votes == 1:
            self._live.show(event)
            return
        events = self._events.setdefault(number, [])
        events.append(event)
        if isinstance(event, Prefilled):
            self._turns[number] = event.turn
            self._progress.say(self._describe_work())
        elif isinstance(event, Finished):
            self._turns.pop(number)
            self._progress.say(self._describe_work())
            if self._is_traced:
                self._console.print(f"══ candidate {number + 1} of {self._n_votes}", style="bold", highlight=False)
                trace = Trace(self._console)
                for one in events:
                    trace.show(one)
            events.clear()

    def _describe_work(self) -> str:
        """How far the candidates are."""
        turns = ", ".join(str(turn) for turn in self._turns.values())
        ended = f"{self._n_votes - len(self._turns)} of {self._n_votes} candidates have ended"
        return f"{ended}, the others are in turn {turns}" if turns else ended

    def close(self) -> None:
        """Take away what is not to stay."""
        self._progress.close()


def describe_vote(vote: Vote) -> str:
    """How the candidates voted, as one line."""
    n_ended, (winners, *others) = len(vote.candidates), vote.groups or ((),)
    n_others, n_without = sum(map(len, others)), n_ended - sum(map(len, vote.groups))
    parts = [f"{len(winners)} of {n_ended} agree"]
    parts += [f"{n_others} gave {len(others)} other answer{'s' * (len(others) > 1)}"] * bool(n_others)
    parts += [f"{n_without} had no answer"] * bool(n_without)
    parts += [f"{vote.n_votes - n_ended} more could not change that"] * (n_ended < vote.n_votes)
    return f"Votes: {', '.join(parts)}."
