"""`pull`: a model comes from the hub into the store, ready to be asked."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING

from sqale_edge.errors import StoreError
from sqale_edge.installed import InstalledModel, read_installed
from sqale_edge.store.checkpoint_files import (
    check_small_files,
    count_peak,
    is_licence,
    list_small_files,
    list_weights,
)
from sqale_edge.store.conversion import convert_into
from sqale_edge.store.download import Downloads
from sqale_edge.store.hub import Hub
from sqale_edge.store.quantization import Quantization
from sqale_edge.store.ready_made import describe_gguf
from sqale_edge.store.steps import Listener
from sqale_edge.store.training_texts import SOURCE_NAME, PromptChoice, TextSearch, copy_source
from sqale_edge.store.wanted import parse_wanted
from sqale_edge.store.workplace import check_space, open_workplace

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.installed import Manifest, StoredFile
    from sqale_edge.store.hub import Listing
    from sqale_edge.store.quantization import Choice
    from sqale_edge.store.wanted import Wanted
    from sqale_edge.store.workplace import Workplace

_PLAN_NAME = "plan.json"  # which commit the downloads are of


@dataclasses.dataclass(frozen=True)
class _Job:
    """Everything that one pull is about."""

    place: Workplace
    hub: Hub
    listing: Listing
    wanted: Wanted
    choice: Choice
    prompt: PromptChoice
    listener: Listener
    keep_source: bool

    @property
    def downloads(self) -> Downloads:
        return Downloads(self.hub, self.listing, self.place.source, self.listener)


def pull_model(
    text: str,
    *,
    name: str | None = None,
    quant: str | None = None,
    recipe: str | None = None,
    imatrix: Path | None = None,
    keep_source: bool = False,
    prompt: PromptChoice | None = None,
    is_offline: bool = False,
    listener: Listener | None = None,
) -> InstalledModel:
    """Download, convert and verify a model, unless the store has it as the hub has it now.

    Args:
        text: A name of the catalogue, `owner/name`, or `hf:owner/name/FILE.gguf`, each with `@revision` if wanted.
        name: What it is to be called; None takes the usual name.
        quant: The file type to convert to; None is the recommended one.
        recipe: The name of a recipe in place of a file type, or a file that ends in `.toml`.
        imatrix: The file of an importance matrix.
        keep_source: Keep the checkpoint beside the model.
        prompt: Where training texts come from; None takes those of the repository.
        is_offline: Never connect: the model is there, or that is an error.
        listener: Told meanwhile.

    Raises:
        StoreError: It cannot be had, or not be stored. What is downloaded is kept for the next try.
        ConversionError: It is nothing that can be converted, or no model that runs; or the recipe or the importance
            matrix cannot be used.
    """
    quantization = Quantization(quant, recipe, imatrix)
    choice = quantization.choose()
    wanted = parse_wanted(text, name=name, label=choice.label)
    if wanted.file and quantization.is_given:
        raise choice.refuse_finished(text)
    listener, prompt = listener or Listener(), prompt or PromptChoice()
    present = _find_present(wanted)
    hub = Hub(is_offline=is_offline)
    hub.manual_steps = describe_manual_steps(wanted, hub.endpoint)
    if present and hub.why_offline:
        listener.note(f"{wanted.name} is in the store; whether there is a newer one was not asked ({hub.why_offline})")
        return present
    listing = hub.list_files(wanted.repository, wanted.revision)
    if listing.repository.lower() != wanted.repository.lower():
        listener.note(f"{wanted.repository} is called {listing.repository} now")
    with open_workplace(wanted.name, listener) as place:
        present = _find_present(wanted)  # another process may have been faster
        if present and not prompt.file and _is_same(present.manifest, wanted, listing, choice):
            if _has_wanted_prompt(present.manifest, prompt, listing):
                return present
            state = "without its" if prompt.is_wanted else "with a"
            listener.note(f"{wanted.name} is in the store {state} training prompt, so it is made anew")
        _forget_other_downloads(place, listing, wanted)
        job = _Job(place, hub, listing, wanted, choice, prompt, listener, keep_source)
        place.place(_pull_gguf(job, wanted.file) if wanted.file else _pull_checkpoint(job))
        shutil.rmtree(place.source, ignore_errors=True)
        (place.work / _PLAN_NAME).unlink()
    installed = read_installed(wanted.name)
    assert installed, "it has just been placed"
    return installed


def describe_manual_steps(wanted: Wanted, endpoint: str) -> str:
    """What to do where there is no connection: which files, from where, what to run then."""
    revision = wanted.revision or "main"
    if wanted.file:
        return (
            f"on a machine with a network download {endpoint}/{wanted.repository}/resolve/{revision}/{wanted.file}, "
            f"bring it here, and run sqale-edge models add FILE --name {wanted.name}; a file without its training "
            f"prompt also needs the {SOURCE_NAME} of the original repository, given with --training-prompt"
        )
    return (
        f"on a machine with a network download from {endpoint}/{wanted.repository}/tree/{revision} into one folder: "
        "config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja, "
        f"{SOURCE_NAME} (those that are there), and every .safetensors file with its index; bring the folder here, "
        f"and run sqale-edge models add FOLDER --name {wanted.name}"
    )


def _find_present(wanted: Wanted) -> InstalledModel | None:
    """The model, if it is there and whole. Raises StoreError if the name belongs to another one."""
    try:
        present = read_installed(wanted.name)
        if present:
            present.check_present()
    except StoreError:  # damaged: it is replaced
        return None
    if present and (present.manifest.repository or "").lower() != wanted.repository.lower():
        where = present.manifest.repository or present.manifest.source
        raise StoreError(
            f"there is a model {wanted.name!r} already, from {where!r}",
            hint=f"choose another name with --name, or remove it with sqale-edge models rm {wanted.name}",
        )
    return present


def _is_same(manifest: Manifest, wanted: Wanted, listing: Listing, choice: Choice) -> bool:
    if manifest.revision != listing.commit:
        return False
    if wanted.file:
        return manifest.origin == "ready-made" and wanted.file in {file.name for file in manifest.source_files}
    return manifest.origin == "converted" and choice.is_of(manifest)


def _has_wanted_prompt(manifest: Manifest, prompt: PromptChoice, listing: Listing) -> bool:
    """Whether the model has its training texts, or none, as it is wanted now."""
    if not prompt.is_wanted:
        return manifest.prompt_source is None or not (manifest.texts or manifest.origin == "converted")
    if manifest.prompt_source is not None:
        return True
    if manifest.origin == "converted":
        return SOURCE_NAME not in listing.files or SOURCE_NAME in {file.name for file in manifest.source_files}
    return bool(manifest.notes)  # they were looked for; see `describe_gguf`


def _forget_other_downloads(place: Workplace, listing: Listing, wanted: Wanted) -> None:
    """Downloads of another commit are of no use."""
    path = place.work / _PLAN_NAME
    plan = {"repository": listing.repository, "commit": listing.commit, "file": wanted.file}
    try:
        is_same = json.loads(path.read_text(encoding="utf-8")) == plan
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        shutil.rmtree(place.source, ignore_errors=True)
        path.write_text(json.dumps(plan), encoding="utf-8")
    place.source.mkdir(exist_ok=True)


def _pull_gguf(job: _Job, name: str) -> Manifest:
    """One ready-made file."""
    place, listing = job.place, job.listing
    if name not in listing.files:
        others = sorted(other for other in listing.files if other.endswith(".gguf"))
        raise StoreError(
            f"there is no {name!r} in {listing.repository}",
            hint=f"it has {', '.join(others[:8])}" if others else "it has no GGUF file at all",
        )
    file = listing.files[name]
    check_space(place.work, {"download": job.downloads.count_left([file])})
    (found,) = job.downloads.fetch([file])
    path = place.version / found.name
    (place.source / found.name).rename(path)
    search = TextSearch(job.hub, job.prompt, (name, listing.repository), listing.base_models)
    try:
        manifest = describe_gguf(
            place,
            path,
            found,
            job.listener,
            name=job.wanted.name,
            asked=job.wanted.text,
            search=search,
            listing=listing,
        )
    except BaseException:
        path.rename(place.source / found.name)  # the next try need not download it again
        raise
    return dataclasses.replace(manifest, source_files=(dataclasses.replace(found, name=name),))


def _pull_checkpoint(job: _Job) -> Manifest:
    """All files of a checkpoint, converted."""
    place, listing, prompt = job.place, job.listing, job.prompt
    has_own_prompt = prompt.is_wanted and not prompt.file
    small = list_small_files(listing, with_prompt=has_own_prompt)
    if not has_own_prompt:
        (place.source / SOURCE_NAME).unlink(missing_ok=True)
    if prompt.file:
        copy_source(prompt.file, place.source)
    fetched = list(job.downloads.fetch(small))
    check_small_files(place.source)
    weights = list_weights(place.source, listing)
    check_space(place.work, count_peak(job.downloads, weights, job.choice.quant))
    fetched += job.downloads.fetch(weights)
    manifest = convert_into(
        place,
        place.source,
        job.listener,
        name=job.wanted.name,
        asked=job.wanted.text,
        choice=job.choice,
        repository=listing.repository,
        revision=listing.commit,
        use_training_prompt=prompt.is_wanted,
        licence=listing.licence,
        source_files=tuple(fetched),
        extra_files=tuple(_keep_beside(place, fetched, keep_source=job.keep_source)),
    )
    if job.keep_source:
        place.source.rename(place.version / "source")
    return manifest


def _keep_beside(place: Workplace, fetched: list[StoredFile], *, keep_source: bool) -> list[StoredFile]:
    """Licences are always kept, the rest of the source where that is wanted; as they will lie in the version."""
    kept = []
    for file in fetched:
        if is_licence(file.name):
            shutil.copyfile(place.source / file.name, place.version / file.name)
            kept.append(file)
        if keep_source:
            kept.append(dataclasses.replace(file, name=f"source/{file.name}"))
    return kept
