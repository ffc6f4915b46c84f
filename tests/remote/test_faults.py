"""Whatever a server does wrong is one line that says what to do."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
import stand_in_vllm as stand_in

from sqale_edge import Agent, EngineSettings, RemoteSettings, SamplingSettings
from sqale_edge.errors import Cancelled, ModelError, ModelLoadError, ModelNotFoundError, ServerError, SettingsError
from sqale_edge.remote.address import Address
from sqale_edge.remote.engine import RemoteEngine

NONE = frozenset()
GREEDY = SamplingSettings(temperature=0)
COMPLETIONS = "/v1/completions"
FILES = Path("/proc/self/fd")


def begin(engine):
    sequence = engine.new_sequence(0, GREEDY)
    sequence.append([70, 71])
    return sequence.decode(None, 5, NONE)


@pytest.mark.parametrize("fault", [stand_in.close, stand_in.status(503), stand_in.status(429), stand_in.cut_after(0)])
def test_a_request_that_was_not_answered_is_made_again(server, connect, fault):
    """Nothing is lost where the server was busy, or broke off before its first token."""
    engine = connect()
    server.faults[COMPLETIONS] = [fault]
    assert len(list(begin(engine))) == 5
    first, second = server.completions()[1:]
    assert first == second


# Fault at a completion, and a part of the message and of the hint.
FAULTS = [
    ([stand_in.status(503, "loading")] * 3, "answered 503: loading", "wait"),
    ([stand_in.close] * 3, "did not answer", "start the server"),
    ([stand_in.status(500, "CUDA error")], "answered 500 to /v1/completions: CUDA error", "log"),
    ([stand_in.status(400, "bad")], "answered 400 to /v1/completions: bad", "address"),
    ([stand_in.page], "answered with a web page, not with JSON", "address"),
    ([stand_in.no_json], "answered with the text '{\"choices\": ['", "address"),
    ([stand_in.cut_after(2)], "broke off", "log"),
    ([stand_in.ended_early], "ended a completion before it was done", "log"),
    ([stand_in.failed_inside], "failed: EngineCore encountered an issue.", "log"),
    ([stand_in.changed_prompt], "evaluated 3 tokens, which are not the 2", "options"),
    ([stand_in.unknown_token], "token 10000000 is not among", ""),
    ([stand_in.wait(1.0)] * 3, "did not answer for 0.5 s", "SQALE_EDGE_ANSWER_TIMEOUT_S"),
]


@pytest.mark.parametrize(("faults", "message", "hint"), FAULTS, ids=[message for _, message, _ in FAULTS])
def test_a_fault_of_a_completion(server, connect, faults, message, hint):
    """One line, and the sequence can only be closed; the engine answers the next question."""
    engine = connect(answer_timeout_s=0.5 if "0.5" in message else 20.0)
    server.faults[COMPLETIONS] = list(faults)
    tokens = begin(engine)
    with pytest.raises(ModelError) as caught:
        list(tokens)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)
    for sequence in list(engine._open):
        sequence.close()
    if "0.5" not in message:
        assert len(list(begin(engine))) == 5


def test_an_answer_that_has_begun_is_not_asked_for_again(server, connect):
    """The rest of the same draw cannot be had, so there is an error and no second request."""
    engine = connect()
    server.faults[COMPLETIONS] = [stand_in.cut_after(2)]
    with pytest.raises(ServerError):
        list(begin(engine))
    assert len(server.completions()) == 2


# Fault of a page at loading, and a part of the message.
LOADING = [
    ("/v1/models", [stand_in.page], "answered with a web page"),
    ("/v1/models", [stand_in.status(500, "no")], "answered 500"),
    ("/v1/models", [lambda handler: handler.send_json({"detail": "Not Found"}, 404)], "answered 404 to /v1/models"),
    ("/v1/models", [lambda handler: handler.send_json({"data": []})], "lists no model"),
    ("/v1/models", [lambda handler: handler.send_json({"data": [{"id": "llama"}]})], "does not say how long"),
    ("/version", [lambda handler: handler.send_json({}, 404)], "answered 404 to /version"),
    ("/tokenize", [lambda handler: handler.send_json({"tokens": "none"})], "answers /tokenize without tokens"),
    ("/tokenize", [lambda handler: handler.send_json({"tokens": [1, 2]})], "tokenises otherwise than demo: token 0"),
    (COMPLETIONS, [stand_in.status(404, "The model does not exist")], "answered 404 to /v1/completions"),
]


@pytest.mark.parametrize(("path", "faults", "message"), LOADING)
def test_a_fault_at_loading(server, connect, path, faults, message):
    """It is told before any question is asked."""
    server.faults[path] = list(faults)
    with pytest.raises((ServerError, ModelLoadError)) as caught:
        connect()
    assert message in str(caught.value)
    assert caught.value.hint


def test_a_server_that_is_down():
    """A port where nobody listens: what was tried and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerError, match=rf"http://127\.0\.0\.1:{port} cannot be reached: ") as caught:
        Agent.load(f"http://127.0.0.1:{port}")
    assert "start the server" in caught.value.hint


def test_a_host_that_is_none():
    """Not tried again: the name is wrong."""
    with pytest.raises(ServerError, match="cannot be reached"):
        Agent.load("http://no-such-host.invalid:8000")


def test_tls_where_there_is_none(server):
    """https to a server that speaks http."""
    with pytest.raises(ServerError, match="cannot be reached"):
        Agent.load(server.url.replace("http:", "https:"))


def test_an_old_server(server, connect):
    """Without token ids nothing can be exact: the version that has them is named."""
    server.is_old = True
    with pytest.raises(ServerError, match="without its token ids") as caught:
        connect()
    assert "0.10.2" in caught.value.hint


def test_a_context_that_is_too_small(server, connect):
    """Both numbers, and both ways out."""
    server.models[0]["max_model_len"] = 2048
    with pytest.raises(ModelLoadError, match="takes logs of 2048 tokens, and n_ctx is 16384") as caught:
        connect()
    assert "--max-model-len 16384" in caught.value.hint
    assert "SQALE_EDGE_N_CTX=2048" in caught.value.hint
    assert connect(n_ctx=2048).info.n_ctx == 2048


def test_which_of_several_models(server, connect):
    """They are listed, and one can be named."""
    server.models.append(server.models[0] | {"id": "other"})
    with pytest.raises(ModelLoadError, match="serves several models: served-model, other"):
        connect()
    with pytest.raises(ModelLoadError, match="does not serve 'third', but served-model, other"):
        connect(served_model="third")
    assert connect(served_model="other").info.name == "other"


def test_the_key_is_sent_and_never_shown(server, connect):
    """A server that wants a key, and one that is given: only in the header."""
    server.key = "secret-words"
    with pytest.raises(ServerError, match="answered 401: Unauthorized") as caught:
        connect()
    assert "SQALE_EDGE_API_KEY" in caught.value.hint
    engine = connect(api_key="secret-words")
    assert set(server.authorizations[-3:]) == {"Bearer secret-words"}
    assert "secret-words" not in repr(RemoteSettings(api_key="secret-words")) + repr(engine.info)
    with pytest.raises(SettingsError) as caught:
        RemoteSettings(api_key="secret\nwords")
    assert "words" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://", "http://host:port", "http://a:b@host", "http://host/?q=1", "ftp://host", "http://ho st"]
)
def test_no_address(text):
    """What is none is told with an example."""
    with pytest.raises(ServerError) as caught:
        Address.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "shown", "is_here"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", True),
        ("https://host.example/llm/v1", "https://host.example/llm", False),
        ("http://[::1]:8000", "http://[::1]:8000", True),
        ("HTTP://localhost:80", "http://localhost", True),
    ],
)
def test_an_address(text, shown, is_here):
    """`/v1` and the usual ports may be written or not."""
    address = Address.parse(text)
    assert (str(address), address.is_here) == (shown, is_here)


def test_vocabulary_of_another_model(server, connect, qwen_gguf):
    """Files of another model are refused, with both sides."""
    with pytest.raises(ModelLoadError, match="tokenises otherwise than"):
        connect(tokenizer=str(qwen_gguf))


def test_vocabulary_that_is_nowhere(connect):
    """What the server serves is not here, and nothing was named."""
    with pytest.raises(ModelNotFoundError, match="'/nowhere/demo'") as caught:
        connect(tokenizer=None)
    assert "--tokenizer" in caught.value.hint


def test_cancel_while_loading(server):
    """A server that never answers does not hold up a cancel."""
    server.faults["/v1/models"] = [stand_in.wait(2.0)]
    polls = []

    def report(share):
        polls.append(share)
        return len(polls) < 5

    start = time.perf_counter()
    with pytest.raises(Cancelled):
        RemoteEngine(server.url, EngineSettings(), RemoteSettings(tokenizer="demo"), on_progress=report)
    assert time.perf_counter() - start < 1.5


def test_cancel_while_waiting_to_ask_again(server, connect):
    """The pause before another try ends with a cancel."""
    engine = connect()
    server.faults[COMPLETIONS] = [stand_in.status(503)] * 3
    tokens = begin(engine)
    timer = threading.Timer(0.8, engine.cancel)
    timer.start()
    start = time.perf_counter()
    with pytest.raises(Cancelled):
        list(tokens)
    assert time.perf_counter() - start < 2.0
    timer.join()


@pytest.fixture
def silent():
    """The address of a host that answers nobody: its queue is full, so that connecting waits until it gives up."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as held:
        for _ in range(10):
            waiting = held.enter_context(socket.socket())
            waiting.settimeout(0.3)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        else:
            pytest.skip("this system's queues do not fill")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_cancel_while_connecting(connect, silent):
    """A host that does not answer at all holds up neither a cancel nor a close."""
    for end, error, message in (("cancel", Cancelled, "cancelled"), ("close", ModelError, "the engine is closed")):
        engine = connect()
        engine.server.address = Address.parse(silent)
        tokens = begin(engine)
        timer = threading.Timer(0.3, getattr(engine, end))
        timer.start()
        start = time.perf_counter()
        with pytest.raises(error, match=message):
            list(tokens)
        assert time.perf_counter() - start < 1.3
        timer.join()


@pytest.mark.skipif(not FILES.is_dir(), reason="counts open files as Linux shows them")
def test_no_connection_is_left_open(server, connect):
    """After faults, cuts and abandoned answers no file is open that was not before."""
    engine = connect()
    list(begin(engine))
    n_before = count_sockets()
    for fault in (stand_in.cut_after(2), stand_in.page, stand_in.status(500), stand_in.failed_inside):
        for sequence in list(engine._open):
            sequence.close()
        server.faults[COMPLETIONS] = [fault]
        with pytest.raises(ServerError):
            list(begin(engine))
    for _ in range(100):  # the stand-in's own end takes a moment
        if count_sockets() <= n_before:
            break
        time.sleep(0.05)
    assert count_sockets() <= n_before


def count_sockets():
    return sum(file.is_symlink() and str(file.readlink()).startswith("socket:") for file in FILES.iterdir())
