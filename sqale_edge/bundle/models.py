"""Models of the store in a bundle, and models of a bundle in the store."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.bundle.installer.contents import MODELS, InstallError, is_safe_name
from sqale_edge.errors import BundleError, StoreError
from sqale_edge.installed import MANIFEST_NAME, Manifest, StoredFile, is_model_name, read_installed
from sqale_edge.models import DEMO
from sqale_edge.store.care import find_damage, get_installed, remove_model
from sqale_edge.store.hub import Hub
from sqale_edge.store.ready_made import describe_gguf
from sqale_edge.store.steps import Listener, Step, hash_file
from sqale_edge.store.training_texts import PromptChoice, TextSearch
from sqale_edge.store.wanted import make_name
from sqale_edge.store.workplace import Workplace, check_space, open_workplace

if TYPE_CHECKING:
    from sqale_edge.bundle.installer.contents import Contents
    from sqale_edge.installed import InstalledModel


@dataclasses.dataclass(frozen=True)
class PackedModel:
    """A model on its way into a bundle.

    Attributes:
        manifest: As it will lie in the bundle: its files are named without folders, and no path of this machine is in
            it.
        sources: Where each file of the manifest is now, by its name there.
    """

    manifest: Manifest
    sources: dict[str, Path]

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files, the GGUF first."""
        return (self.manifest.file, *self.manifest.files)


def pack_model(text: str, folder: Path, listener: Listener) -> PackedModel:
    """The model `text` stands for: a name in the store, or the path of a GGUF file.

    Args:
        text: As a person gives it.
        folder: A new one, for what has to be written.
        listener: Told meanwhile.

    Raises:
        BundleError: It is the demo model.
        ModelNotFoundError, StoreError, ConversionError, ModelLoadError: There is no such model, or it is damaged.
    """
    if text == DEMO:
        raise BundleError("the demo model is part of every bundle", hint="leave it out")
    if is_model_name(text):
        installed = get_installed(text)
        installed.check_present()
        manifest, base = installed.manifest, installed.folder
    else:
        manifest, base = _describe_file(Path(text), folder, listener), folder / "version"
    # A checkpoint that was kept with --keep-source stays where it is.
    beside = [file for file in manifest.files if "/source/" not in f"/{file.name}"]
    sources: dict[str, Path] = {}
    moved = []
    for file in (manifest.file, *beside):
        name = _make_file_name(file.name, sources)
        sources[name] = base / file.name
        moved.append(dataclasses.replace(file, name=name))
    prompt_source = manifest.prompt_source and _hide_path(manifest.prompt_source)
    manifest = dataclasses.replace(manifest, source=_hide_path(manifest.source), prompt_source=prompt_source)
    manifest = dataclasses.replace(manifest, file=moved[0], files=tuple(moved[1:]))
    return PackedModel(manifest, sources)


def _describe_file(path: Path, folder: Path, listener: Listener) -> Manifest:
    """A GGUF file, verified as `models add` does it."""
    if not path.is_file():
        raise StoreError(
            f"{str(path)!r} is neither a model in the store nor a file", hint="sqale-edge models list shows the names"
        )
    place = Workplace(folder, folder)
    place.version.mkdir(parents=True)
    search = TextSearch(Hub(is_offline=True), PromptChoice(), (path.name,))
    file = hash_file(path, str(path.absolute()), listener)
    try:
        name = make_name(path.name)
        return describe_gguf(place, path, file, listener, name=name, asked=path.name, search=search)
    except StoreError as error:
        error.hint = f"sqale-edge models add {path.name}, and give its name to bundle create"
        raise


def _make_file_name(name: str, taken: dict[str, Path]) -> str:
    """A name without a folder that every system can have, and no other file of the model has."""
    base = re.sub(r"[^A-Za-z0-9._+-]+", "-", re.split(r"[/\\]", name)[-1]).strip("-._") or "file"
    base = base[-100:].lstrip("-._")
    names = (f"{number}-{base}" if number else base for number in range(1000))
    return next(each for each in names if each.lower() not in {*map(str.lower, taken), MANIFEST_NAME})


def _hide_path(text: str) -> str:
    """The text, or only its last part if it is a path on this machine."""
    return re.split(r"[/\\]", text)[-1] if os.path.isabs(text) else text  # noqa: PTH117 - text


def read_manifest(contents: Contents, name: str) -> Manifest:
    """The manifest of a model in a bundle.

    Raises:
        BundleError: It is none that could be put into the store.
    """
    try:
        manifest = Manifest.from_dict(json.loads(contents.read(f"{MODELS}/{name}/{MANIFEST_NAME}")))
        files = (manifest.file, *manifest.files)
        is_right = is_model_name(name) and manifest.name == name and name != DEMO
        is_right = is_right and all(is_safe_name(file.name) and "/" not in file.name for file in files)
        is_right = is_right and all(contents.digests[f"{MODELS}/{name}/{file.name}"] == file.sha256 for file in files)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_right = False
    if not is_right:
        raise BundleError(
            f"the model {name!r} of {str(contents.source.path)!r} has no manifest that this version can read",
            path=contents.source.path,
            hint="have the bundle made again, by this version of sqale-edge",
        )
    return manifest


def place_models(contents: Contents, names: list[str], listener: Listener) -> dict[str, bool]:
    """Put the models of a bundle into the store; whether each is new, by its name.

    Raises:
        StoreError: One cannot be stored, or another model has its name.
        BundleError: The bundle changes meanwhile.
        KeyboardInterrupt: What the listener raised. The models that this call has stored are removed again.
    """
    manifests = [read_manifest(contents, name) for name in names]
    for manifest in manifests:
        _find_present(manifest)  # before anything is written
    placed: dict[str, bool] = {}
    try:
        for manifest in manifests:
            with open_workplace(manifest.name, listener) as place:
                present = _find_present(manifest)
                is_new = present is None or bool(find_damage(present, listener))
                if is_new:
                    _copy(contents, manifest, place, listener)
                    place.place(manifest)
                placed[manifest.name] = is_new
    except KeyboardInterrupt:
        for name in (name for name, is_new in placed.items() if is_new):
            remove_model(name)
        raise
    return placed


def _find_present(manifest: Manifest) -> InstalledModel | None:
    """The model, if the store has it. Raises StoreError if it has another one of that name."""
    try:
        present = read_installed(manifest.name)
    except StoreError:
        return None  # damaged: it is replaced
    if present and present.manifest.file.sha256 != manifest.file.sha256:
        raise StoreError(
            f"there is a model {manifest.name!r} already, from {present.manifest.source!r}",
            hint=f"remove it with sqale-edge models rm {manifest.name}, or do without the models: --no-models",
        )
    return present


def _copy(contents: Contents, manifest: Manifest, place: Workplace, listener: Listener) -> None:
    """The model's files into `version`, compared with their digests on the way."""
    files = (manifest.file, *manifest.files)
    check_space(place.work, {"copy": sum(file.n_bytes for file in files)})
    for file in files:
        name = f"{MODELS}/{manifest.name}/{file.name}"

        def wait(n_done: int, file: StoredFile = file) -> None:
            listener.show(Step("copy", file.name, n_done, max(n_done, file.n_bytes)))

        n_bytes = contents.copy(name, place.version / file.name, wait)
        if n_bytes != file.n_bytes:
            raise InstallError(
                f"{name!r} has {n_bytes:,} bytes, its manifest says {file.n_bytes:,}", hint="have the bundle made again"
            )
