"""Names of models."""

from pathlib import Path

import pytest

from sqale_edge import models
from sqale_edge.errors import ModelNotFoundError


def test_a_path_stays_a_path(tmp_path):
    """Also one that does not exist, and one to a file called demo."""
    for path in (tmp_path / "x.gguf", "x.gguf", "./demo", tmp_path / "demo"):
        assert models.find_model(path) == models.ModelFile(Path(path))


def test_demo_is_the_packaged_model():
    """It is there, and begins as a GGUF file does."""
    assert models.find_model("demo").path.read_bytes()[:4] == b"GGUF"


def test_a_missing_demo_model_says_what_to_do(monkeypatch, tmp_path):
    """As after an installation that left it out."""
    monkeypatch.setattr(models, "_FOLDER", tmp_path)
    with pytest.raises(ModelNotFoundError, match="demo model is missing") as error:
        models.find_model("demo")
    assert "install" in error.value.hint


def test_the_label_has_the_measured_figures():
    """It says what the model is not for."""
    card = models.read_demo_card()
    assert f"right in {card.n_right} of {card.n_questions} questions" in card.label
    assert card.n_questions >= 300
    assert models.find_model("demo").notes == (card.label,)
