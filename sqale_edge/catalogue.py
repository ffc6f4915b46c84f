"""The models that have a name of their own, and the repositories they come from: `catalogue.toml`."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CatalogueModel:
    """A model that `sqale-edge models pull NAME` knows.

    Attributes:
        name: In the store.
        repository: `owner/name` on the hub.
        about: One line for a person.
    """

    name: str
    repository: str
    about: str


@dataclass(frozen=True)
class Catalogue:
    """All of them by name, and which one to suggest."""

    models: dict[str, CatalogueModel]
    default: str

    def find_repository(self, repository: str) -> CatalogueModel | None:
        """The model of a repository, however its name is written."""
        found = (model for model in self.models.values() if model.repository.lower() == repository.lower())
        return next(found, None)


@functools.cache
def read_catalogue() -> Catalogue:
    """The catalogue of this installation."""
    content = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    models = {name: CatalogueModel(name, **entry) for name, entry in content["models"].items()}
    return Catalogue(models, content["default"])
