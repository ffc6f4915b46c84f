"""Batches of lessons, made in a process of their own, ahead of the training.

Lessons of about the same length share a batch, so little is padded. The generator's seed is new in every run, so
nothing repeats when the training is resumed.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import queue
import random
from typing import TYPE_CHECKING, Self

import numpy as np
from episodes import make_lessons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from episodes import Lesson
    from words import Split

_POOL = 384  # lessons that are sorted by length at a time
_STEP = 32  # rows are padded to a multiple of it
_N_AHEAD = 48


class Batch:
    """Some lessons as arrays (B, T), padded at the end: `tokens` int64, `is_learned` bool, `kinds` int8."""

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        width = -(-max(len(lesson.tokens) for lesson in lessons) // _STEP) * _STEP
        self.tokens = np.zeros((len(lessons), width), np.int64)
        self.is_learned = np.zeros((len(lessons), width), bool)
        self.kinds = np.zeros((len(lessons), width), np.int8)
        for row, lesson in enumerate(lessons):
            n = len(lesson.tokens)
            self.tokens[row, :n] = lesson.tokens
            self.is_learned[row, :n] = lesson.is_learned
            self.kinds[row, :n] = lesson.kinds
        self.n_tokens = sum(len(lesson.tokens) for lesson in lessons)
        self.names = [lesson.kind for lesson in lessons]


def split_batches(lessons: Sequence[Lesson], size: int) -> list[Batch]:
    """Batches of at most `size` tokens, padding counted, of lessons sorted by length."""
    batches: list[Batch] = []
    chosen: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda lesson: len(lesson.tokens)):
        if chosen and (len(chosen) + 1) * (len(lesson.tokens) + _STEP) > size:
            batches.append(Batch(chosen))
            chosen = []
        chosen.append(lesson)
    return [*batches, Batch(chosen)] if chosen else batches


def make_batches(seed: int, split: Split, difficulty: Sequence[float], size: int) -> Iterator[Batch]:
    """Batches without end; `difficulty[0]` may change meanwhile."""
    rng = random.Random(seed)
    n_pools = 0
    while True:
        lessons = make_lessons(seed + n_pools * 1_000_003, split, difficulty[0])
        batches = split_batches([next(lessons) for _ in range(_POOL)], size)
        rng.shuffle(batches)
        yield from batches
        n_pools += 1


class BatchMaker:
    """A process that makes training batches. Use it in a `with` statement."""

    def __init__(self, seed: int, difficulty: float, size: int) -> None:
        context = mp.get_context("spawn")
        self.difficulty = context.Array("d", [difficulty])
        self._queue: mp.Queue[Batch] = context.Queue(_N_AHEAD)
        self._process = context.Process(
            target=_work, args=(seed, self.difficulty, size, self._queue, os.getpid()), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.terminate()

    def take(self) -> Batch:
        """The next batch."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=30)
            if not self._process.is_alive():
                raise RuntimeError("the process that makes the batches has ended")


def _work(seed: int, difficulty: Sequence[float], size: int, batches: mp.Queue[Batch], parent: int) -> None:
    batches.cancel_join_thread()  # what nobody takes any more need not be delivered
    for batch in make_batches(seed, "train", difficulty, size):
        is_taken = False
        while not is_taken:
            if os.getppid() != parent:
                return  # the training was killed
            with contextlib.suppress(queue.Full):
                batches.put(batch, timeout=5)
                is_taken = True
