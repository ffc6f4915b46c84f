"""Guesses at the next tokens: what the grammar leaves hardly any choice about, and what stood in the log before.

A query that ran is submitted word for word, and names are copied out of results; so an agent's log repeats itself in
long stretches. And most of a tool call is its form. A batch of a few tokens costs nearly as much as these tokens one by
one, one of 16 as much as five: so a guess is long or not made at all, and one out of the log is made only behind a long
enough repetition.

Source of the idea: prompt lookup decoding (A. Saxena, 2023), without a draft model.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_N_KEY = 6  # tokens at the end of the log that must have stood there before
_N_AFTER_A_MISS = 16  # and after a guess that was of little use
_N_SHORTEST = 6  # a shorter guess costs more than it can save
_N_SHORTEST_PHRASE = 3  # one that is nearly always right
_USEFUL_SHARE = 1 / 3


class PromptLookup:
    """Guesses for one log. Tell it the log before each guess; the log only grows."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # the last place behind each run of _N_KEY tokens
        self._n_seen = 0
        self._n_needed = _N_KEY

    def guess(self, log: Sequence[int], n_most: int) -> list[int]:
        """At most `n_most` tokens that may follow `log`; none where nothing speaks for any."""
        for end in range(max(self._n_seen, _N_KEY), len(log)):  # not the log's own end, which would find itself
            self._ends[tuple(log[end - _N_KEY : end])] = end
        self._n_seen = len(log)
        place = self._ends.get(tuple(log[-_N_KEY:]))
        if place is None or not self._is_long_enough(log, place):
            return []
        found = list(log[place : place + n_most])
        return found if len(found) >= _N_SHORTEST else []

    def _is_long_enough(self, log: Sequence[int], place: int) -> bool:
        """Whether the last `_n_needed` tokens stood before `place`, too."""
        n = self._n_needed
        return place >= n and list(log[place - n : place]) == list(log[-n:])

    def learn(self, n_guessed: int, n_right: int) -> None:
        """How many tokens of the last guess were right: after a useless one the next needs a longer repetition."""
        self._n_needed = _N_KEY if n_right >= n_guessed * _USEFUL_SHARE else _N_AFTER_A_MISS


def guess_phrase(written: Sequence[int], phrases: Sequence[Sequence[int]], n_most: int) -> list[int]:
    """At most `n_most` tokens that complete what `written` ends with, as far as all `phrases` with this start agree."""
    for n in range(min(len(written), max(map(len, phrases), default=0)), 0, -1):
        end = list(written[-n:])
        rests = [list(phrase[n:]) for phrase in phrases if list(phrase[:n]) == end]
        if rests:
            agreed = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rests, strict=False))
            found = [tokens[0] for tokens in agreed][:n_most]
            return found if len(found) >= _N_SHORTEST_PHRASE else []
    return []
