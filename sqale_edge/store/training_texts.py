"""The texts that a ready-made GGUF was trained with, for those that come without them.

They are read out of the `sqale_agent.py` of the original repository, or of a file that is given, without running it.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import TYPE_CHECKING

from sqale_edge.catalogue import read_catalogue
from sqale_edge.errors import ConversionError, StoreError
from sqale_edge.protocol import SYSTEM_KEY, USER_KEY
from sqale_edge.store.download import Downloads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sqale_edge.store.hub import Hub
    from sqale_edge.store.steps import Listener
    from sqale_edge.store.workplace import Workplace

SOURCE_NAME = "sqale_agent.py"
_ORIGIN_KEY = re.compile(r"sqale\.source\.repository|general\.(source|base_model\.\d+)\.(repo_url|url|name)")


@dataclasses.dataclass(frozen=True)
class PromptChoice:
    """Where the training texts are to come from.

    Attributes:
        file: The file that was given, if one was.
        is_wanted: False does without them.
    """

    file: Path | None = None
    is_wanted: bool = True


@dataclasses.dataclass(frozen=True)
class TextSearch:
    """Where to look for the texts that a GGUF lacks.

    Attributes:
        hub: Asked only for a known model, and for what a repository's card names as its base.
        choice: What the person said.
        hints: Names that may tell what the file was made of.
        base_models: Repositories that it was made of, as its card says.
    """

    hub: Hub
    choice: PromptChoice
    hints: tuple[str, ...]
    base_models: tuple[str, ...] = ()

    def find(self, metadata: dict[str, str], place: Workplace, listener: Listener) -> tuple[dict[str, str], str | None]:
        """The texts that a file with this metadata lacks, and where they are from; their source goes into `place`.

        Raises:
            StoreError: The file is of a known model, and its texts cannot be had; or those of the person's file not.
        """
        if self.choice.file:
            return read_texts(self.choice.file, place.version), str(self.choice.file)
        if _has_texts(metadata):
            return {}, "the file itself"
        if not self.choice.is_wanted:
            return {}, None
        known = find_origin(metadata, (*self.hints, *self.base_models))
        for repository in [known] if known else self.base_models:
            listener.note(f"asking {self.hub.endpoint} for the training prompt of {repository}")
            try:
                texts, source = self._fetch(repository, place, listener)
            except StoreError as error:
                if known:
                    raise self._fail(known, error) from error
                listener.note(f"{error}; going on without it")
                continue
            if texts:
                return texts, source
            if known:
                raise self._fail(known, StoreError(f"there is no {SOURCE_NAME}"))
        return {}, None

    def _fetch(self, repository: str, place: Workplace, listener: Listener) -> tuple[dict[str, str], str]:
        """The texts in the repository's own file; none where it has no such file."""
        listing = self.hub.list_files(repository, None)
        if SOURCE_NAME not in listing.files:
            return {}, ""
        folder = place.version / "prompt"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        list(Downloads(self.hub, listing, folder, listener).fetch([listing.files[SOURCE_NAME]]))
        texts = read_texts(folder / SOURCE_NAME, place.version)
        shutil.rmtree(folder)
        return texts, f"{SOURCE_NAME} of {listing.repository}@{listing.commit}"

    def _fail(self, repository: str, why: StoreError) -> StoreError:
        return StoreError(
            f"the training prompt of {repository}, which this file was made of, cannot be had: {why}",
            hint=(
                f"download {self.hub.endpoint}/{repository}/resolve/main/{SOURCE_NAME} and give it with "
                "--training-prompt FILE; or do without it with --no-training-prompt, for worse answers"
            ),
        )


def _has_texts(metadata: dict[str, str]) -> bool:
    """Whether a GGUF brings its instructions and its user message."""
    return SYSTEM_KEY in metadata and USER_KEY in metadata


def find_origin(metadata: dict[str, str], names: Iterable[str]) -> str | None:
    """The repository of the catalogue that a GGUF was made of, if it was trained for these tools.

    Told by its metadata, by the name of its file or of its repository, or by what its card calls its base.
    """
    values = [value for key, value in metadata.items() if _ORIGIN_KEY.fullmatch(key) or key == "general.name"]
    said = [value.lower() for value in (*values, *names)]
    for model in read_catalogue().models.values():
        short = model.repository.rpartition("/")[2].lower()
        if model.repository.startswith("trl-lab/") and any(short in text for text in said):
            return model.repository
    return None


def read_texts(path: Path, folder: Path) -> dict[str, str]:
    """The texts in the file `path`, of which a copy is left in `folder` as `sqale_agent.py`.

    Raises:
        StoreError: It cannot be read, or has neither instructions nor a user message.
    """
    from sqale_edge.convert.training_prompt import read_training_prompt  # noqa: PLC0415 - not a light import

    copy_source(path, folder)
    try:
        found = read_training_prompt(folder)
    except ConversionError as error:
        raise StoreError(
            f"the training prompt in {str(path)!r} cannot be read: {error}",
            hint="give another file with --training-prompt, or do without it with --no-training-prompt",
        ) from error
    if {SYSTEM_KEY, USER_KEY} & set(found.missing):
        names = ", ".join(key.removeprefix("sqale.prompt.") for key in found.missing)
        raise StoreError(
            f"{str(path)!r} does not hold the training prompt: not found: {names}",
            hint="give the sqale_agent.py of the model's own repository with --training-prompt",
        )
    return found.texts


def copy_source(path: Path, folder: Path) -> None:
    """Copy the file `path` to `sqale_agent.py` in `folder`. Raises StoreError if it cannot be read."""
    target = folder / SOURCE_NAME
    if not path.is_file():
        state = "is not a regular file" if path.exists() else "does not exist"
        raise StoreError(f"{str(path)!r} {state}", hint="give a sqale_agent.py with --training-prompt")
    try:
        content = path.open("rb")
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error.strerror}", hint="check its permissions") from None
    with content, target.open("wb") as copy:
        shutil.copyfileobj(content, copy)
