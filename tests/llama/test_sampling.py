"""Drawing tokens.

The reference's order, exact randomness, and a grammar that can neither be broken nor break the process.
"""

from __future__ import annotations

import collections
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqale_edge import SamplingSettings
from sqale_edge.errors import DecodeError, GrammarError
from sqale_edge.grammar import tool_call_grammar
from sqale_edge.llama import sampling
from sqale_edge.tools import TOOLS

N_DRAWS = 4000


def plain_truncate(logits: list[float], settings: SamplingSettings) -> dict[int, float]:
    """The definition, one candidate at a time: temperature, then top-k, then top-p."""
    if settings.temperature == 0:
        return {max(range(len(logits)), key=lambda i: (logits[i], -i)): 1.0}
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: settings.top_k or None]
    weights = [np.exp((logits[i] - logits[order[0]]) / settings.temperature) for i in order]
    kept: dict[int, float] = {}
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and mass >= settings.top_p:
            break
        kept[token] = weight / sum(weights)
        mass += kept[token]
    total = sum(kept.values())
    return {token: share / total for token, share in kept.items()}


@settings(deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60),
    temperature=st.sampled_from([0.0, 0.3, 0.6, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 20, 100]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
)
def test_truncation_equals_its_definition(logits, temperature, top_k, top_p):
    """The vectorised truncation keeps the candidates, order and probabilities of the plain one."""
    chosen = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    ids, probabilities = sampling.truncate(np.array(logits, np.float32), chosen)
    expected = plain_truncate(logits, chosen)
    positive = {int(i): p for i, p in zip(ids, probabilities, strict=True) if p > 0}
    # Where the kept mass reaches top_p to the last bit, one rounding decides whether a candidate of no weight follows.
    assert list(positive)[: len(expected)] == list(expected)[: len(positive)]
    for token in positive.keys() | expected.keys():
        assert positive.get(token, 0) == pytest.approx(expected.get(token, 0), rel=1e-9, abs=1e-9)


def test_draws_follow_the_distribution():
    """Over many positions the drawn shares are the stated probabilities."""
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -9.0], np.float32)
    chosen = SamplingSettings(temperature=0.8, top_k=5, top_p=0.98)
    counts = collections.Counter(sampling.sample(logits, chosen, 11, position)[0] for position in range(N_DRAWS))
    expected = plain_truncate(logits.tolist(), chosen)
    assert set(counts) == set(expected)
    for token, share in expected.items():
        assert counts[token] / N_DRAWS == pytest.approx(share, abs=4 * (share * (1 - share) / N_DRAWS) ** 0.5)


def test_randomness_depends_on_seed_position_and_token_alone():
    """The same three give the same noise, any others another one, and it is distributed as Gumbel noise."""
    ids = np.arange(500)
    noise = {
        (seed, position): sampling.gumbel_noise(seed, position, ids)
        for seed in (0, 1, 2**64 - 1)
        for position in range(20)
    }
    assert len(np.unique(np.concatenate(list(noise.values())))) == 500 * len(noise)
    assert (sampling.gumbel_noise(0, 3, np.array([7, 5])) == noise[0, 3][[7, 5]]).all()
    everything = np.sort(np.concatenate(list(noise.values())))
    distance = np.abs(np.exp(-np.exp(-everything)) - np.arange(len(everything)) / len(everything)).max()
    assert distance < 1.63 / len(everything) ** 0.5  # Kolmogorov-Smirnov, 1%


def test_equal_noise_makes_draws_robust():
    """A last-bit difference in the logits changes almost no draw, also where it changes the order of the candidates."""
    logits = np.random.default_rng(0).normal(0, 0.5, 300).astype(np.float32)
    nearly = logits + np.random.default_rng(1).normal(0, 1e-6, 300).astype(np.float32)
    chosen = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0)
    same = [sampling.sample(logits, chosen, 4, i)[0] == sampling.sample(nearly, chosen, 4, i)[0] for i in range(500)]
    assert sum(same) >= 499


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(bad):
    """A damaged model is found out instead of answering nonsense."""
    with pytest.raises(DecodeError, match="not finite"):
        sampling.truncate(np.array([0.0, bad, 1.0], np.float32), SamplingSettings())


def tokens_of(engine, *literals: str) -> list[int]:
    found = [engine.tokenize(literal, trusted=True) for literal in literals]
    assert all(len(tokens) == 1 for tokens in found)
    return [tokens[0] for tokens in found]


def logits_for(engine, weights: dict[int, float]) -> np.ndarray:
    logits = np.full(engine.info.n_vocab, -30.0, np.float32)
    for token, logit in weights.items():
        logits[token] = logit
    return logits


def test_under_a_grammar_the_truncated_candidates_are_filtered_and_renormalised(engine):
    """Truncate first, keep what the grammar allows, renormalise.

    The shares are those of the allowed candidates alone.
    """
    a, b, c, d = tokens_of(engine, "a", "b", "c", "d")
    logits = logits_for(engine, {a: 2.0, b: 1.5, c: 1.0, d: 0.5})
    chosen = SamplingSettings(temperature=1.0, top_k=3, top_p=1.0)
    grammar = engine.compile_grammar("root ::= [bcd]")
    counts: collections.Counter[int] = collections.Counter()
    for position in range(N_DRAWS):
        token, was_masked = sampling.sample(logits, chosen, 5, position, grammar.start())
        assert not was_masked
        counts[token] += 1
    share = np.exp(1.5) / (np.exp(1.5) + np.exp(1.0))  # a is refused, d was cut by top-k before the grammar
    assert set(counts) == {b, c}
    assert counts[b] / N_DRAWS == pytest.approx(share, abs=4 * (share * (1 - share) / N_DRAWS) ** 0.5)


def test_only_if_no_candidate_survives_the_whole_vocabulary_is_masked(engine):
    """The likeliest allowed token of the vocabulary is found, and the masking is reported."""
    a, b, d = tokens_of(engine, "a", "b", "d")
    logits = logits_for(engine, {a: 2.0, b: 1.0, d: 0.0})
    chosen = SamplingSettings(temperature=0, top_k=2)
    assert sampling.sample(logits, chosen, 0, 0, engine.compile_grammar("root ::= [d-z]").start()) == (d, True)
    assert sampling.sample(logits, chosen, 0, 0, engine.compile_grammar("root ::= [b-z]").start()) == (b, False)


def test_a_grammar_that_allows_nothing_is_an_error(engine):
    """No token of the vocabulary can follow: an error, not an endless loop."""
    logits = logits_for(engine, {1: 1.0})
    with pytest.raises(DecodeError, match="allows no token"):
        sampling.sample(logits, SamplingSettings(), 0, 0, engine.compile_grammar(r'root ::= "\x00"').start())


def test_control_tokens_never_pass_a_grammar(engine):
    """A JSON string may contain any character, but no control or added token, whatever its literal looks like."""
    state = engine.compile_grammar('root ::= "\\"" [^"]* "\\""').start()
    quote, *markup = tokens_of(engine, '"', "<|im_start|>", "</think>", "<think>", "<tool_call>", "<|im_end|>")
    state.accept(quote)
    assert not state.allows(np.array(markup)).any()


@pytest.mark.parametrize(
    "gbnf",
    ["root ::= (", "", "rule ::= [a]", 'root ::= "a" missing', "root ::= root", "root ::= [a", "# nothing", "\0"],
)
def test_invalid_grammars_raise(engine, gbnf):
    """A grammar that llama.cpp does not take is a GrammarError when it is compiled, never a crash when it is used."""
    with pytest.raises(GrammarError):
        engine.compile_grammar(gbnf)


def test_a_thousand_random_token_streams_stay_inside_the_grammar(engine):
    """Whatever the logits favour, broken UTF-8 included, valid calls come out and the process lives."""
    grammar = engine.compile_grammar(tool_call_grammar(TOOLS))
    chooser = np.random.default_rng(0)
    chosen = SamplingSettings(temperature=1.5, top_k=64, top_p=1.0)
    n_complete = 0
    for stream in range(1000):
        state, tokens = grammar.start(), []
        logits = chooser.normal(0, 4, engine.info.n_vocab).astype(np.float32)
        logits[list(engine.info.end_tokens)] += 8
        logits[engine.tokenize('"}', trusted=True)] += 6
        for position in range(random.Random(stream).randrange(1, 40)):
            token, _ = sampling.sample(np.roll(logits, position), chosen, stream, position, state)
            if token in engine.info.end_tokens:
                n_complete += 1
                text = engine.detokenize(tokens).decode()
                decoder, start = json.JSONDecoder(), 0
                while text[start:].strip():
                    start += len(text[start:]) - len(text[start:].lstrip())
                    call, start = decoder.raw_decode(text, start)
                    assert call["tool"] in {tool.name for tool in TOOLS}
                break
            tokens.append(token)
    assert n_complete > 0
