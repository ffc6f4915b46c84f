"""One HTTP request at a time, its answer read as it comes, and given up from any thread.

Every way in which a server can fail becomes a `ServerError` of one line here, and nowhere else. Each request has a
connection of its own, so giving it up is closing that. Redirects and proxies are not followed: what is sent goes to the
address that was named, and to no other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from typing import TYPE_CHECKING, Any

from sqale_edge._version import __version__
from sqale_edge.errors import Cancelled, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.remote.address import Address

_CONNECT_S = 10.0
_POLL_S = 0.05  # how soon it is seen that connecting is given up
_MOST_BYTES = 1 << 24  # of one answer that is no stream, and of one line of a stream; ids of a long prompt are 100 kB
_MOST_CHARS = 300  # of a server's own words in a message
_START_HINT = "start the server, or check the address; docs/vllm.md has the command"
_SLOW_HINT = "allow more with SQALE_EDGE_ANSWER_TIMEOUT_S, or ask fewer questions at a time"
_OTHER_HINT = "check the address: another program, or a proxy, may be listening there"


class BusyError(ServerError):
    """The request was not begun, or not answered at all: it can be made again."""


class Call:
    """A request that is under way.

    Args:
        address: Whom to ask.
        api_key: Sent as a bearer token; None sends none.
        timeout_s: Longest time between two pieces of the answer.

    Attributes:
        is_closed: `close` was called.
    """

    def __init__(self, address: Address, api_key: str | None, timeout_s: float) -> None:
        self._address, self._api_key, self._timeout_s = address, api_key, timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._is_given_up = False
        self._path = ""
        self.is_closed = False

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Send the request; what is answered is not waited for.

        Raises:
            BusyError: Nobody listens there, or the connection broke.
            ServerError: There is no such host, or no secure connection can be made.
            Cancelled: It was given up.
        """
        self._path = path
        kind = http.client.HTTPSConnection if self._address.is_secure else http.client.HTTPConnection
        connection = kind(self._address.host, self._address.port, timeout=_CONNECT_S)
        headers = {"User-Agent": f"sqale-edge/{__version__}", "Accept": "application/json", "Connection": "close"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        with self._failing("cannot be reached"):
            self._connect(connection)
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, self._address.path + path, data, headers)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        """Connect in a thread of its own: nothing else ends the search for a host, or the wait for one that is silent.

        Given up, the thread is left behind, and closes what it may yet get.
        """
        failures: list[BaseException] = []

        def work() -> None:
            try:
                connection.connect()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                connection.close()
                failures.append(error)
            else:
                self._connection, self._socket = connection, connection.sock
                if self.is_closed:
                    self.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            self._check()
            thread.join(_POLL_S)
        self._check()
        if failures:
            raise failures[0]

    def read_json(self) -> dict[str, Any]:
        """The answer, a JSON object. Raises ServerError, `BusyError` where it may be asked again, or Cancelled."""
        with self._failing("did not answer"):
            response = self._open()
            content = response.read(_MOST_BYTES)
        self.close()
        self._check_status(response, content)
        return self._parse(content, response)

    def read_text(self) -> str | None:
        """The answer as text; None where the server has nothing there."""
        with self._failing("did not answer"):
            response = self._open()
            content = response.read(_MOST_BYTES)
        self.close()
        return content.decode("utf-8", "replace") if response.status == http.client.OK else None

    def read_events(self) -> Iterator[dict[str, Any]]:
        """The JSON objects of an event stream, as they come, up to its end.

        Raises:
            BusyError: There was no event yet.
            ServerError: The server failed, or the stream was cut off.
            Cancelled: It was given up.
        """
        with self._failing("did not answer"):
            response = self._open()
            kind = response.getheader("Content-Type", "")
            if response.status != http.client.OK or "text/event-stream" not in kind:
                content = response.read(_MOST_BYTES)
                self._check_status(response, content)
                self._parse(content, response)
                raise self._error("answered without a stream", _OTHER_HINT)
        n_events = 0
        while True:
            with self._failing("broke off", is_begun=n_events > 0):
                line = response.readline(_MOST_BYTES)
            if not line:
                self._check()
                kind_of_error = ServerError if n_events else BusyError
                raise kind_of_error(
                    f"{self._address} broke off after {n_events} pieces of an answer",
                    hint="look at the server's log; ask again",
                )
            name, _, value = line.partition(b":")
            if name.strip() != b"data":
                continue
            if value.strip() == b"[DONE]":
                return
            event = self._parse(value, response)
            if "error" in event:
                raise self._error(f"failed: {_read_error(event)}", "look at the server's log")
            n_events += 1
            yield event

    def _open(self) -> http.client.HTTPResponse:
        assert self._connection is not None, "sent before"
        self._response = self._connection.getresponse()
        return self._response

    def _check_status(self, response: http.client.HTTPResponse, content: bytes) -> None:
        status = response.status
        if status == http.client.OK:
            return
        said = _describe_body(content, response)
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise self._error(f"answered {status}: {said}", "put the server's key into SQALE_EDGE_API_KEY")
        if status in (http.client.TOO_MANY_REQUESTS, 502, 503, 504):
            raise BusyError(f"{self._address} answered {status}: {said}", hint="wait until the server is ready")
        if status == http.client.NOT_FOUND:
            raise self._error(f"answered {status} to {self._path}: {said}", f"a vLLM server has it; {_OTHER_HINT}")
        hint = "look at the server's log" if status >= http.client.INTERNAL_SERVER_ERROR else _OTHER_HINT
        raise self._error(f"answered {status} to {self._path}: {said}", hint)

    def _parse(self, content: bytes, response: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._error(f"answered with {_describe_body(content, response)}, not with JSON", _OTHER_HINT)
        return value

    @contextlib.contextmanager
    def _failing(self, what: str, *, is_begun: bool = False) -> Iterator[None]:
        """Whatever goes wrong with the connection in the block, as one of our errors."""
        try:
            yield
        except TimeoutError:
            self._check()
            self.close()
            if self._socket is None:
                raise self._error(f"cannot be reached: nothing came back for {_CONNECT_S:g} s", _START_HINT) from None
            raise self._error(f"did not answer for {self._timeout_s:g} s", _SLOW_HINT) from None
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # The last two are what http.client raises when its socket is closed under it.
            self._check()
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            is_final = is_begun or isinstance(error, (socket.gaierror, UnicodeError)) or _is_about_security(error)
            raise (ServerError if is_final else BusyError)(
                f"{self._address} {what}: {reason}", hint=_START_HINT
            ) from None
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        if self._is_given_up:
            self.close()
            raise Cancelled("the sequence was cancelled")

    def _error(self, what: str, hint: str) -> ServerError:
        return ServerError(f"{self._address} {what}", hint=hint)

    def give_up(self) -> None:
        """Let whoever waits for it raise Cancelled; the server sees the connection close. From any thread."""
        self._is_given_up = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection: a server that still writes an answer stops."""
        self.is_closed = True
        for held in (self._response, self._connection):
            if held is not None:
                with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):  # a handler interrupts
                    held.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()


def _is_about_security(error: Exception) -> bool:
    """Whether it is of TLS: another try would fail as well."""
    return type(error).__module__ == "ssl"


def _read_error(document: dict[str, Any]) -> str:
    """The server's own words, in one line. Source: ErrorResponse in vLLM's OpenAI protocol, in its older form too."""
    error = document.get("error", document)
    said = error.get("message", error) if isinstance(error, dict) else error
    return _shorten(said if isinstance(said, str) else json.dumps(said))


def _describe_body(content: bytes, response: http.client.HTTPResponse) -> str:
    text = content.decode("utf-8", "replace").strip()
    kind = response.getheader("Content-Type", "")
    if "html" in kind or re.match(r"<(!doctype|html)", text, re.IGNORECASE):
        return "a web page"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return _read_error(value)
    return f"the text {_shorten(text)!r}" if text else "nothing"


def _shorten(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST_CHARS else f"{line[:_MOST_CHARS]}..."
