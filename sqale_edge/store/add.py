"""`add`: a GGUF file or a checkpoint that is on this machine already becomes a model of the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.catalogue import read_catalogue
from sqale_edge.errors import StoreError
from sqale_edge.installed import InstalledModel, read_installed
from sqale_edge.store.conversion import convert_into
from sqale_edge.store.hub import Hub
from sqale_edge.store.other_programs import find_in_other_store
from sqale_edge.store.quantization import Quantization
from sqale_edge.store.ready_made import describe_gguf
from sqale_edge.store.steps import Listener, hash_file
from sqale_edge.store.training_texts import PromptChoice, TextSearch
from sqale_edge.store.wanted import check_name, make_name
from sqale_edge.store.workplace import check_space, open_workplace

if TYPE_CHECKING:
    from sqale_edge.installed import Manifest
    from sqale_edge.store.quantization import Choice
    from sqale_edge.store.workplace import Workplace


def add_model(
    text: str,
    *,
    name: str | None = None,
    is_linked: bool = False,
    quant: str | None = None,
    recipe: str | None = None,
    imatrix: Path | None = None,
    prompt: PromptChoice | None = None,
    is_offline: bool = False,
    listener: Listener | None = None,
) -> InstalledModel:
    """Take a model in.

    Args:
        text: The path of a GGUF file, or of a checkpoint's folder, which is converted; `ollama:NAME`; or
            `lmstudio:PUBLISHER/REPOSITORY`.
        name: What it is to be called; None makes a name out of the file's.
        is_linked: Leave the GGUF file where it is, instead of copying it.
        quant: The file type to convert a checkpoint to; None is the recommended one.
        recipe: The name of a recipe in place of a file type, or a file that ends in `.toml`.
        imatrix: The file of an importance matrix.
        prompt: Where training texts come from, if the file lacks them; None takes them from the hub, if it is one of
            the catalogue's models.
        is_offline: Never connect.
        listener: Told meanwhile.

    Raises:
        StoreError: It is not there, its name is taken, or it cannot be stored.
        ConversionError: It is no model that runs, or that can be converted.
    """
    listener, prompt = listener or Listener(), prompt or PromptChoice()
    quantization = Quantization(quant, recipe, imatrix)
    choice = quantization.choose()
    found = find_in_other_store(text)
    path = found[0] if found else Path(text)
    if not path.exists():
        raise StoreError(
            f"there is nothing at {str(path)!r}",
            hint="give a .gguf file or a checkpoint's folder; what is on the hub is pulled: sqale-edge models pull",
        )
    is_checkpoint = path.is_dir()
    if is_checkpoint and is_linked:
        raise StoreError(f"{str(path)!r} is converted, so there is nothing to link to", hint="leave --link out")
    if quantization.is_given and not is_checkpoint:
        raise choice.refuse_finished(str(path))
    _check_readable(path)
    usual = found[1] if found else path.absolute().name
    name = check_name(name) if name else make_name(usual)
    with open_workplace(name, listener) as place:
        _check_free(name)
        if is_checkpoint:
            manifest = _convert(place, path, listener, name=name, choice=choice, prompt=prompt)
        else:
            hub = Hub(is_offline=is_offline)
            hub.manual_steps = "give its sqale_agent.py with --training-prompt FILE"
            search = TextSearch(hub, prompt, (name, Path(text).name))
            asked = text if found else str(path.absolute())
            manifest = _take_file(place, path, listener, name=name, asked=asked, search=search, is_linked=is_linked)
        place.place(manifest)
    installed = read_installed(name)
    assert installed, "it has just been placed"
    return installed


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            path.open("rb").close()
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error.strerror}", hint="check its permissions") from None


def _check_free(name: str) -> None:
    try:
        present = read_installed(name)
    except StoreError:
        present = None  # damaged: it is replaced
    if present:
        raise StoreError(
            f"there is a model {name!r} already, from {present.manifest.source!r}",
            hint=f"choose another name with --name, or remove it with sqale-edge models rm {name}",
        )


def _convert(
    place: Workplace, path: Path, listener: Listener, *, name: str, choice: Choice, prompt: PromptChoice
) -> Manifest:
    """A checkpoint's folder, which is only read."""
    if prompt.file:
        raise StoreError(
            "a checkpoint's training prompt is read from the folder itself",
            hint=f"put {str(prompt.file)!r} into it as sqale_agent.py",
        )
    known = read_catalogue().models.get(name)
    return convert_into(
        place,
        path,
        listener,
        name=name,
        asked=str(path.absolute()),
        choice=choice,
        repository=known.repository if known else None,
        use_training_prompt=prompt.is_wanted,
    )


def _take_file(
    place: Workplace, path: Path, listener: Listener, *, name: str, asked: str, search: TextSearch, is_linked: bool
) -> Manifest:
    """A GGUF file, copied or left where it is."""
    from sqale_edge.llama.model import check_gguf  # noqa: PLC0415 - not a light import

    check_gguf(path)
    if is_linked:
        path = path.resolve()
        file = hash_file(path, str(path), listener)
    else:
        check_space(place.work, {"copy": path.stat().st_size})
        target = place.version / f"{name}.gguf"
        file = hash_file(path, target.name, listener, copy_to=target)
        path = target
    return describe_gguf(place, path, file, listener, name=name, asked=asked, search=search)
