"""`sqale-edge doctor`: what this installation can do, and what a model would need here."""

from __future__ import annotations

import platform
import sqlite3
from typing import TYPE_CHECKING, Any

import click

from sqale_edge._version import __version__
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.models import is_address

if TYPE_CHECKING:
    from sqale_edge.settings import EngineSettings

_MIB = 1 << 20


@click.command()
@click.option(
    "-m",
    "--model",
    envvar="SQALE_EDGE_MODEL",
    show_envvar=True,
    help="A name in the store, a GGUF file, demo, or http://...: say what it is and how much memory it will take.",
)
@click.option("--clear-prefix-cache", is_flag=True, help="Delete the prefix snapshots of all models first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(*, model: str | None, clear_prefix_cache: bool, as_json: bool) -> None:
    """Show the build, this machine, the prefix cache, and the memory that a model needs before it is loaded.

    \b
    Example:
      sqale-edge doctor --model sqale
    """
    report = _describe_machine()
    report["prefix_cache"] = _describe_prefix_cache(is_to_be_cleared=clear_prefix_cache)
    if model is not None and is_address(model):
        report["model"] = _describe_server(model)
    elif model is not None:
        report["model"] = _describe_model(model, report["machine"]["available_memory_bytes"])
    if as_json:
        write_out(dump_json(report, indent=2))
        return
    lines = []
    for section, values in report.items():
        lines.append(section)
        lines += [
            printable(f"  {name.removesuffix('_bytes'):26} {_show(name, value)}") for name, value in values.items()
        ]
    write_out("\n".join(lines))


def _describe_machine() -> dict[str, dict[str, Any]]:
    from sqale_edge.llama import describe_build  # noqa: PLC0415 - keeps --help light
    from sqale_edge.llama.memory import available_memory  # noqa: PLC0415
    from sqale_edge.llama.model import choose_gpu_layers  # noqa: PLC0415
    from sqale_edge.llama.threads import allowed_cpus, choose_threads  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    build = describe_build()
    settings = EngineSettings.from_environment()
    n_threads, n_threads_batch = choose_threads(settings)
    return {
        "build": {
            "sqale_edge": __version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **build,
            "gpu_layers_auto": choose_gpu_layers(EngineSettings(), can_offload=build["can_offload"])[1],
        },
        "machine": {
            "system": platform.platform(),
            "allowed_cpus": allowed_cpus(),
            "threads_decode": n_threads,
            "threads_prefill": n_threads_batch,
            "threads_chosen": _say_who_chose_threads(settings),
            "available_memory_bytes": available_memory(),
        },
    }


def _say_who_chose_threads(settings: EngineSettings) -> str:
    from sqale_edge.llama.threads import tuned_threads  # noqa: PLC0415

    tuned = tuned_threads()
    said = f"by bench --tune, {tuned.measured_on}, {tuned.model}" if tuned else "by the cores"
    if settings.threads:
        said = "by SQALE_EDGE_THREADS"
    return f"{said}; to prefill by SQALE_EDGE_THREADS_BATCH" if settings.threads_batch else said


def _describe_prefix_cache(*, is_to_be_cleared: bool) -> dict[str, Any]:
    from sqale_edge.prefix_files import PrefixFiles, default_folder  # noqa: PLC0415
    from sqale_edge.settings import PrefixSettings  # noqa: PLC0415

    settings = PrefixSettings.from_environment()
    folder = default_folder()
    report: dict[str, Any] = {"is_on": settings.prefix_cache, "folder": None if folder is None else str(folder)}
    files = PrefixFiles(folder, settings.prefix_cache_mib * _MIB) if folder else None
    if files and is_to_be_cleared:
        files.clear()
    n_snapshots, n_bytes = files.measure() if files else (0, 0)
    return report | {
        "snapshots": n_snapshots,
        "size_bytes": n_bytes,
        "limit_bytes": settings.prefix_cache_mib * _MIB,
    }


def _describe_model(name: str, available_bytes: int | None) -> dict[str, Any]:
    from sqale_edge.llama import read_model_info  # noqa: PLC0415
    from sqale_edge.llama.memory import estimate_memory  # noqa: PLC0415
    from sqale_edge.models import find_model  # noqa: PLC0415
    from sqale_edge.protocol import Protocol  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings  # noqa: PLC0415

    model = find_model(name)
    info = model.complete(read_model_info(model.path))
    settings = EngineSettings.from_environment()
    estimate = estimate_memory(info.metadata, model.path.stat().st_size, settings)
    protocol = Protocol(info)
    return {
        "file": str(model.path),
        "name": info.name,
        "architecture": info.metadata.get("general.architecture"),
        **_describe_recipe(info.metadata),
        "vocabulary": info.n_vocab,
        "thinks": protocol.thinks,
        "prompt": protocol.source,
        "notes": [*model.notes, *protocol.notes, *_context_note(settings.n_ctx, info.n_ctx)],
        "n_ctx": settings.n_ctx,
        "weights_bytes": estimate.weights_bytes,
        "kv_cache_bytes": estimate.kv_cache_bytes,
        "recurrent_state_bytes": estimate.recurrent_state_bytes,
        "compute_bytes": estimate.compute_bytes,
        "program_bytes": estimate.program_bytes,
        "total_bytes": estimate.total_bytes,
        "fits": "unknown" if available_bytes is None else estimate.total_bytes <= available_bytes,
    }


def _describe_server(address: str) -> dict[str, Any]:
    """What a server serves, after the checks that loading makes."""
    from sqale_edge.protocol import Protocol  # noqa: PLC0415
    from sqale_edge.remote.engine import RemoteEngine  # noqa: PLC0415
    from sqale_edge.settings import EngineSettings, RemoteSettings  # noqa: PLC0415

    engine = RemoteEngine(address, EngineSettings.from_environment(), RemoteSettings.from_environment())
    engine.close()
    protocol = Protocol(engine.info)
    served = engine.served
    return {
        "server": str(engine.server.address),
        "vllm": served.version,
        "name": served.name,
        "root": served.root,
        "texts_from": engine.source.said,
        "vocabulary": engine.info.n_vocab,
        "thinks": protocol.thinks,
        "prompt": protocol.source,
        "notes": [*engine.notes, *protocol.notes],
        "n_ctx": served.n_ctx,
        "prefix_caching": served.caches_prefixes,
    }


def _describe_recipe(metadata: dict[str, str]) -> dict[str, str]:
    """How the file was quantized, where it says so."""
    recipe, digest = metadata.get("sqale.recipe.name"), metadata.get("sqale.recipe.sha256")
    matrix = metadata.get("sqale.imatrix.sha256") or metadata.get("quantize.imatrix.file")
    named = {"recipe": f"{recipe} ({digest})"} if recipe else {}
    return named | ({"imatrix": matrix} if matrix else {})


def _context_note(n_ctx: int, n_ctx_trained: int) -> list[str]:
    if n_ctx <= n_ctx_trained or not n_ctx_trained:  # 0 where the file does not say
        return []
    return [f"the model was trained for {n_ctx_trained} tokens: set SQALE_EDGE_N_CTX to at most that"]


def _show(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / _MIB:,.0f} MiB"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ("; " if name == "notes" else ", ").join(value) or "none"
    return "unknown" if value is None else str(value)
