"""The hub: what a repository holds, and its files, through the HTTP client of huggingface_hub.

That client brings proxies, certificates, `HF_ENDPOINT`, `HF_HUB_OFFLINE` and the token of `hf auth login` with it. Its
own download function is not used, because that one starts again after a kill, and compares no digests.

What is sent: which files of which repository, this program's version, and the token, if there is one; the client takes
the token off where the hub redirects to another host.
"""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from sqale_edge._version import __version__
from sqale_edge.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_REASON = 160  # characters of what the client says
_TRANSIENT = {408, 500, 502, 503, 504}
_SERVER_HINT = "try again later; what is downloaded is kept"


class InterruptedTransferError(Exception):
    """The connection broke, or the server is overloaded: worth another try."""


@dataclasses.dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes:
        name: With its folders.
        sha256: Of its content, where the hub says so: for all large files.
        git_id: SHA-1 of its content as git counts it, for the others.
    """

    name: str
    n_bytes: int
    sha256: str | None
    git_id: str | None


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit.

    Attributes:
        repository: As it is called now.
        licence: As its card names it.
        base_models: The repositories that its card says it was made of.
    """

    repository: str
    commit: str
    files: dict[str, HubFile]
    licence: str | None
    base_models: tuple[str, ...]


class Hub:
    """A connection, made when it is first needed.

    Args:
        is_offline: Never connect.

    Attributes:
        endpoint: Its address.
        why_offline: The reason never to connect; None if there is none.
        manual_steps: What a person can do instead, for the error where there is no connection.
    """

    def __init__(self, *, is_offline: bool) -> None:
        from huggingface_hub import constants, get_session, get_token  # noqa: PLC0415 - not a light import
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        self.why_offline = (
            "--offline was given" if is_offline else "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else None
        )
        self.manual_steps = "run it where there is a network"
        self._get_session, self._get_token = get_session, get_token
        self._may_send_token = not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
        self._timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        # The client's base of all errors; its module is httpx with one version of huggingface_hub, httpx2 with another.
        self._error: type[Exception] = next(
            base for base in HfHubHTTPError.__bases__ if base.__module__.startswith("httpx")
        )
        self.endpoint = constants.ENDPOINT

    def list_files(self, repository: str, revision: str | None) -> Listing:
        """What is there now, with sizes and digests.

        Raises:
            StoreError: There is no connection, no such repository or revision, or no access to it.
        """
        where = f"/revision/{quote(revision, safe='')}" if revision else ""
        what = f"{repository}@{revision}" if revision else repository
        with self._mapped_errors(what):
            session = self._connect()
            response = session.get(
                f"{self.endpoint}/api/models/{repository}{where}",
                params={"blobs": "true"},
                headers=self._headers(),
                timeout=self._timeout_s,
            )
            self.check_status(response, what)
            return self._read_listing(response, repository)

    def _read_listing(self, response: Any, repository: str) -> Listing:
        try:
            answer = json.loads(response.content)
            files = [_read_file(entry) for entry in answer["siblings"]]
            card = answer.get("cardData") or {}
            bases, licence = card.get("base_model") or [], card.get("license")
            bases = [bases] if isinstance(bases, str) else bases
            listing = Listing(
                str(answer.get("id") or repository),
                str(answer["sha"]),
                {file.name: file for file in files},
                str(licence) if licence else None,
                tuple(base for base in bases if isinstance(base, str)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            self._refuse_page(response, f"the list of files of {repository}")
            raise StoreError(
                f"{self.endpoint} does not answer as a Hugging Face hub does", hint="check HF_ENDPOINT"
            ) from None
        if not re.fullmatch(r"[0-9a-f]{40}", listing.commit) or not re.fullmatch(
            r"[\w.-]+/[\w.-]+", listing.repository, re.ASCII
        ):
            raise StoreError(f"{self.endpoint} does not answer as a Hugging Face hub does", hint="check HF_ENDPOINT")
        return listing

    @contextmanager
    def open_file(self, listing: Listing, file: HubFile, n_there: int) -> Iterator[Any]:
        """The response with the file's content, from byte `n_there` on if the server can, else from the start.

        Raises:
            InterruptedTransferError: As its name says, also inside the block.
            StoreError: The file cannot be had.
        """
        url = f"{self.endpoint}/{listing.repository}/resolve/{listing.commit}/{quote(file.name)}"
        headers = self._headers() | {"Accept-Encoding": "identity"}
        if n_there:
            headers["Range"] = f"bytes={n_there}-"
        try:
            session = self._connect()
            with session.stream("GET", url, headers=headers, timeout=self._timeout_s) as response:
                if response.status_code in _TRANSIENT:
                    raise InterruptedTransferError(f"the server answers {response.status_code}")
                if response.status_code != 416:
                    self.check_status(response, f"{file.name} of {listing.repository}")
                    self._refuse_page(response, file.name)
                yield response
        except self._error as error:
            raise InterruptedTransferError(_say(error)) from error

    def _headers(self) -> dict[str, str]:
        token = self._get_token() if self._may_send_token else None
        return {"user-agent": f"sqale-edge/{__version__}"} | ({"authorization": f"Bearer {token}"} if token else {})

    def _connect(self) -> Any:
        if self.why_offline:
            self._fail_offline(self.why_offline)
        return self._get_session()

    def _fail_offline(self, why: str) -> NoReturn:
        raise StoreError(f"the hub at {self.endpoint} is needed for this, but {why}", hint=self.manual_steps)

    @contextmanager
    def _mapped_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            if any(kind.__name__ in {"ConnectError", "ConnectTimeout", "ProxyError"} for kind in type(error).__mro__):
                self._fail_offline(f"cannot be reached: {_say(error)}")
            raise StoreError(
                f"the connection to {self.endpoint} broke while asking for {what}: {_say(error)}", hint=_SERVER_HINT
            ) from error

    def check_status(self, response: Any, what: str) -> None:
        """Raise StoreError for an answer that is an error."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        if status < 400:
            return
        if status == 429:
            wait = response.headers.get("Retry-After", "").strip()
            asked = f"{wait} seconds" if wait.isdigit() else "a while"
            raise StoreError(
                f"{self.endpoint} has had too many requests and asks to wait (429), at {what}",
                hint=f"run the same command again in {asked}; what is downloaded is kept",
            )
        if status in {401, 403} and code != "RepoNotFound":
            raise StoreError(
                f"{what} is not open to everybody ({status})",
                hint=f"accept its terms on {self.endpoint} if it has any, log in with hf auth login, and try again",
            )
        if code == "RevisionNotFound":
            raise StoreError(f"there is no revision {what}", hint="leave the revision out for the newest")
        if status in {401, 404}:
            raise StoreError(
                f"there is no {what} on {self.endpoint}, or only for those who may see it ({status})",
                hint="check how it is spelled; for a private one log in with hf auth login",
            )
        raise StoreError(f"{self.endpoint} answers {status}, asked for {what}", hint=_SERVER_HINT)

    def _refuse_page(self, response: Any, what: str) -> None:
        """Raise StoreError for a web page, as a login page or a proxy sends it."""
        if response.headers.get("Content-Type", "").lower().startswith("text/html"):
            raise StoreError(
                f"{self.endpoint} sent a web page instead of {what}",
                hint="a login page or a proxy may be in the way: open the address in a browser, or check HF_ENDPOINT",
            )


def _read_file(entry: dict[str, Any]) -> HubFile:
    large = entry.get("lfs") or {}
    sha256, git_id = large.get("sha256"), entry.get("blobId")
    n_bytes = large.get("size", entry.get("size"))
    if not isinstance(n_bytes, int) or n_bytes < 0:
        raise TypeError("a file without a size")
    return HubFile(str(entry["rfilename"]), n_bytes, sha256, None if sha256 else git_id)


def _say(error: Exception) -> str:
    """One line of what the client says."""
    return " ".join(str(error).split())[:_MOST_REASON] or type(error).__name__
