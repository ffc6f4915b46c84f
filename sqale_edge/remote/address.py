"""Where a server is."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Self
from urllib.parse import urlsplit

from sqale_edge.errors import ServerError

_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "give it as http://HOST:PORT, for example http://127.0.0.1:8000"


@dataclasses.dataclass(frozen=True)
class Address:
    """A server's address.

    Attributes:
        path: What comes before `/v1`; empty, or with a slash at its start and none at its end.
    """

    is_secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address that `text` is; `/v1` at its end counts for nothing. Raises ServerError for what is none."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ServerError(f"{text!r} is no address of a server: {error}", hint=_EXAMPLE) from None
        if parts.username is not None or parts.password is not None:
            raise ServerError(
                "the address of the server has a password in it, which would be shown and recorded",
                hint="leave it out; a key goes into SQALE_EDGE_API_KEY",
            )
        is_plain = text.isprintable() and " " not in text
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or not is_plain:
            raise ServerError(f"{text!r} is no address of a server", hint=_EXAMPLE)
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if not path.isascii():
            raise ServerError(f"{text!r} is no address of a server: its path must be ASCII", hint=_EXAMPLE)
        return cls(parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme], path)

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        """As one would write it."""
        scheme = "https" if self.is_secure else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[scheme] else f":{self.port}"
        return f"{scheme}://{host}{port}{self.path}"
