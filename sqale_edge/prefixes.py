"""The part of the first prompt that all questions share: evaluated once, then restored from a snapshot.

Which tokens are shared is found by comparing prompts, and it is looked at again for each question: only where a prompt
begins with exactly these tokens is the snapshot used. A guess that is wrong costs time, nothing else.

The answer is the same with and without a snapshot, to the last bit of every logit, because a prompt is evaluated in the
same two steps either way: what is shared, then the rest. One step would give other sums; see `benchmarks/LOG.md`.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from typing import TYPE_CHECKING

from sqale_edge.engine import Prefill
from sqale_edge.errors import Cancelled, ModelError
from sqale_edge.prefix_files import PrefixFiles, default_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqale_edge.engine import Engine, TokenSequence
    from sqale_edge.protocol import Protocol
    from sqale_edge.settings import PrefixSettings

_log = logging.getLogger(__name__)

# Questions that begin in as many ways as tokenizers tell apart: letters, a digit, quotes, other marks, other scripts, a
# letter that joins the one before it, nothing.
_PROBES = ("How many?", "list", "2024", '"a"', "'a'", "(a)", "#1", "-1", "élan", "日本", "\u0301a", "👍", "")
# A question that begins in yet another way may change the last shared tokens. Those left out are evaluated each time.
_N_MARGIN = 4
# A snapshot of a 2B model is 20 MB and more, however short its log, and restoring it takes as long as 4 tokens do.
_N_LEAST = 64


class Prefixes:
    """First prompts for one engine: their tokens, and how they are evaluated.

    Not for several threads at a time; neither is an engine.
    """

    def __init__(self, engine: Engine, protocol: Protocol, settings: PrefixSettings) -> None:
        self._engine, self._protocol = engine, protocol
        self._is_on = settings.prefix_cache
        folder = default_folder() if self._is_on and settings.prefix_cache_mib else None
        self._files = PrefixFiles(folder, settings.prefix_cache_mib << 20) if folder else None
        self._shared: list[int] | None = None
        self._snapshot: bytes | None = None
        self._is_new = False  # evaluated here, and not in a file

    def tokenize(self, question: str, evidence: str | None) -> list[int]:
        """The prompt that opens an episode."""
        prompt = self._engine.tokenize_pieces(self._protocol.first_prompt(question, evidence))
        bos = self._engine.info.bos
        if bos is not None and prompt[:1] != [bos]:
            prompt.insert(0, bos)
        return prompt

    def append(self, sequence: TokenSequence, prompt: Sequence[int]) -> Prefill:
        """Put the first prompt into `sequence`, or what is missing of it there; as `TokenSequence.append`.

        What came from a snapshot counts as cached.
        """
        start = time.perf_counter()
        shared = self._find_shared()
        if not shared or len(sequence.tokens) or list(prompt[: len(shared)]) != shared:
            return sequence.append(prompt)
        n_cached = len(shared) if self._restore(sequence) else 0
        if not n_cached:
            sequence.append(shared)
            self._keep(sequence)
        sequence.append(prompt[len(shared) :])
        return Prefill(len(prompt) - n_cached, n_cached, time.perf_counter() - start)

    def save(self) -> None:
        """Write a snapshot that is not in a file yet; what goes wrong is only logged."""
        if self._files and self._snapshot and self._is_new:
            self._is_new = False  # tried once: a disk that is full stays so
            self._files.write(self._key(), self._snapshot)

    def _find_shared(self) -> list[int]:
        """The tokens that begin all prompts; empty where there are too few for a snapshot, or no snapshots."""
        if self._shared is None:
            self._shared = [] if self._engine.state_key is None else self._compare_prompts()
            if self._shared and self._files:
                self._snapshot = self._files.read(self._key())
        return self._shared

    def _compare_prompts(self) -> list[int]:
        prompts = [self.tokenize(probe, None) for probe in _PROBES]
        columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
        shared = [column[0] for column in columns][:-_N_MARGIN]
        return shared if len(shared) >= _N_LEAST else []

    def _key(self) -> str:
        """All that the snapshot depends on."""
        return json.dumps([self._engine.state_key, self._shared])

    def _restore(self, sequence: TokenSequence) -> bool:
        if self._snapshot is None:
            return False
        try:
            sequence.load(self._snapshot, self._find_shared())
        except Cancelled:
            raise
        except ModelError as error:
            _log.warning("the prefix snapshot is not used: %s", error)
            self._snapshot = None
            return False
        return True

    def _keep(self, sequence: TokenSequence) -> None:
        if not self._is_on:
            return
        try:
            self._snapshot = sequence.snapshot()
            self._is_new = True
        except Cancelled:
            raise
        except ModelError as error:
            _log.warning("no prefix snapshot could be taken: %s", error)
