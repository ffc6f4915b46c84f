"""What a model's name stands for: the demo model of the package, a model in the store, or the path of a GGUF file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.catalogue import read_catalogue
from sqale_edge.errors import ModelNotFoundError
from sqale_edge.installed import is_model_name, list_names, read_installed

if TYPE_CHECKING:
    from sqale_edge.engine import ModelInfo

DEMO = "demo"
_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A model's file, and what belongs to it.

    Attributes:
        path: Of a GGUF file, which may be missing unless the model is the package's own or in the store.
        notes: What a person should know before relying on its answers.
        texts: Metadata that the file lacks: the texts that its model was trained with.
    """

    path: Path
    notes: tuple[str, ...] = ()
    texts: dict[str, str] = dataclasses.field(default_factory=dict)

    def complete(self, info: ModelInfo) -> ModelInfo:
        """What the file says about itself, with what is kept beside it."""
        return dataclasses.replace(info, metadata=info.metadata | self.texts)


@dataclasses.dataclass(frozen=True)
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


def is_address(model: str | Path) -> bool:
    """Whether `model` is the address of a server."""
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


def find_model(name: str | Path) -> ModelFile:
    """The model that `name` stands for.

    Text is a name before it is a path: `demo`, else a model in the store. What is neither, and a `Path`, is the path of
    a file, which is not looked at. Nothing is ever downloaded.

    Raises:
        ModelNotFoundError: The demo model is missing from this installation; or `name` reads like a name and not like
            a path, and there is no such model and no such file; or it is the address of a server.
        StoreError: The model in the store is damaged.
    """
    if name == DEMO:
        return _find_demo()
    if is_address(name):
        raise ModelNotFoundError(
            f"{str(name)!r} is the address of a server, where the model's file is needed",
            hint="give a name in the store or the path of a .gguf file; ask, eval and doctor take an address",
        )
    if not isinstance(name, str) or not is_model_name(name):
        return ModelFile(Path(name))
    installed = read_installed(name)
    if installed:
        installed.check_present()
        return ModelFile(installed.path, installed.manifest.notes, installed.manifest.texts)
    if Path(name).exists():
        return ModelFile(Path(name))
    raise ModelNotFoundError(f"there is no model {name!r} in the store, and no such file", hint=advise_on_models(name))


def name_models() -> str:
    """Which models there are, as a hint says it."""
    return f"there are: {', '.join([*list_names(), DEMO])}"


def advise_on_models(name: str = "") -> str:
    """Which models there are, and how to get this one, or else the catalogue's default."""
    catalogue = read_catalogue()
    wanted = name.lower() if name.lower() in catalogue.models else catalogue.default
    return f"{name_models()}; get {wanted} with sqale-edge models pull {wanted}, or give the path of a .gguf file"


def _find_demo() -> ModelFile:
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
