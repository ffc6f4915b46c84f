"""What a model's name stands for: the demo model that is part of the package, or the path of a GGUF file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sqale_edge.errors import ModelNotFoundError

DEMO = "demo"
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ModelFile:
    """A model's file.

    Attributes:
        path: Of a GGUF file, which may be missing unless the model is the package's own.
        notes: What a person should know before relying on its answers.
    """

    path: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoCard:
    """What was measured of the demo model. Source: `demo/card.py`, which writes `demo.json`.

    Attributes:
        sha256: Digest of the model file.
        n_questions: How many questions about databases that it had never seen it was asked.
        n_right: How many of them it answered right.
    """

    sha256: str
    n_questions: int
    n_right: int

    @property
    def label(self) -> str:
        """One sentence, to be shown wherever the demo model answers."""
        return (
            f"this is the demo model: tiny, right in {self.n_right} of {self.n_questions} questions of the few kinds "
            "that it knows, and there to show how things work, not for real questions"
        )


def find_model(name: str | Path) -> ModelFile:
    """The model that `name` stands for: the text `demo`, or the path of a file, which is not looked at.

    Raises:
        ModelNotFoundError: The demo model is missing from this installation.
    """
    if name != DEMO:
        return ModelFile(Path(name))
    path = _FOLDER / "demo.gguf"
    if not path.exists():
        raise ModelNotFoundError(
            f"the demo model is missing: there is no {str(path)!r}", hint="install sqale-edge again, from its wheel"
        )
    return ModelFile(path, (read_demo_card().label,))


def read_demo_card() -> DemoCard:
    """The card of the demo model."""
    card = json.loads((_FOLDER / "demo.json").read_text(encoding="utf-8"))
    held_out = card["held_out"]["BF16"]
    return DemoCard(card["sha256"], held_out["n"], held_out["n_right"])
