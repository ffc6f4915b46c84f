"""Draw a token in the reference's order: temperature, top-k, top-p, then keep what the grammar allows.

A token is drawn by the Gumbel-max rule: the candidate with the largest log-probability plus noise. The noise is a pure
function of (seed, position in the log, token), so a forked, restored, batched or re-run sequence draws the same tokens,
and a last-bit difference in the logits (batches of another shape sum in another order) changes a token only where two
candidates are all but tied.

Truncating first is what the reference's sampler did while the models were trained; masking the whole vocabulary first
is another distribution, and 80 times slower at 248,320 tokens. Only if no likely candidate is allowed is the vocabulary
masked, and that is counted.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from sqale_edge.engine import Piece
from sqale_edge.errors import DecodeError, GrammarError
from sqale_edge.llama import bindings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqale_edge.llama.vocabulary import Vocabulary
    from sqale_edge.settings import SamplingSettings

Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaGrammar:
    """A compiled GBNF grammar. `start` gives a fresh state for each decode.

    Attributes:
        phrases: Tokens of texts that may well stand in what it accepts; only guesses are made with them.
    """

    def __init__(self, vocabulary: Vocabulary, vocabulary_pointer: Any, gbnf: str, phrases: Iterable[str] = ()) -> None:
        bindings.forget_errors()
        # llama.cpp reads up to a NUL, and takes an empty grammar for none at all.
        if "\0" in gbnf or not gbnf.strip():
            raise GrammarError("the grammar is empty, or contains a NUL character")
        self._vocabulary = vocabulary
        self.phrases = [vocabulary.tokenize([Piece(phrase, trusted=False)]) for phrase in phrases]
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocabulary_pointer, gbnf.encode(), b"root")
        if not self._sampler:
            raise GrammarError(f"llama.cpp does not accept the grammar: {bindings.last_error() or 'no reason given'}")
        weakref.finalize(self, llama_cpp.llama_sampler_free, self._sampler)

    def start(self) -> GrammarState:
        """A state at the grammar's beginning."""
        return GrammarState(self._vocabulary, llama_cpp.llama_sampler_clone(self._sampler))


class GrammarState:
    """How far one decode has come in its grammar."""

    def __init__(self, vocabulary: Vocabulary, sampler: Any) -> None:
        self._vocabulary = vocabulary
        self._sampler = sampler
        weakref.finalize(self, llama_cpp.llama_sampler_free, sampler)

    def allows(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """For each of `tokens`, whether the grammar can take it next.

        Markup it never can: a JSON string must not hold control tokens.
        """
        data = np.zeros(len(tokens), _TOKEN_DATA)
        data["id"] = tokens
        array = llama_cpp.llama_token_data_array(
            data=data.ctypes.data_as(llama_cpp.llama_token_data_p), size=len(data), selected=-1, sorted=False
        )
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        is_text = [token not in self._vocabulary.unsafe for token in tokens.tolist()]
        allowed: npt.NDArray[np.bool_] = np.isfinite(data["logit"]) & np.array(is_text, bool)
        return allowed

    def accept(self, token: int) -> None:
        """Move past `token`, which `allows` has said yes to.

        Another one would end the process. End tokens need no accepting.
        """
        if token not in self._vocabulary.end_tokens:
            llama_cpp.llama_sampler_accept(self._sampler, token)


def gumbel_noise(seed: int, position: int, ids: Ids) -> Floats:
    """Standard Gumbel noise for each of `ids`, which depends on the arguments alone. Shapes: (n,) -> (n,)."""
    state = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(position))
    bits = _mix(state + ids.astype(np.uint64))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: every bit of the input changes half of the output's. Source: Steele, Lea and Flood, OOPSLA 2014."""
    state = state + np.uint64(0x9E37_79B9_7F4A_7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return state ^ (state >> np.uint64(31))


def truncate(logits: Logits, settings: SamplingSettings) -> tuple[Ids, Floats]:
    """The candidates that survive temperature, top-k and top-p, likeliest first, and their probabilities.

    Equal logits are ordered by token id, so that the result depends on nothing else. At temperature 0 the probability
    is all on the first.

    Shapes: logits (V,); both results (n,), n <= top_k.
    """
    if not np.isfinite(logits.max()):
        raise DecodeError(
            "the model's logits are not finite numbers",
            hint="the model file may be damaged: convert or download it again",
        )
    n_kept = min(settings.top_k or len(logits), len(logits))
    kth = np.partition(logits, len(logits) - n_kept)[len(logits) - n_kept]
    ids = np.flatnonzero(logits >= kth)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:n_kept]
    kept = logits[ids].astype(np.float64)
    if settings.temperature == 0:
        return ids, (np.arange(len(ids)) == 0).astype(np.float64)
    weights = np.exp((kept - kept[0]) / settings.temperature)
    probabilities = weights / weights.sum()
    before = np.cumsum(probabilities) - probabilities
    n_nucleus = max(1, int(np.count_nonzero(before < settings.top_p)))
    return ids[:n_nucleus], probabilities[:n_nucleus] / probabilities[:n_nucleus].sum()


def draw(ids: Ids, probabilities: Floats, seed: int, position: int) -> int:
    """One of the candidates, each with its share of the probability."""
    with np.errstate(divide="ignore"):  # a probability of 0 is never drawn
        return int(ids[np.argmax(np.log(probabilities) + gumbel_noise(seed, position, ids))])


def sample(
    logits: Logits, settings: SamplingSettings, seed: int, position: int, grammar: GrammarState | None = None
) -> tuple[int, bool]:
    """The token for `position` of the log, and whether the whole vocabulary had to be masked for it.

    Args:
        logits: Of the position before, (V,) float32.
        settings: Temperature, top-k, top-p.
        seed: From 0 to 2**64 - 1; with `position`, all that the randomness depends on.
        position: Where in the log the token will stand.
        grammar: What it must obey; it is moved past the token.

    Raises:
        DecodeError: The logits are not numbers, or the grammar allows no token of the vocabulary.
    """
    ids, probabilities = truncate(logits, settings)
    token = draw(ids, probabilities, seed, position)
    if grammar is None:
        return token, False
    was_masked = False
    # Nearly always the first draw is allowed, and no other candidate need be tested. Drawing again among the allowed
    # ones, with the same noise, is drawing among them at once.
    if not grammar.allows(np.array([token]))[0]:
        allowed = grammar.allows(ids)
        was_masked = not allowed.any()
        ids, probabilities = (
            _truncate_allowed(logits, settings, grammar) if was_masked else _keep(ids, probabilities, allowed)
        )
        token = draw(ids, probabilities, seed, position)
    grammar.accept(token)
    return token, was_masked


def _keep(ids: Ids, probabilities: Floats, allowed: npt.NDArray[np.bool_]) -> tuple[Ids, Floats]:
    """The allowed candidates.

    Where all the probability was on a refused one, as at temperature 0, the likeliest of them.
    """
    ids, probabilities = ids[allowed], probabilities[allowed]
    return (ids, probabilities) if probabilities.any() else (ids[:1], np.ones(1))


def _truncate_allowed(logits: Logits, settings: SamplingSettings, grammar: GrammarState) -> tuple[Ids, Floats]:
    allowed = grammar.allows(np.arange(len(logits)))
    if not allowed.any():
        raise DecodeError("the grammar allows no token of the vocabulary here")
    return truncate(np.where(allowed, logits, np.float32(-np.inf)), settings)
