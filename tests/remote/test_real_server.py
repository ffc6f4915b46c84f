"""A real vLLM server, if one is named: it answers as the stand-in does, and as llama.cpp does.

SQALE_TEST_VLLM is the address of a server of the demo model: `python demo/restore.py sqale_edge/demo.gguf FOLDER`, then
serve FOLDER. Without it nothing here runs.
"""

import http.client
import json
import os
from urllib.parse import urlsplit

import pytest

from sqale_edge import Agent, EngineSettings, RemoteSettings, SamplingSettings
from sqale_edge.cli.demo import QUESTIONS
from sqale_edge.sample_shop import write_sample_shop

ADDRESS = os.environ.get("SQALE_TEST_VLLM", "")
GREEDY = SamplingSettings(temperature=0)
SETTINGS = EngineSettings(n_ctx=4096, threads=1)
pytestmark = pytest.mark.skipif(not ADDRESS, reason="SQALE_TEST_VLLM names no server")
# What a real answer may have besides: nothing of it is read.
BESIDES = {"usage", "system_fingerprint", "service_tier", "prompt_logprobs", "kv_transfer_params", "metrics"}


def ask(url, method, path, body=None):
    """Status, content type and content."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, response.getheader("Content-Type", "").partition(";")[0], response.read().decode()
    connection.close()
    return answer


def shape_of(value):
    """Keys and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items() if key not in BESIDES}
    return [shape_of(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__


def make_body(model, **changes):
    body = {"model": model, "prompt": [70, 71, 72], "max_tokens": 3, "temperature": 0, "top_k": -1, "top_p": 1.0}
    body |= {"seed": 1, "stop_token_ids": [], "ignore_eos": True, "return_token_ids": True, "stream": True}
    return body | changes


def test_the_stand_in_speaks_as_vllm_does(server):
    """Keys, types and statuses of all that is read; and the same tokens."""
    models = [json.loads(ask(url, "GET", "/v1/models")[2])["data"][0] for url in (ADDRESS, server.url)]
    assert shape_of(models[1]).items() <= (shape_of(models[0]) | {"parent": "NoneType"}).items()
    answers = []
    for url, model in zip((ADDRESS, server.url), models, strict=True):
        name = model["id"]
        tokens = ask(url, "POST", "/tokenize", {"model": name, "prompt": "a</think>b", "add_special_tokens": False})
        stream = ask(url, "POST", "/v1/completions", make_body(name))
        events = [line.removeprefix("data: ") for line in stream[2].splitlines() if line]
        assert events.pop() == "[DONE]"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        answers.append(
            {
                "tokenize": (tokens[0], json.loads(tokens[2])["tokens"]),
                "stream": stream[:2],
                "first": {key: shape_of(choices[0][key]) for key in ("text", "token_ids", "finish_reason")},
                "prompt": choices[0]["prompt_token_ids"],
                "tokens": [token for choice in choices for token in choice["token_ids"]],
                "reason": choices[-1]["finish_reason"],
                "missing": ask(url, "POST", "/v1/completions", make_body("no-such-model"))[:2],
                "too long": ask(url, "POST", "/v1/completions", make_body(name, max_tokens=10_000_000))[:2],
            }
        )
    assert answers[0] == answers[1]


def test_the_questions_of_the_demo(tmp_path):
    """Without randomness the episodes are those of llama.cpp: the same calls and rows."""
    shop = tmp_path / "shop.sqlite"
    write_sample_shop(shop)
    remote = RemoteSettings(tokenizer="demo")
    with (
        Agent.load(ADDRESS, settings=SETTINGS, sampling=GREEDY, remote=remote) as there,
        Agent.load("demo", settings=SETTINGS, sampling=GREEDY) as here,
    ):
        for question in QUESTIONS:
            theirs, ours = there.run(question, shop), here.run(question, shop)
            assert (theirs.sql, theirs.rows, theirs.ended_by) == (ours.sql, ours.rows, ours.ended_by)
            assert [turn.calls for turn in theirs.turns] == [turn.calls for turn in ours.turns]
