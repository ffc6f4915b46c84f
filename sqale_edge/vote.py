"""One question answered several times, with other seeds, and the answer that most of the answers agree on.

What agrees is the result, not the wording: two candidates vote for the same thing if their rows are the same by the
strict rule of `results`, in any order. A candidate without an answer has no vote.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sqale_edge.episode import Episode, Event, Finished
from sqale_edge.results import same_rows
from sqale_edge.settings import require

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sqale_edge.agent import Agent
    from sqale_edge.request import Request

_N_SEEDS = 1 << 64


@dataclasses.dataclass(frozen=True)
class Vote:
    """How it ended.

    Attributes:
        n_votes: Candidates that were asked for.
        candidates: Their episodes by their numbers, in the order in which they ended; without those that were still at
            work when the outcome was decided.
        groups: Numbers of the candidates that agree, the winners first; the best of each group is its first.
    """

    n_votes: int
    candidates: dict[int, Episode]
    groups: tuple[tuple[int, ...], ...]

    @property
    def episode(self) -> Episode:
        """The answer: the best episode of the largest group; without any answer the first episode that ended.

        A vote that was cancelled has none.
        """
        for episode in self.candidates.values():
            if episode.ended_by == "cancelled":
                return episode
        return self.candidates[self.groups[0][0]] if self.groups else next(iter(self.candidates.values()))

    def to_dict(self) -> dict[str, Any]:
        """The vote as plain JSON types, the episodes in short."""
        places = {number: place for place, group in enumerate(self.groups) for number in group}
        return {
            "n_votes": self.n_votes,
            "n_agree": len(self.groups[0]) if self.groups else 0,
            "candidates": [
                {
                    "seed": episode.seed,
                    "sql": episode.sql,
                    "ended_by": episode.ended_by,
                    "n_errors": count_errors(episode),
                    "group": places.get(number),
                    "usage": episode.usage.to_dict(),
                }
                for number, episode in sorted(self.candidates.items())
            ],
        }


def stream_vote(agent: Agent, request: Request, n_votes: int) -> Generator[tuple[int, Event] | Vote, None, None]:
    """Yield what happens in each candidate's episode, with its number, and the `Vote` last.

    Candidate k, counted from 0, has the request's seed plus k. All are decoded in one batch, from one evaluation of the
    prompt, and the rest is given up as soon as it cannot change which group wins.

    Raises:
        SettingsError: There are fewer than one vote, or more than the engine has sequences.
        Else what `Agent.stream` raises.
    """
    require(n_votes >= 1, "n_votes", n_votes, "at least 1")
    seeds = [(request.seed + number) % _N_SEEDS for number in range(n_votes)]
    candidates: dict[int, Episode] = {}
    with closing(agent.stream_seeds(request, seeds)) as events:
        for number, event in events:
            yield number, event
            if isinstance(event, Finished):
                candidates[number] = event.episode
                if is_decided(group_candidates(candidates), n_votes - len(candidates)):
                    break
    yield Vote(n_votes, candidates, group_candidates(candidates))


def group_candidates(candidates: dict[int, Episode]) -> tuple[tuple[int, ...], ...]:
    """The numbers of those that agree, the largest group first.

    Where two groups are equally large, and within a group, fewer errors come first, and then the earlier one.
    """
    groups: list[list[int]] = []
    order = sorted(candidates, key=lambda number: (count_errors(candidates[number]), number))
    for number in order:
        episode = candidates[number]
        if episode.sql is None:
            continue
        for group in groups:
            if _agree(candidates[group[0]], episode):
                group.append(number)
                break
        else:
            groups.append([number])
    return tuple(tuple(group) for group in sorted(groups, key=len, reverse=True))  # stable: ties stay in order


def _agree(one: Episode, other: Episode) -> bool:
    return one.truncated == other.truncated and same_rows(one.rows, other.rows)


def is_decided(groups: Sequence[Sequence[int]], n_left: int) -> bool:
    """Whether `n_left` more candidates cannot change which group wins, however they vote."""
    sizes = [len(group) for group in groups] + [0, 0]
    return n_left == 0 or sizes[0] > sizes[1] + n_left


def count_errors(episode: Episode) -> int:
    """Tool calls that failed."""
    return sum(result.is_error for turn in episode.turns for result in turn.results)
