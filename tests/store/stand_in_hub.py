"""A stand-in for the hub, on this machine: the answers that the real one gives to the client, with faults where a test
wants them. `from stand_in_hub import StandInHub`

Source of the shapes: the requests that huggingface_hub 2.4 makes, and the answers that it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

SQALE = "trl-lab/qwen3.5-2b-grpo-sqale"
READY = "someone/sqale-GGUF"  # a finished file of somebody else
READY_TEXT = f"hf:{READY}/files/ready-Q4.gguf"
AGENT_SOURCE = 'SYSTEM_PROMPT = "Use the tools."\nUSER_TEMPLATE = "Q: {question}"\n'
LARGE = (".safetensors", ".gguf", "tokenizer.json")  # what the real hub keeps outside git, with a SHA-256


def make_commit(files: dict[str, bytes]) -> str:
    """A commit's name, of the content."""
    text = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())})
    return hashlib.sha1(text.encode()).hexdigest()


class StandInHub:
    """A server at `url`, while it is used as a context manager.

    Attributes:
        repositories: Their files by name.
        cards: What the hub says about their licences and bases.
        renamed: Old names of repositories and their new ones.
        gated: Repositories that need a token.
        requests: What was asked for: method, path, and the range.
        authorizations: What was sent to prove who asks, with the host that it was sent to.
        claimed_bytes: Sizes that the hub claims, by file, instead of the real ones.
        fault: Called with the path of a file and its content before it is sent; may change the answer, see `Answer`.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.cards: dict[str, dict] = {}
        self.renamed: dict[str, str] = {}
        self.gated: set[str] = set()
        self.requests: list[tuple[str, str, str | None]] = []
        self.authorizations: set[tuple[str, str]] = set()
        self.claimed_bytes: dict[str, int] = {}
        self.fault = None
        self.chunk_bytes = 1 << 16
        self.delay_s = 0.0  # after each chunk

    def add(self, repository: str, folder: Path | dict[str, bytes], **card: object) -> str:
        """Put a repository there; its commit."""
        files = folder
        if isinstance(folder, Path):
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.repositories[repository] = files
        self.cards[repository] = card
        return make_commit(files)

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def list_downloads(self) -> list[str]:
        """The names of the files that were asked for, in that order."""
        return [path.rpartition("/")[2] for _, path, _ in self.requests if "/resolve/" in path]


class Answer:
    """How a file is sent.

    Attributes:
        status: Another one than 200 or 206.
        content: The bytes after the range was cut out of them.
        cut_after: The connection is cut after so many of them.
        ignore_range: Send all of it, whatever was asked for.
    """

    def __init__(self, content: bytes) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.content = content
        self.cut_after: int | None = None
        self.ignore_range = False


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that was killed is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandInHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(("GET", path, self.headers.get("Range")))
        if token := self.headers.get("Authorization"):
            self.hub.authorizations.add((self.headers["Host"].partition(":")[0], token))
        with contextlib.suppress(ConnectionError, TimeoutError):
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self._describe(match[1], match[2])
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._redirect_or_send(match[1], match[2], match[3], path)
            elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/([^/]+)/(.+)", path):
                self._send_file(self.hub.repositories[match[1]][match[3]], path)
            else:
                self._fail(404, "")

    def _fault(self, path: str, content: bytes) -> Answer:
        answer = Answer(content)
        if self.hub.fault:
            self.hub.fault(path, answer)
        return answer

    def _refuse(self, repository: str) -> bool:
        if repository in self.hub.renamed:
            new = self.path.replace(repository, self.hub.renamed[repository], 1)
            self._send(307, {"Location": new}, b"")
            return True
        if repository not in self.hub.repositories:
            self._fail(401, "RepoNotFound")  # so does the real one, without a token
            return True
        if repository in self.hub.gated and self.headers.get("Authorization") != "Bearer hf_good":
            self._fail(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            return True
        return False

    def _describe(self, repository: str, revision: str | None) -> None:
        answer = self._fault(self.path, b"")
        if answer.status:
            self._send(answer.status, answer.headers, answer.content)
            return
        if self._refuse(repository):
            return
        files = self.hub.repositories[repository]
        commit = make_commit(files)
        if revision not in (None, "main", commit):
            self._fail(404, "RevisionNotFound")
            return
        siblings = []
        for name, content in files.items():
            n_bytes = self.hub.claimed_bytes.get(name, len(content))
            entry = {"rfilename": name, "size": n_bytes}
            if name.endswith(LARGE):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": n_bytes, "pointerSize": 134}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            siblings.append(entry)
        about = {"id": repository, "sha": commit, "siblings": siblings, "cardData": self.hub.cards[repository]}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _redirect_or_send(self, repository: str, commit: str, name: str, path: str) -> None:
        if self._refuse(repository):
            return
        files = self.hub.repositories[repository]
        if name not in files:
            self._fail(404, "EntryNotFound")
        elif name.endswith(LARGE):  # the real hub sends them from another address
            place = f"http://localhost:{self.server.server_port}/cdn/{repository}/{commit}/{name}"
            self._send(302, {"Location": place, "X-Repo-Commit": commit}, b"")
        else:
            self._send_file(files[name], path)

    def _send_file(self, whole: bytes, path: str) -> None:
        answer = self._fault(path, whole)
        if answer.status:
            self._send(answer.status, answer.headers, answer.content)
            return
        content, status, headers = answer.content, 200, {"Content-Type": "application/octet-stream", **answer.headers}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not answer.ignore_range:
            start = int(wanted[1])
            if start >= len(content):
                self._send(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        self._start(status, headers, len(content))
        if answer.cut_after is not None:
            content = content[: answer.cut_after]
        for position in range(0, len(content), self.hub.chunk_bytes):
            self.wfile.write(content[position : position + self.hub.chunk_bytes])
            time.sleep(self.hub.delay_s)
        if answer.cut_after is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _fail(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code} if code else {}, b'{"error": "no"}')

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self._start(status, headers, len(content))
        self.wfile.write(content)

    def _start(self, status: int, headers: dict[str, str], n_bytes: int) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(n_bytes)} | headers).items():
            self.send_header(name, value)
        self.end_headers()
