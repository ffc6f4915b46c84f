"""A stand-in for a vLLM server, on this machine: a real model behind the answers that vLLM gives, with faults where a
test wants them. `from stand_in_vllm import StandInVllm`

Source of the shapes: the answers of vLLM 0.32.0 to the same requests. `tests/remote/test_real_server.py` compares the
two where a real server is named.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time

from sqale_edge import EngineSettings, SamplingSettings
from sqale_edge.llama import LlamaEngine

MODEL = "served-model"
PAGE = b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"


class StandInVllm:
    """A server at `url`, while it is used as a context manager.

    Args:
        gguf: The model that answers.
        root: What it says it was loaded from.

    Attributes:
        models: The entries of `/v1/models`.
        requests: What was asked for: method, path, body.
        authorizations: What was sent to prove who asks.
        faults: By path, what to do instead of answering, for one request after the other: functions of the handler.
        key: Asked for, if it is set.
        n_given_up: Answers whose reader left before their last token.
        pause_s: Waited before each token.
        prefix_caching: What `/metrics` says; None says nothing.
        is_old: Leave token ids out, as older versions do.
    """

    def __init__(self, gguf, root, *, n_ctx=16_384):
        self._engine = LlamaEngine(gguf, EngineSettings(n_ctx=n_ctx, n_sequences=8, threads=1))
        self._lock = threading.Lock()
        self.n_ctx = n_ctx
        self.models = [{"id": MODEL, "object": "model", "root": str(root), "parent": None, "max_model_len": n_ctx}]
        self.requests = []
        self.authorizations = []
        self.faults = {}
        self.key = None
        self.n_given_up = 0
        self.pause_s = 0.0
        self.prefix_caching = True
        self.is_old = False
        self.version = "0.32.0"

    def __enter__(self):
        stand_in = self

        class Handler(_Handler):
            server_state = stand_in

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # waited for: a request that goes on after a test would be a leak
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._engine.close()

    def completions(self):
        """The bodies of the requests for completions."""
        return [body for _, path, body in self.requests if path == "/v1/completions"]

    def tokenize(self, text):
        with self._lock:
            return self._engine.tokenize(text, trusted=True)

    def draw(self, body):
        """The tokens of a completion, with the text of each."""
        sampling = SamplingSettings(temperature=body["temperature"], top_k=max(0, body["top_k"]), top_p=body["top_p"])
        with self._lock:
            sequence = self._engine.new_sequence(body["seed"], sampling)
        try:
            with self._lock:
                sequence.append(body["prompt"])
                decoding = sequence.start(None, body["max_tokens"], frozenset(body["stop_token_ids"]))
            while not decoding.is_done:
                time.sleep(self.pause_s)
                with self._lock:
                    (token,) = self._engine.decode_batch([decoding])
                    text = self._engine.detokenize([token]).decode("utf-8", "replace")
                reason = None if not decoding.is_done else "stop" if token in decoding.stop else "length"
                yield token, text, reason
        finally:
            with self._lock:
                sequence.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: StandInVllm

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer("GET", None)

    def do_POST(self):
        self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, method, body):
        state = self.server_state
        state.requests.append((method, self.path, body))
        state.authorizations.append(self.headers.get("Authorization"))
        waiting = state.faults.get(self.path)
        with contextlib.suppress(ConnectionError):
            if waiting and (fault := waiting.pop(0)):
                fault(self)
            elif state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
                self.send_json({"error": "Unauthorized"}, 401)
            else:
                answer = {
                    "/v1/models": lambda: self.send_json({"object": "list", "data": state.models}),
                    "/version": lambda: self.send_json({"version": state.version}),
                    "/metrics": self._send_metrics,
                    "/tokenize": lambda: self._send_tokens(body),
                    "/v1/completions": lambda: self._send_completion(body),
                }.get(self.path, lambda: self.send_json({"detail": "Not Found"}, 404))
                answer()

    def send_body(self, content, kind, status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def send_json(self, value, status=200):
        self.send_body(json.dumps(value).encode(), "application/json", status)

    def send_error_of_vllm(self, message, kind, status):
        self.send_json({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)

    def _send_metrics(self):
        said = self.server_state.prefix_caching
        line = "" if said is None else f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{said}"}} 1.0\n'
        self.send_body(f"# TYPE vllm:cache_config_info gauge\n{line}".encode(), "text/plain; charset=utf-8")

    def _send_tokens(self, body):
        tokens = self.server_state.tokenize(body["prompt"])
        self.send_json({"count": len(tokens), "max_model_len": self.server_state.n_ctx, "tokens": tokens})

    def _send_completion(self, body):
        state = self.server_state
        if body["model"] not in [model["id"] for model in state.models]:
            self.send_error_of_vllm(f"The model `{body['model']}` does not exist.", "NotFoundError", 404)
            return
        if len(body["prompt"]) + body["max_tokens"] > state.n_ctx:
            message = f"This model's maximum context length is {state.n_ctx} tokens."
            self.send_error_of_vllm(message, "BadRequestError", 400)
            return
        self.start_stream()
        prompt = body["prompt"]
        try:
            for token, text, reason in state.draw(body):
                self.send_event(self.make_chunk([token], text, reason, prompt))
                prompt = None
        except ConnectionError:
            state.n_given_up += 1
            raise
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def start_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()

    def make_chunk(self, tokens, text, reason=None, prompt=None):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if not self.server_state.is_old:
            choice |= {"prompt_token_ids": prompt, "token_ids": tokens}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": [choice]}

    def send_event(self, value):
        self.send_chunk(f"data: {json.dumps(value)}\n\n".encode())

    def send_chunk(self, content):
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()


# Faults.


def status(code, message="busy"):
    """An error as vLLM words it."""
    return lambda handler: handler.send_error_of_vllm(message, "InternalServerError", code)


def page(handler):
    """A web page."""
    handler.send_body(PAGE, "text/html")


def no_json(handler):
    """JSON that is none."""
    handler.send_body(b'{"choices": [', "application/json")


def close(handler):
    """No answer at all."""
    handler.close_connection = True


def cut_after(n_tokens):
    """A stream that breaks off after so many tokens."""

    def cut(handler):
        handler.start_stream()
        for token in range(n_tokens):
            handler.send_event(handler.make_chunk([token + 70], "x"))
        handler.close_connection = True

    return cut


def ended_early(handler):
    """A stream that says it is done after one token, without a reason."""
    handler.start_stream()
    handler.send_event(handler.make_chunk([70], "x"))
    handler.send_chunk(b"data: [DONE]\n\n")
    handler.send_chunk(b"")


def failed_inside(handler):
    """An error in the middle of a stream, as vLLM writes one."""
    handler.start_stream()
    handler.send_event(handler.make_chunk([70], "x"))
    handler.send_event({"error": {"message": "EngineCore encountered an issue.", "type": "Error", "code": 500}})
    handler.send_chunk(b"data: [DONE]\n\n")
    handler.send_chunk(b"")


def changed_prompt(handler):
    """The tokens of a server that put one before the prompt."""
    handler.start_stream()
    handler.send_event(handler.make_chunk([70], "x", prompt=[1, 2, 3]))


def unknown_token(handler):
    """A token that the vocabulary does not have."""
    handler.start_stream()
    handler.send_event(handler.make_chunk([10_000_000], "x"))


def wait(seconds):
    """An answer that does not come in time."""

    def sleep(handler):
        time.sleep(seconds)
        handler.close_connection = True

    return sleep
