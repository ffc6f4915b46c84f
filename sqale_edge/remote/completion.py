"""The tokens of one completion, as a server streams them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import Cancelled, ServerError
from sqale_edge.remote.calls import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.remote.calls import Call
    from sqale_edge.remote.server import Server

_PATH = "/v1/completions"
_OLD = "token ids are needed, which vLLM streams since version 0.10.2; see docs/vllm.md"


class Completion:
    """One request of `/v1/completions`.

    Made again, as it was, where the server had sent nothing of it yet: that changes nothing, as it keeps no state that
    an answer depends on. Once there was a token it is not: the rest of the same draw cannot be asked for.

    Args:
        server: Whom to ask.
        body: As `RemoteEngine.make_request` writes it.
    """

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self._server, self._body = server, body
        self._waiting: deque[int] = deque()
        self._call: Call | None = None
        self._events: Iterator[dict[str, Any]] | None = None
        self._lock = threading.RLock()
        self._given_up = threading.Event()
        self._is_begun = self._has_ended = False

    def send(self) -> None:
        """Ask, and wait for no answer. What may be tried again, and a cancel, is left to `next`."""
        with contextlib.suppress(BusyError, Cancelled):
            self._start()

    def _start(self) -> None:
        with self._lock:
            self._check()
            call = self._call = self._server.make_call()
        call.send("POST", _PATH, self._body)
        self._events = call.read_events()

    def next(self) -> int:
        """The next token. Raises ServerError or Cancelled."""
        if not self._waiting:
            if self._is_begun:
                self._read_more()
            else:
                self._server.again(self._read_first, self._given_up)
        return self._waiting.popleft()

    def _read_first(self) -> None:
        if self._events is None:
            self._start()
        try:
            self._read_more()
        except BusyError:
            self.close()
            raise

    def _read_more(self) -> None:
        """Wait for at least one token."""
        assert self._events is not None, "started before"
        while not self._waiting:
            event = None if self._has_ended else next(self._events, None)
            self._check()
            if event is None:
                raise ServerError(
                    f"{self._server.address} ended a completion before it was done",
                    hint="look at the server's log; it may have been shut down",
                )
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices:
            return  # counts of tokens
        choice = choices[0]
        prompt, tokens = choice.get("prompt_token_ids"), choice.get("token_ids")
        if prompt is not None and prompt != self._body["prompt"]:
            raise ServerError(
                f"{self._server.address} evaluated {len(prompt)} tokens, which are not the "
                f"{len(self._body['prompt'])} that were sent",
                hint="start vLLM without options that change prompts",
            )
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            if choice.get("finish_reason") is not None and not choice.get("text"):
                tokens = []
            else:
                raise ServerError(f"{self._server.address} sent text without its token ids", hint=_OLD)
        self._waiting.extend(tokens)
        self._is_begun = self._is_begun or bool(tokens)
        self._has_ended = choice.get("finish_reason") is not None

    def _check(self) -> None:
        if self._given_up.is_set():
            raise Cancelled("the sequence was cancelled")

    def give_up(self) -> None:
        """Let `next` raise Cancelled, at once where it is waiting. From any thread."""
        with self._lock:
            self._given_up.set()
            if self._call is not None:
                self._call.give_up()

    def close(self) -> None:
        """Let go of it: a server that is still writing stops."""
        with self._lock:
            call, self._call, self._events = self._call, None, None
        if call is not None:
            call.close()
