"""Several generators that ask for tokens, driven together: what they ask for at one time is decoded in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from sqale_edge.engine import Decoding
from sqale_edge.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from sqale_edge.engine import Engine

T = TypeVar("T")


def drive(
    lanes: Iterable[Generator[T | Decoding, int | None, None]], engine: Engine, n_lanes: int = 1
) -> Generator[tuple[int, T], None, None]:
    """Run at most `n_lanes` of `lanes` at a time, drawing a token for each that yields a `Decoding`.

    Yields what they yield besides, with the number of the lane, counted from 0. When one ends the next takes its place.
    A failed step is raised inside each lane that took part in it. What a lane raises is raised here, and ends them all.
    """
    waiting = enumerate(lanes)
    running: list[_Lane[T]] = []
    try:
        while True:
            while len(running) < n_lanes and (entry := next(waiting, None)) is not None:
                running.append(_Lane(*entry))
                yield from running[-1].advance()
                running = [lane for lane in running if lane.decoding]
            if not running:
                return
            tokens: list[int | None] = [None] * len(running)
            failure: ModelError | None = None
            try:
                tokens[:] = engine.decode_batch([lane.decoding for lane in running if lane.decoding])
            except ModelError as error:
                failure = error
            for lane, token in zip(running, tokens, strict=True):
                yield from lane.advance(token, failure)
            running = [lane for lane in running if lane.decoding]
    finally:
        for lane in running:
            lane.generator.close()


class _Lane(Generic[T]):
    """One of the generators.

    Attributes:
        decoding: What it asks a token for; None once it has ended.
    """

    def __init__(self, number: int, generator: Generator[T | Decoding, int | None, None]) -> None:
        self.number = number
        self.generator = generator
        self.decoding: Decoding | None = None

    def advance(self, token: int | None = None, failure: ModelError | None = None) -> Iterator[tuple[int, T]]:
        """Run it up to where it asks for the next token, or to its end."""
        self.decoding = None
        while True:
            try:
                step = self.generator.throw(failure) if failure else self.generator.send(token)
            except StopIteration:
                return
            token = failure = None
            if isinstance(step, Decoding):
                self.decoding = step
                return
            yield self.number, step
