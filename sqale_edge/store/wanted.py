"""What a person asks `pull` for: a name of the catalogue, a repository, or one GGUF file of a repository."""

from __future__ import annotations

import dataclasses
import re

from sqale_edge.catalogue import read_catalogue
from sqale_edge.errors import StoreError
from sqale_edge.installed import is_model_name
from sqale_edge.models import DEMO
from sqale_edge.store.quantization import DEFAULT_QUANT

_REPOSITORY = r"(?P<repository>[\w.-]+/[\w.-]+)"
_REVISION = r"(?:@(?P<revision>[\w./-]+))?"
_CHECKPOINT = re.compile(rf"(?:hf:)?{_REPOSITORY}{_REVISION}", re.ASCII)
_FILE = re.compile(rf"hf:{_REPOSITORY}/(?P<file>[^@\\]+\.gguf){_REVISION}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One model on the hub.

    Attributes:
        text: As it was asked for.
        repository: `owner/name`.
        revision: A branch, a tag or a commit; None is the newest.
        file: The GGUF file in it, with its folder; None asks for the checkpoint.
        name: What it is to be called in the store.
    """

    text: str
    repository: str
    revision: str | None
    file: str | None
    name: str


def parse_wanted(text: str, *, name: str | None = None, label: str = DEFAULT_QUANT) -> Wanted:
    """What `text` asks for.

    Args:
        text: One of the three forms.
        name: In the store; None makes a usual one.
        label: Of the file type or recipe; another one than the recommended is part of the usual name.

    Raises:
        StoreError: It is none of the three forms, or `name` cannot be a name.
    """
    if text.lower() == DEMO:
        raise StoreError("the demo model is part of the package", hint="use it with --model demo")
    catalogue = read_catalogue()
    word, _, behind = text.partition("@")
    if word.lower() in catalogue.models:
        model = catalogue.models[word.lower()]
        repository, revision, file, usual = model.repository, behind or None, None, model.name
    else:
        repository, revision, file, usual = _parse_repository(text)
    if label != DEFAULT_QUANT:
        usual = f"{usual}-{label}"  # so that two file types of a model lie side by side
    name = check_name(name) if name else make_name(usual)
    return Wanted(text, repository, revision, file, name)


def _parse_repository(text: str) -> tuple[str, str | None, str | None, str]:
    """Repository, revision, file, and a usual name of the model."""
    catalogue = read_catalogue()
    match = _FILE.fullmatch(text) or _CHECKPOINT.fullmatch(text)
    if match is None or ".." in text:
        raise StoreError(
            f"{text!r} is no model that can be pulled",
            hint=f"give {', '.join(catalogue.models)}, OWNER/REPOSITORY, or hf:OWNER/REPOSITORY/FILE.gguf",
        )
    repository, file = match["repository"], match.groupdict().get("file")
    known = catalogue.find_repository(repository)
    usual = known.name if known else repository.rpartition("/")[2]
    return repository, match["revision"], file, file.rpartition("/")[2].removesuffix(".gguf") if file else usual


def check_name(name: str) -> str:
    """`name` in small letters. Raises StoreError unless a model can have it."""
    if not is_model_name(name) or name.lower() == DEMO:
        raise StoreError(
            f"a model cannot be called {name!r}",
            hint="choose a --name of at most 64 letters, digits, dots, hyphens and underscores",
        )
    return name.lower()


def make_name(text: str) -> str:
    """A name that is like `text`, which may be that of a file."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower().removesuffix(".gguf")).strip("-._")[:64].strip("-._")
    return check_name(name or "model")
