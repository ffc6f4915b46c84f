"""Small bundles, made once a run."""

from __future__ import annotations

import pytest
from small_bundles import make_wheels, write_small_bundle


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Of a stand-in for the program, and of pip."""
    return make_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def small(wheels, tmp_path):
    """A bundle of them, a folder that the test may change."""
    write_small_bundle(tmp_path / "small", wheels)
    return tmp_path / "small"
