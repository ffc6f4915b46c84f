"""What `sqale-edge models` prints: the list, one model, and the same as JSON."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqale_edge.catalogue import read_catalogue
from sqale_edge.cli.tables import make_table, render_table
from sqale_edge.errors import StoreError
from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.models import DEMO, find_model, read_demo_card
from sqale_edge.store.care import get_installed, list_unfinished

if TYPE_CHECKING:
    from sqale_edge.installed import InstalledModel

_WIDTH = 140
_ORIGINS = {
    "converted": "converted by this program from the checkpoint",
    "ready-made": "a finished file of somebody else, taken as it was",
}


def list_models() -> list[dict[str, Any]]:
    """Every model that is there, every one of the catalogue, and what is unfinished; those that are there first."""
    catalogue = read_catalogue().models
    names = list_names()
    entries = [entry for name in names if (entry := _describe_shortly(name))]
    card = read_demo_card()
    entries.append({"name": DEMO, "state": "part of the package", "source": "sqale-edge", "about": card.label})
    unfinished = {one.name: one.n_bytes for one in list_unfinished() if one.name not in names}
    for name, n_bytes in unfinished.items():
        entries.append({"name": name, "state": "unfinished", "n_bytes": n_bytes, "about": "pull it to go on"})
    for name, model in catalogue.items():
        if name not in names and name not in unfinished:
            entries.append(
                {"name": name, "state": "not here", "source": model.repository, "about": model.about},
            )
    return entries


def _describe_shortly(name: str) -> dict[str, Any] | None:
    """None for a model that was removed since it was listed."""
    try:
        installed = read_installed(name)
        if installed is None:
            return None
        installed.check_present()
    except StoreError as error:
        return {"name": name, "state": "damaged", "about": str(error)}
    manifest = installed.manifest
    known = read_catalogue().find_repository(manifest.repository or "")
    return {
        "name": name,
        "state": "here",
        "quant": manifest.quant,
        "recipe": manifest.recipe,
        "n_bytes": manifest.file.n_bytes,
        "source": manifest.repository or manifest.source,
        "about": known.about if known else "",
    }


def format_list(entries: list[dict[str, Any]]) -> str:
    """The list for a person."""
    table = make_table()
    for column in ("name", "state", "type", "size", "from"):
        table.add_column(column, no_wrap=True, overflow="fold" if column == "from" else "ellipsis")
    table.add_column("about", overflow="fold")
    for entry in entries:
        size = f"{entry['n_bytes'] / 1e9:.2f} GB" if entry.get("n_bytes") else ""
        table.add_row(
            entry["name"],
            entry["state"],
            entry.get("recipe") or entry.get("quant") or "",
            size,
            entry.get("source") or "",
            entry.get("about") or "",
        )
    return f"{render_table(table, _WIDTH)}\nStore: {store_folder()}"


def describe(installed: InstalledModel) -> dict[str, Any]:
    """All about one model: its manifest, and where its file is."""
    return {"path": str(installed.path), **installed.manifest.to_dict()}


def describe_demo() -> dict[str, Any]:
    """The same about the demo model."""
    model, card = find_model(DEMO), read_demo_card()
    return {
        "path": str(model.path),
        "name": DEMO,
        "origin": "part of the package",
        "file": {"name": model.path.name, "n_bytes": model.path.stat().st_size, "sha256": card.sha256},
        "notes": list(model.notes),
    }


def find_demo_damage() -> list[str]:
    """What is wrong with the demo model's file."""
    model, wanted = find_model(DEMO), read_demo_card().sha256
    found = hashlib.sha256(model.path.read_bytes()).hexdigest()
    return [] if found == wanted else [f"{str(model.path)!r} has the SHA-256 {found} instead of {wanted}"]


def format_model(about: dict[str, Any]) -> str:
    """One model for a person."""
    file = about["file"]
    beside = [entry["name"].rpartition("/")[2] for entry in about.get("files", ())]
    revision = f"@{about['revision']}" if about.get("revision") else ""
    texts = about.get("texts") or {}
    lines = {
        "name": about["name"],
        "file": about["path"],
        "size": f"{file['n_bytes'] / 1e9:.3f} GB",
        "SHA-256": file["sha256"],
        "type": about.get("quant") or "",
        "recipe": f"{about['recipe']} (SHA-256 {about['recipe_sha256']})" if about.get("recipe") else "",
        "imatrix": f"SHA-256 {about['imatrix_sha256']}" if about.get("imatrix_sha256") else "",
        "origin": _ORIGINS.get(about["origin"], about["origin"]),
        "from": (about["repository"] + revision) if about.get("repository") else about.get("source", ""),
        "licence": about.get("licence") or "",
        "training prompt": about.get("prompt_source") or ("none" if "prompt_source" in about else ""),
        "kept beside it": ", ".join([*beside, *([f"{len(texts)} texts of the prompt"] if texts else [])]),
        "made with": ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()),
        "date": about.get("made_at", ""),
        "notes": "; ".join(about.get("notes", ())),
    }
    return "\n".join(f"{name:16} {value}" for name, value in lines.items() if value)


def describe_path(name: str) -> dict[str, str]:
    """Where the model's file is. Raises ModelNotFoundError or StoreError if it is not there."""
    if name == DEMO:
        return {"name": name, "path": str(find_model(DEMO).path)}
    installed = get_installed(name)
    installed.check_present()
    return {"name": name.lower(), "path": str(installed.path)}
