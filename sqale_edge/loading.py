"""From a model's name to its engine: llama.cpp in this process, or a vLLM server. Each is imported when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqale_edge.models import find_model, is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sqale_edge.llama import LlamaEngine
    from sqale_edge.remote.engine import RemoteEngine
    from sqale_edge.settings import EngineSettings, RemoteSettings


def load_engine(
    model: str | Path,
    settings: EngineSettings,
    remote: RemoteSettings,
    on_progress: Callable[[float], bool] | None,
) -> tuple[LlamaEngine | RemoteEngine, Sequence[str]]:
    """The engine of `model`, and what a person should know about the model. See `Agent.load`."""
    if is_address(model):
        from sqale_edge.remote.engine import RemoteEngine  # noqa: PLC0415

        connected = RemoteEngine(str(model), settings, remote, on_progress=on_progress)
        return connected, connected.notes
    from sqale_edge.llama import LlamaEngine  # noqa: PLC0415

    file = find_model(model)
    engine = LlamaEngine(file.path, settings, on_progress=on_progress)
    engine.info = file.complete(engine.info)
    return engine, file.notes
