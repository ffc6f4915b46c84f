"""What a vLLM server is asked, and what it says about itself.

Source of the shapes: vllm/entrypoints of vLLM 0.32, and the answers of a running server.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from sqale_edge.errors import Cancelled, ModelLoadError, ServerError
from sqale_edge.remote.calls import BusyError, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.remote.address import Address
    from sqale_edge.settings import RemoteSettings

T = TypeVar("T")

_PAUSES_S = (0.5, 2.0)  # before a request is made again
_PREFIX_CACHING = re.compile(r'^vllm:cache_config_info\{.*\benable_prefix_caching="(\w+)"', re.MULTILINE)
_NO_VLLM = "only vLLM's server is supported; see docs/vllm.md"


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """What a server says about its model.

    Attributes:
        name: By which requests ask for it.
        root: Where the server loaded it from: a repository's name, or a path on its machine.
        n_ctx: The longest log, vLLM's `max_model_len`.
        version: vLLM's.
        caches_prefixes: Whether it evaluates only what is new of a log; None where it does not say.
    """

    name: str
    root: str
    n_ctx: int
    version: str
    caches_prefixes: bool | None


class Server:
    """A server, asked by this process. `give_up` stops what is being asked, from any thread."""

    def __init__(self, address: Address, settings: RemoteSettings) -> None:
        self.address = address
        self._settings = settings
        self._calls: set[Call] = set()
        self._lock = threading.RLock()
        self._given_up = threading.Event()

    def make_call(self) -> Call:
        """A call that is to be sent and closed, and that `give_up` reaches. Raises Cancelled after `give_up`."""
        call = Call(self.address, self._settings.api_key, self._settings.answer_timeout_s)
        with self._lock:
            self._calls = {one for one in self._calls if not one.is_closed} | {call}
        if self._given_up.is_set():
            raise Cancelled("the server is not asked any more")
        return call

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that is answered; asked again where that is safe. Raises ServerError or Cancelled."""
        return self.again(lambda: self._read(Call.read_json, method, path, body))

    def read_text(self, path: str) -> str | None:
        """A page of the server as text; None where there is none."""
        return self.again(lambda: self._read(Call.read_text, "GET", path))

    def _read(self, read: Callable[[Call], T], method: str, path: str, body: dict[str, Any] | None = None) -> T:
        call = self.make_call()
        try:
            call.send(method, path, body)
            return read(call)
        finally:
            call.close()

    def again(self, ask: Callable[[], T], given_up: threading.Event | None = None) -> T:
        """`ask`, tried three times in 2.5 s where the server is busy, or was not reached.

        Raises Cancelled where `given_up` is set meanwhile, ServerError after the third time.
        """
        given_up = given_up or self._given_up
        for pause_s in _PAUSES_S:
            try:
                return ask()
            except BusyError:
                if given_up.wait(pause_s):
                    raise Cancelled("the server is not asked any more") from None
        try:
            return ask()
        except BusyError as error:
            raise ServerError(str(error), hint=error.hint) from None

    def give_up(self) -> None:
        """Stop all that is being asked, and ask nothing more."""
        self._given_up.set()
        with self._lock:
            for call in self._calls:
                call.give_up()

    def describe_model(self) -> ServedModel:
        """The model that is served, or the one of several that was chosen.

        Raises:
            ServerError: It cannot be reached, or is no vLLM server.
            ModelLoadError: It serves no such model, or several and none was chosen.
        """
        listed = self.ask("GET", "/v1/models").get("data")
        models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        entry = self._choose(models)
        n_ctx = entry.get("max_model_len")
        if type(n_ctx) is not int:
            raise ServerError(f"{self.address} does not say how long a log of its model may be", hint=_NO_VLLM)
        version = self.ask("GET", "/version").get("version")
        said = _PREFIX_CACHING.search(self.read_text("/metrics") or "")
        return ServedModel(
            name=str(entry["id"]),
            root=str(entry.get("root") or entry["id"]),
            n_ctx=n_ctx,
            version=str(version),
            caches_prefixes=None if said is None else said[1] == "True",
        )

    def _choose(self, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._settings.served_model
        names = [str(model.get("id")) for model in models if model.get("id")]
        if not names:
            raise ServerError(f"{self.address} lists no model", hint=_NO_VLLM)
        if wanted is None and len(names) == 1:
            wanted = names[0]
        if wanted not in names:
            what = f"does not serve {wanted!r}, but" if wanted else "serves several models:"
            raise ModelLoadError(
                f"{self.address} {what} {', '.join(names)}",
                hint="name the one that you mean with SQALE_EDGE_SERVED_MODEL",
            )
        return models[[model.get("id") for model in models].index(wanted)]

    def tokenize(self, model: str, text: str) -> list[int]:
        """The tokens that the server's own tokenizer makes of `text`, in which literals become control tokens."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        tokens = self.ask("POST", "/tokenize", body).get("tokens")
        if not isinstance(tokens, list):
            raise ServerError(f"{self.address} answers /tokenize without tokens", hint=_NO_VLLM)
        return tokens
