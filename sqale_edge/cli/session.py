"""A model that is loaded and asked in the background, and that a request to end stops wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqale_edge.agent import Agent
    from sqale_edge.settings import EngineSettings, EpisodeLimits


class Session:
    """Loads agents; `stop` ends the loading, and what they answer.

    `no_prefix_cache` and `tokenizer` are the options of these names.

    Attributes:
        is_stopped: `stop` was called: nothing more is to be started.
    """

    def __init__(
        self,
        model: str,
        settings: EngineSettings,
        limits: EpisodeLimits,
        *,
        no_prefix_cache: bool,
        tokenizer: str | None = None,
    ) -> None:
        self._model, self._settings, self._limits = model, settings, limits
        self._no_prefix_cache, self._tokenizer = no_prefix_cache, tokenizer
        self._agent: Agent | None = None
        self.is_stopped = False

    def load_agent(self) -> Agent:
        """The agent; as for `Agent.load`."""
        from sqale_edge.agent import Agent  # noqa: PLC0415 - keeps --help light
        from sqale_edge.settings import PrefixSettings, RemoteSettings  # noqa: PLC0415

        self._agent = Agent.load(
            self._model,
            settings=self._settings,
            limits=self._limits,
            prefixes=PrefixSettings.from_environment(prefix_cache=False if self._no_prefix_cache else None),
            remote=RemoteSettings.from_environment(tokenizer=self._tokenizer),
            on_progress=lambda _: not self.is_stopped,
        )
        return self._agent

    def stop(self) -> None:
        """From any thread."""
        self.is_stopped = True
        if self._agent:
            self._agent.cancel()
