"""The commands that take the address of a server."""

import json


def test_ask(server, shop, run):
    """As with a file: the answer on stdout, the SQL on stderr."""
    choice = ("-m", server.url, "--tokenizer", "demo", "--format", "csv")
    code, out, err = run("ask", shop, "How many customers are there?", *choice)
    assert (code, out.splitlines()[-1]) == (0, "4")
    assert "SQL: SELECT" in err


def test_eval(server, shop, run, tmp_path, monkeypatch):
    """Several questions at a time; the results say which server answered, and are gone on with only there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SQALE_EDGE_TOKENIZER", "demo")
    question = {"db": str(shop), "question": "How many customers are there?", "sql": "SELECT 4"}
    lines = [{"id": str(number)} | question for number in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    code, out, _ = run("eval", "q.jsonl", "-m", server.url, "--parallel", "3", "--json")
    document = json.loads(out)
    assert (code, document["strict"]["accuracy"]) == (0, 1.0)
    served = document["run"]["settings"]["served"]
    assert (served["version"], served["name"], served["address"]) == ("0.32.0", "served-model", server.url)
    assert (tmp_path / f"q.{server.url.removeprefix('http://').replace(':', '-')}.jsonl").exists()
    server.version = "0.33.0"
    code, _, err = run("eval", "q.jsonl", "-m", server.url, "--parallel", "3")
    assert code == 1
    assert "Error: " in err


def test_doctor(server, run, monkeypatch):
    """What is served, and where its texts are from."""
    monkeypatch.setenv("SQALE_EDGE_TOKENIZER", "demo")
    code, out, _ = run("doctor", "-m", server.url, "--json")
    model = json.loads(out)["model"]
    assert code == 0
    assert (model["vllm"], model["texts_from"], model["prompt"], model["prefix_caching"]) == (
        "0.32.0",
        "demo",
        "training",
        True,
    )


def test_a_command_that_needs_a_file(server, run):
    """It says so, and which commands take an address."""
    code, _, err = run("bench", "--quick", "-m", server.url)
    assert code == 1
    assert "is the address of a server" in err


def test_a_dead_server_is_one_line(shop, run):
    """What failed and the fix, exit code 1."""
    code, out, err = run("ask", shop, "How many?", "-m", "http://127.0.0.1:9")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("Error: http://127.0.0.1:9 cannot be reached: ")
