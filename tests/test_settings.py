"""Settings are checked when they are made, and read from the environment."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from sqale_edge import EngineSettings, EpisodeLimits, PrefixSettings, SamplingSettings
from sqale_edge.errors import SettingsError

# (settings, field, the values at both ends that are allowed, values that are not)
RANGES = [
    (EngineSettings, "n_ctx", [64, 1 << 20], [63, (1 << 20) + 1, -1, 4096.0, "4096", None, True]),
    (EngineSettings, "n_batch", [1, 8192], [0, 8193]),
    (EngineSettings, "n_sequences", [1, 64], [0, 65]),
    (EngineSettings, "threads", [None, 1, 512], [0, 513, 1.5]),
    (EngineSettings, "threads_batch", [None, 1, 512], [0, 513]),
    (EngineSettings, "gpu_layers", ["auto", "off", 0, 99, 10_000], [-1, "all", "", None, True, 1.5, 10_001, 10**30]),
    (EngineSettings, "use_mmap", [False, True], [0, "yes"]),
    (EngineSettings, "n_draft", [0, 63, None], [-1, 64, 1.5]),
    (EngineSettings, "check_memory", [True, False], [0, 1, None, "yes"]),
    (PrefixSettings, "prefix_cache", [False, True], [1, "no", None]),
    (PrefixSettings, "prefix_cache_mib", [0, 1 << 20], [-1, (1 << 20) + 1, 0.5, True, None]),
    (SamplingSettings, "temperature", [0, 0.0, 10], [-0.1, 10.1, math.nan, math.inf, "0.6", None]),
    (SamplingSettings, "top_k", [0, 1 << 20], [-1, (1 << 20) + 1, 20.0]),
    (SamplingSettings, "top_p", [1e-9, 1], [0, 1.1, math.nan]),
    (EpisodeLimits, "tool_turns", [0, 1000], [-1, 1001, 2.5]),
    (EpisodeLimits, "failed_queries", [1], [0]),
    (EpisodeLimits, "turn_tokens", [513], [0]),
    (EpisodeLimits, "call_tokens", [1, 2047], [0, 2048]),
    (EpisodeLimits, "final_tokens", [1], [0]),
    (EpisodeLimits, "episode_tokens", [1], [0]),
    (EpisodeLimits, "max_rows", [1], [0, 1.0]),
    (EpisodeLimits, "query_timeout_s", [0.001, 1_000_000], [0, -1, math.nan, math.inf, None]),
    (EpisodeLimits, "timeout_s", [None, 0.001, 1_000_000], [0, -1, math.nan, math.inf, "5", 1_000_001]),
]


@pytest.mark.parametrize(("kind", "field", "allowed", "refused"), RANGES)
def test_each_field_has_a_range_and_a_type(kind, field, allowed, refused):
    """The ends are allowed; what lies outside or is of another type is an error that names field, value and range."""
    for value in allowed:
        assert getattr(kind(**{field: value}), field) == value
    for value in refused:
        with pytest.raises(SettingsError, match="must be") as caught:
            kind(**{field: value})
        assert (caught.value.field, repr(caught.value.value)) == (field, repr(value))
        assert f"{field} is {value!r}" in str(caught.value)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("kind", "field", "value", "plain"),
    [
        (EngineSettings, "n_ctx", np.int32(4096), 4096),
        (EngineSettings, "gpu_layers", np.int64(3), 3),
        (EpisodeLimits, "max_rows", np.int64(7), 7),
        (EpisodeLimits, "timeout_s", np.float32(0.5), 0.5),
        (SamplingSettings, "temperature", Fraction(1, 2), 0.5),
    ],
)
def test_other_numbers_become_pythons_own(kind, field, value, plain):
    """C structures and JSON take no others."""
    found = getattr(kind(**{field: value}), field)
    assert (type(found), found) == (type(plain), plain)


@pytest.mark.parametrize("value", [np.float32("nan"), np.float64("inf"), Fraction(10**400), 10**400])
def test_numbers_that_are_none_are_out_of_every_range(value):
    """Whoever's they are."""
    with pytest.raises(SettingsError, match="temperature is"):
        SamplingSettings(temperature=value)


@pytest.mark.parametrize("kind", [EngineSettings, PrefixSettings, SamplingSettings, EpisodeLimits])
def test_every_field_is_in_the_table(kind):
    """A new setting needs a row above."""
    tested = {field for other, field, _, _ in RANGES if other is kind}
    assert tested == {field.name for field in dataclasses.fields(kind)}


def test_settings_are_frozen_and_compared_by_value():
    """They can be shared between threads and used as keys."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineSettings().n_ctx = 1  # type: ignore[misc]
    assert len({EpisodeLimits(), EpisodeLimits(), EpisodeLimits(tool_turns=1)}) == 2


def test_the_defaults_are_those_that_the_models_were_trained_under():
    """The published budgets and sampling settings."""
    limits, sampling = EpisodeLimits(), SamplingSettings()
    assert (limits.tool_turns, limits.failed_queries) == (6, 4)
    assert (limits.turn_tokens, limits.call_tokens, limits.final_tokens) == (2048, 512, 3072)
    assert (limits.episode_tokens, EngineSettings().n_ctx) == (12_288, 16_384)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)


# (settings, field, text in the environment, value)
VARIABLES = [
    (EngineSettings, "n_ctx", "8192", 8192),
    (EngineSettings, "threads", "2", 2),
    (EngineSettings, "gpu_layers", "auto", "auto"),
    (EngineSettings, "gpu_layers", "off", "off"),
    (EngineSettings, "gpu_layers", "12", 12),
    (EngineSettings, "use_mmap", "1", True),
    (EngineSettings, "use_mmap", "No", False),
    (PrefixSettings, "prefix_cache", "0", False),
    (PrefixSettings, "prefix_cache_mib", "256", 256),
    (SamplingSettings, "temperature", "0", 0.0),
    (SamplingSettings, "top_p", "0.5", 0.5),
    (EpisodeLimits, "timeout_s", "2.5", 2.5),
    (EpisodeLimits, "tool_turns", "0", 0),
]


@pytest.mark.parametrize(("kind", "field", "text", "value"), VARIABLES)
def test_the_environment_changes_any_setting(kind, field, text, value):
    """`SQALE_EDGE_` and the field's name in capitals."""
    assert getattr(kind.from_environment({f"SQALE_EDGE_{field.upper()}": text}), field) == value


@pytest.mark.parametrize(
    ("kind", "variable", "text"),
    [
        (EngineSettings, "SQALE_EDGE_N_CTX", "many"),
        (EngineSettings, "SQALE_EDGE_N_CTX", "4096.5"),
        (EngineSettings, "SQALE_EDGE_GPU_LAYERS", "all"),
        (EngineSettings, "SQALE_EDGE_USE_MMAP", "2"),
        (SamplingSettings, "SQALE_EDGE_TOP_P", "half"),
    ],
)
def test_an_unreadable_variable_is_named_with_its_value(kind, variable, text):
    """The error says which variable, what is in it, and what to do."""
    with pytest.raises(SettingsError, match=f"{variable} is '{text}'") as caught:
        kind.from_environment({variable: text})
    assert variable in caught.value.hint


def test_a_variable_out_of_range_is_an_error_too():
    """The environment is checked like an argument."""
    with pytest.raises(SettingsError, match="n_ctx is 5, but must be from 64"):
        EngineSettings.from_environment({"SQALE_EDGE_N_CTX": "5"})


def test_arguments_win_over_the_environment_and_it_over_the_defaults():
    """An argument of None and an empty variable count as not given; a variable that is not used may be nonsense."""
    environment = {"SQALE_EDGE_N_CTX": "8192", "SQALE_EDGE_N_BATCH": "", "SQALE_EDGE_THREADS": "nonsense"}
    settings = EngineSettings.from_environment(environment, n_ctx=4096, threads=3, gpu_layers=None)
    assert settings == EngineSettings(n_ctx=4096, threads=3)
    assert EngineSettings.from_environment(environment, threads=3, n_ctx=None).n_ctx == 8192


def test_the_environment_goes_over_a_models_own_settings():
    """What the environment does not mention stays as the model says."""
    own = SamplingSettings(temperature=0.9, top_k=7)
    changed = own.with_environment({"SQALE_EDGE_TEMPERATURE": "0"})
    assert changed == SamplingSettings(temperature=0.0, top_k=7)
    assert own.with_environment({}) == own


def test_the_process_environment_is_the_default(monkeypatch):
    """Without an argument, `os.environ` is read."""
    monkeypatch.setenv("SQALE_EDGE_MAX_ROWS", "17")
    assert EpisodeLimits.from_environment().max_rows == 17


@pytest.mark.parametrize(
    ("given", "n_guesses"),
    [
        ({}, 8),
        ({"n_sequences": 2}, 0),
        ({"n_sequences": 2, "n_draft": 5}, 5),
        ({"n_draft": 0}, 0),
        ({"n_batch": 9}, 7),
        ({"n_batch": 1, "n_draft": 63}, 0),
    ],
)
def test_guesses_are_for_one_sequence_and_fit_into_a_step(given, n_guesses):
    """8 for a single one, none for several; what is said counts, as far as a step has room for it and two more."""
    assert EngineSettings(**given).n_guesses == n_guesses
