"""The benchmark of speed on tiny models: counts are exact, times are there, nothing stays behind. No time is judged."""

import json
import math
import os
import sys
import time

import pytest
from sqale_edge.benchmarks.speed import (
    NAMES,
    QUICK,
    Bench,
    Plan,
    append_document,
    candidate_threads,
    combine_documents,
    draw_plots,
    list_goals,
    make_tuning,
    tune,
    write_goals,
    write_markdown,
)
from sqale_edge.benchmarks.speed.bandwidth import (
    LEAST_BYTES,
    choose_array_bytes,
    last_cache_bytes,
    measure_bandwidth,
)
from sqale_edge.benchmarks.speed.bench import warm_up
from sqale_edge.benchmarks.speed.contenders import LLAMA_CPP_PYTHON, OURS, SERVER, peak_memory_bytes
from sqale_edge.benchmarks.speed.decoding import choose_depths, measure_depths
from sqale_edge.benchmarks.speed.measuring import Figure, Ratio, alternate, summarize
from sqale_edge.benchmarks.speed.processes import Child, MissingError
from sqale_edge.benchmarks.speed.replaying import replay
from sqale_edge.benchmarks.speed.surroundings import describe_model, read_commit
from sqale_edge.benchmarks.speed.token_logs import (
    LARGE,
    QUESTION,
    SMALL,
    LogTurn,
    Shape,
    TokenLog,
    make_log,
    table_names,
    write_database,
)
from sqale_edge.benchmarks.speed.tune import _take_samples, choose

from sqale_edge import Database, EngineSettings, Toolbox
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError, SqaleEdgeError
from sqale_edge.llama import LlamaEngine
from sqale_edge.llama.bare import decode_bare
from sqale_edge.protocol import Protocol
from sqale_edge.testing import ScriptedEngine

TINY = Shape("tiny", 3, 4, (("list_tables",), ("submit_sql",)))
PLAN = Plan(
    seconds=600.0,
    n_rounds=1,
    depths=(0, 20, 100_000),
    n_prefill=16,
    n_decode=4,
    shapes=(TINY,),
    votes=(1, 2),
    array_bytes=1 << 20,
    with_peers=False,
)
SETTINGS = EngineSettings(n_ctx=2048, threads=1)


@pytest.fixture(scope="module")
def document(qwen_gguf):
    """What a whole run on a tiny model says, without peers."""
    *lines, document = Bench(qwen_gguf, SETTINGS, PLAN).run()
    assert lines[0] == "at most 10 minutes"
    assert [line.partition(":")[0] for line in lines[2:]] == list(NAMES)
    return document


@pytest.fixture
def log(engine, tmp_path):
    """The log of a tiny episode."""
    return make_log(engine, TINY, tmp_path)


# Samples.


def test_contenders_take_turns_and_the_warm_up_does_not_count():
    """A B, A B, A B: the first round is thrown away."""
    calls = []
    numbers = iter(range(100))

    def run(name):
        calls.append(name)
        return float(next(numbers))

    samples = alternate({"a": lambda: run("a"), "b": lambda: run("b")}, n_rounds=2, seconds=60)
    assert "".join(calls) == "ababab"
    assert samples == {"a": [2.0, 4.0], "b": [3.0, 5.0]}


def test_no_round_begins_that_would_end_too_late():
    """Where the time suffices for one round there is one, whatever was wished for."""

    def wait():
        time.sleep(0.02)
        return 1.0

    assert alternate({"a": wait}, n_rounds=50, seconds=0.03, n_warm_up=0) == {"a": [1.0]}
    assert alternate({"a": wait}, n_rounds=3, seconds=60, n_warm_up=0) == {"a": [1.0] * 3}


def test_a_stop_is_heard_between_samples():
    """What the check raises ends the rounds."""

    def stop():
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        alternate({"a": lambda: 1.0}, n_rounds=3, seconds=60, check=stop)


def test_figures_are_medians_and_ratios_are_taken_round_by_round():
    """The median of quotients, which is not the quotient of medians; rates are of the median."""
    figure = Figure(
        "decode", {"a": [1.0, 2.0, 9.0], "b": [2.0, 8.0, 3.0]}, 4, [Ratio("a to b", "a", "b")], {"depth": 7}
    )
    found = figure.to_dict()
    assert found["depth"] == 7
    assert found["contenders"]["a"]["median_s"] == 2.0
    assert found["contenders"]["a"]["tok_per_s"] == 2.0
    assert found["ratios"]["a to b"] == {"median": 0.5, "iqr": 1.375, "min": 0.25, "max": 3.0}


def test_the_spread_is_the_interquartile_range():
    """0 for a single sample; no sample is an error."""
    assert summarize([1.0, 2.0, 3.0, 4.0, 5.0]) == {"median": 3.0, "iqr": 2.0, "min": 1.0, "max": 5.0}
    assert summarize([2.0])["iqr"] == 0.0
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


# Token logs.


def test_a_log_is_what_the_real_loop_makes_of_the_script(engine, log, tmp_path):
    """Its first prompt is the protocol's, its results the tools', its calls the script's, its end the end token."""
    first = engine.tokenize_pieces(Protocol(engine.info).first_prompt(QUESTION))
    assert list(log.turns[0].prompt) == first
    assert 0 < log.n_shared < len(first)
    results = engine.detokenize(log.turns[1].prompt).decode()
    with Database.open(tmp_path / "tiny.sqlite") as database:
        assert Toolbox(database).run("list_tables", {}).output in results
    thoughts = [engine.detokenize(turn.free).decode().removesuffix("</think>") for turn in log.turns]
    assert [sorted(thought.split()) for thought in thoughts] == [["The", "asks", "for", "question"]] * len(thoughts)
    assert len(set(thoughts)) == len(thoughts) > 1
    assert engine.detokenize(log.turns[0].grammar).decode() == '\n\n{"tool": "list_tables"}<|im_end|>'
    assert json.loads(engine.detokenize(log.turns[1].grammar))["tool"] == "submit_sql"


def test_a_log_survives_json(log):
    """It goes to other processes as JSON."""
    assert TokenLog.from_dict(json.loads(json.dumps(log.to_dict()))) == log


def test_the_shapes_are_those_of_real_episodes(tmp_path):
    """239 tables are listed, nine are described in one turn, six turns; and five tables, three turns."""
    engine = ScriptedEngine([], n_ctx=1 << 20, thinks=True)
    large, small = (make_log(engine, shape, tmp_path) for shape in (LARGE, SMALL))
    assert (len(large.turns), len(small.turns)) == (6, 3)
    listed, described = (engine.detokenize(large.turns[number].prompt).decode() for number in (1, 2))
    assert ", ".join(table_names(239)) in listed
    assert all(f"({number}/9)" in described for number in range(1, 10))
    assert described.count("CREATE TABLE") == 9
    assert engine.detokenize(small.turns[1].prompt).decode().count("CREATE TABLE") == 3
    for log in (large, small):
        assert b"Error" not in engine.detokenize([token for turn in log.turns for token in turn.prompt])


def test_tables_of_the_generated_database_are_joined_in_a_chain(tmp_path):
    """All names differ, and each but the first has a key to the one before."""
    assert len({*table_names(239)}) == 239
    write_database(tmp_path / "d.sqlite", 4)
    names = table_names(4)
    with Database.open(tmp_path / "d.sqlite") as database:
        path = Toolbox(database).run("join_path", {"table_a": names[0], "table_b": names[3]}).output
    assert path.splitlines()[0].split(" -> ") == names


def test_a_log_that_does_not_fit_is_an_error(tmp_path):
    """The context's size is in the message: never a shorter episode."""
    with pytest.raises(ContextOverflowError, match="small episode does not fit into a context of 3000"):
        make_log(ScriptedEngine([], n_ctx=3000), SMALL, tmp_path)


# Replays.


@pytest.mark.parametrize("n_sequences", [1, 2])
def test_a_replay_evaluates_exactly_the_logs_tokens(engine, log, n_sequences):
    """By llama.cpp's own count: each token once for each sequence, the first prompt once, the last token never."""
    before = engine.count_evaluated()
    cost = replay(engine, log, n_sequences)
    n_first = len(log.turns[0].prompt)
    assert engine.count_evaluated() - before == n_first + n_sequences * (log.n_tokens - n_first - 1)
    assert cost.n_evaluated_by_turn == cost.n_expected_by_turn
    assert cost.n_evaluated_by_turn[0] == n_first + n_sequences * (len(log.turns[0].decoded) - 1)
    assert 0 < cost.ttft_s < cost.total_s
    assert 0 < cost.prefill_s + cost.decode_s <= cost.total_s


def test_a_warm_replay_does_not_evaluate_what_is_shared(engine, log):
    """Its sequence begins as a fork of one that holds the start of the prompt."""
    base = engine.new_sequence(0)
    base.append(log.turns[0].prompt[: log.n_shared])
    before = engine.count_evaluated()
    cost = replay(engine, log, base=base)
    assert engine.count_evaluated() - before == log.n_tokens - log.n_shared - 1
    assert cost.counts()["only_new_tokens"]
    assert len(base) == log.n_shared


def test_a_replay_drafts_where_the_engine_does(qwen_gguf, tmp_path):
    """The same tokens are written; a query that is submitted after it ran is guessed, and right."""
    engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=4096, n_draft=8, threads=1))
    warm_up(engine)
    log = make_log(engine, Shape("twice", 2, 0, (("run_query",), ("submit_sql",))), tmp_path)
    replay(engine, log)
    assert engine.n_guesses_right > 50
    assert (n_guessed := engine.n_guessed) >= engine.n_guesses_right
    assert replay(engine, log, drafts=False).counts()["only_new_tokens"]
    assert engine.n_guessed == n_guessed
    engine.close()


def test_a_log_against_the_grammar_is_an_error(engine):
    """No token is drawn in place of the log's."""
    prompt, text = (tuple(engine.tokenize(text, trusted=False)) for text in ("Hello", "Hello"))
    with pytest.raises(ModelError, match="refused by the grammar"):
        replay(engine, TokenLog("wrong", (LogTurn(prompt, (), text),)))
    assert len([engine.new_sequence(0) for _ in range(3)]) == 3  # all places are free again


def test_a_replay_can_be_stopped(engine, log):
    """Between turns by its check, within one by the engine; its places are free again."""

    def stop():
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        replay(engine, log, check=stop)
    with pytest.raises(Cancelled):
        replay(engine, log, 2, check=engine.cancel)
    assert replay(engine, log).counts()["only_new_tokens"]


# Decoding.


def test_bare_decoding_evaluates_its_tokens_and_nothing_else(engine):
    """As many as it is given, behind what the sequence holds; and with the same state as ours, at the end."""
    sequence = engine.new_sequence(0)
    sequence.append([5, 6, 7])
    before = engine.count_evaluated()
    assert decode_bare(engine, sequence, [8, 9, 10, 11]) > 0
    assert engine.count_evaluated() - before == 4
    state = bytes(engine.read_state(sequence))
    sequence.close()
    ours = engine.new_sequence(0)  # in the same place
    ours.append([5, 6, 7])
    for token in (8, 9, 10, 11):
        ours.append([token])
    assert bytes(engine.read_state(ours)) == state


def test_prefill_and_decode_are_measured_apart_at_each_depth(engine):
    """The same number of tokens for bare, sampling and grammar; each depth costs only what it lies deeper."""
    before = engine.count_evaluated()
    figures = list(measure_depths(engine, [0, 40], n_rounds=2, seconds=60, n_prefill=16, n_decode=8))
    assert [figure.name for figure in figures] == ["prefill at 0", "decode at 0", "prefill at 40", "decode at 40"]
    assert [figure.n_tokens for figure in figures] == [16, 8, 16, 8]
    for figure in figures:
        assert all(sample > 0 for samples in figure.samples_s.values() for sample in samples)
        assert {len(samples) for samples in figure.samples_s.values()} == {2}
    n_runs = 2 * (2 + 1)  # two depths; two rounds and one to warm up
    assert engine.count_evaluated() - before == 40 + n_runs * (16 + 3 * (1 + 8))


def test_depths_that_do_not_fit_are_left_out():
    """What is measured behind them must fit as well."""
    assert choose_depths((0, 1024, 4096, 8192), 8192) == [0, 1024, 4096]
    assert choose_depths((0,), 100) == []


# Memory.


def test_the_bandwidths_arrays_are_larger_than_any_cache():
    """Twice the last cache where memory allows it; where not, that is said."""
    assert choose_array_bytes(None, None) == (LEAST_BYTES, True)
    assert choose_array_bytes(100 << 30, 260 << 20) == (520 << 20, True)
    assert choose_array_bytes(600 << 20, 260 << 20) == (100 << 20, False)


def test_the_last_cache_is_the_largest(tmp_path):
    """Whatever the system calls it; None where it says nothing."""
    for number, size in enumerate(["48K", "2048K", "260M", "rubbish"]):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(size)
    assert last_cache_bytes(tmp_path) == 260 << 20
    assert last_cache_bytes(tmp_path / "nowhere") is None


def test_bandwidth_is_measured_in_three_ways():
    """A sample a round of each."""
    rates = measure_bandwidth(1 << 20, 2, n_rounds=2)
    assert sorted(rates) == ["copy_bytes_per_s", "read_bytes_per_s", "triad_bytes_per_s"]
    assert all(len(values) == 2 and min(values) > 0 for values in rates.values())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say")
def test_peak_memory_is_that_of_this_process():
    """It grows with what is touched, and does not shrink; the system counts it within a MiB."""
    before = peak_memory_bytes()
    block = bytearray(before + (64 << 20))
    block[::4096] = b"x" * len(block[::4096])
    after = peak_memory_bytes()
    assert after >= before + (63 << 20)
    del block
    assert peak_memory_bytes() >= after - (1 << 20)


def test_a_token_reads_all_weights_but_an_embedding_beside_a_head(qwen_gguf, llama_gguf):
    """Of a tied model the embedding is the head, and is read."""
    import gguf

    for path in (qwen_gguf, llama_gguf):
        sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
        n_unread = sizes["token_embd.weight"] if "output.weight" in sizes else 0
        assert describe_model(path, lambda: None)["read_bytes_per_token"] == sum(sizes.values()) - n_unread


# The whole.


def test_a_run_measures_everything(document):
    """Each measurement has positive times; what does not fit is left out with a reason, and nothing else."""
    assert list(document["measurements"]) == list(NAMES)
    for result in document["measurements"].values():
        for figure in result["figures"]:
            for one in figure["contenders"].values():
                assert len(one["samples_s"]) == 1
                assert one["median_s"] > 0
    assert [(one["measurement"], one["what"]) for one in document["skipped"]] == [("decoding", "depth 100000")]
    names = [figure["name"] for result in document["measurements"].values() for figure in result["figures"]]
    assert names == [
        *("prefill at 0", "decode at 0", "prefill at 20", "decode at 20", "first token"),
        *("votes on the tiny episode", "drafts on the tiny episode", "load", "tiny episode"),
    ]


def test_a_document_is_json_and_says_what_it_depends_on(document):
    """Machine, versions, model, settings and plan; no number is infinite."""
    assert json.loads(json.dumps(document, allow_nan=False))["form"] == "sqale-edge speed 1"
    assert {"cpu", "cores", "allowed_cpus", "available_memory_bytes"} <= document["machine"].keys()
    assert {"commit", "sqale_edge", "llama_cpp_python", "cpu_features"} <= document["versions"].keys()
    assert len(document["model"]["sha256"]) == 64
    assert document["model"]["n_parameters"] > 0
    assert document["settings"]["threads"] == 1
    assert document["plan"]["shapes"] == ["tiny"]


def test_counts_in_a_document_are_exact(document):
    """Tokens evaluated, and from them the operations of a question: 2 for each parameter and token."""
    (episode,) = document["measurements"]["episodes"]["figures"]
    log, ours = episode["log"], episode["ours"]
    assert ours["only_new_tokens"]
    assert sum(ours["n_evaluated_by_turn"]) == log["n_prompt"] + log["n_decoded"] - 1
    assert math.isclose(episode["tflop"], 2e-12 * document["model"]["n_parameters"] * sum(ours["n_evaluated_by_turn"]))
    (votes,) = document["measurements"]["votes"]["figures"]
    assert [votes["counts"][n]["only_new_tokens"] for n in ("1", "2")] == [True, True]
    first = {phase: document["measurements"]["ttft"][f"{OURS}, {phase}"] for phase in ("cold", "warm", "restarted")}
    for counts in first.values():
        assert counts["n_prompt"] == counts["n_cached"] + counts["n_evaluated"] > 0
    assert first["cold"]["n_cached"] == 0
    bandwidth = document["measurements"]["bandwidth"]
    ceiling = bandwidth["best_bytes_per_s"] / document["model"]["read_bytes_per_token"]
    assert math.isclose(bandwidth["ceiling_tok_per_s"], ceiling)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say")
def test_peak_memory_is_that_of_a_process_with_the_model(document, qwen_gguf):
    """More than the file, and no more than was estimated before it was loaded."""
    (loading,) = document["measurements"]["loading"]["figures"]
    peak = loading["peak_memory_bytes"][OURS]["median"]
    assert qwen_gguf.stat().st_size < peak < 1.1 * loading["estimated_bytes"]


def test_a_person_can_read_it(document):
    """Each section is there, and each row has as many cells as its head."""
    text = write_markdown(document)
    for name in ("decoding", "ttft", "votes", "loading", "episodes", "Goals", "Left out"):
        assert f"### {name}" in text
    assert "tok/s" in text
    assert "224 published" in text
    goals = text.partition("### Goals")[2].partition("###")[0].strip().splitlines()
    file = document["model"]["file"]
    assert write_goals([document]).splitlines()[2:] == [f"| {file} {line}" for line in goals[2:]]
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) >= 8
    for head, *rows in tables:
        assert {row.count("|") for row in rows} == {head.count("|")}


def test_only_what_is_asked_for_is_measured(qwen_gguf):
    """By name."""
    *_, document = Bench(qwen_gguf, SETTINGS, PLAN, ["bandwidth"]).run()
    assert list(document["measurements"]) == ["bandwidth"]


def test_a_run_can_be_stopped(qwen_gguf, tmp_path, monkeypatch):
    """Wherever it is: Cancelled, no process, no file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("decoding", "votes"):
        bench = Bench(qwen_gguf, SETTINGS, PLAN, [name])
        with pytest.raises(Cancelled):  # noqa: PT012 - it is raised by the iterator
            for line in bench.run():
                if str(line).startswith(name):
                    bench.stop()
    assert list(tmp_path.iterdir()) == []


def test_the_time_is_bounded(qwen_gguf):
    """What is not done when the time is up is left out with that reason; nothing at all is an error."""
    from dataclasses import replace

    with pytest.raises(SqaleEdgeError, match="the time was up"):
        list(Bench(qwen_gguf, SETTINGS, replace(PLAN, seconds=1e-6)).run())
    endless = replace(PLAN, seconds=1.5, n_rounds=1_000_000, depths=(0,) * 1_000)
    start = time.perf_counter()
    *_, document = Bench(qwen_gguf, SETTINGS, endless, ["decoding", "votes"]).run()
    assert time.perf_counter() - start < 60
    assert {one["why"] for one in document["skipped"]} == {"the time was up"}


def test_the_quick_plan_is_a_smaller_one():
    """In every way."""
    whole = Plan()
    assert QUICK.seconds < whole.seconds
    assert QUICK.n_rounds < whole.n_rounds
    for field in ("depths", "shapes", "votes"):
        assert {*getattr(QUICK, field)} < {*getattr(whole, field)}


# Peers.


def test_llama_cpp_pythons_call_replays_the_same_log(engine, log, qwen_gguf):
    """It writes exactly the log's tokens; where thoughts are left out it evaluates all that is behind them again."""
    with Child(LLAMA_CPP_PYTHON) as child:
        assert child.call("load", model=str(qwen_gguf), settings={"n_ctx": 2048, "threads": 1})["version"]
        child.call("work", n_prefill=8, n_decode=4)  # its counters leave their first 1
        usual, appending = (
            child.call("episode", log=log.to_dict(), keeps_thoughts=keeps_thoughts) for keeps_thoughts in (False, True)
        )
    for answer in (usual, appending):
        assert answer["seconds"] > 0
        assert answer["n_decoded"] == log.n_decoded
        assert answer["n_prompt_given"] >= answer["n_prompt_evaluated"] >= log.n_prompt
        assert 0 < answer["prompts_s"] + answer["single_tokens_s"] < answer["seconds"]
    assert usual["n_prompt_evaluated"] == usual["n_prompt_given"]


def test_the_server_writes_as_many_tokens(engine, log, qwen_gguf, tmp_path):
    """With its prompt cache on it evaluates what is new; a saved slot comes back."""
    pytest.importorskip("xllamacpp")
    loading = {"model": str(qwen_gguf), "settings": {"n_ctx": 2048, "threads": 1}, "folder": str(tmp_path)}
    prompt = list(log.turns[0].prompt)
    with Child(SERVER) as child:
        child.call("load", **loading)
        answer = child.call("episode", log=log.to_dict())
        assert answer["n_decoded"] == log.n_decoded
        assert answer["n_prompt_given"] > answer["n_prompt_evaluated"] >= log.n_prompt
        assert child.call("ask", question="", database="", prompt=prompt)["n_prompt"] == len(prompt)
        child.call("keep")
        child.call("bring_back")


def test_the_server_is_asked_another_question_in_each_round(log, qwen_gguf):
    """Behind the shared part of the prompt nothing is in its slots, however often the log was replayed."""
    pytest.importorskip("xllamacpp")
    with Child(SERVER) as child:
        child.call("load", model=str(qwen_gguf), settings={"n_ctx": 2048, "n_sequences": 2, "threads": 1})
        answers = [child.call("together", log=log.to_dict(), n=2, variant=variant) for variant in range(3)]
    assert {answer["n_decoded"] for answer in answers} == {2 * log.n_decoded}
    assert all(answer["n_prompt_evaluated"] >= 2 * (log.n_prompt - log.n_shared - 1) for answer in answers)


def test_a_missing_peer_is_left_out_with_one_line(qwen_gguf, tmp_path, monkeypatch):
    """Wherever it would take part, with the command that installs it; the others are measured."""
    (tmp_path / "xllamacpp.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Child(SERVER) as child, pytest.raises(MissingError, match=r"pip install xllamacpp"):
        child.call("load", model="m.gguf", settings={})
    from dataclasses import replace

    *_, document = Bench(qwen_gguf, SETTINGS, replace(PLAN, with_peers=True, votes=(1,)), ["votes"]).run()
    assert [(one["what"], one["why"]) for one in document["skipped"]] == [
        (SERVER, "xllamacpp is not installed (pip install xllamacpp)")
    ]
    assert document["measurements"]["votes"]["figures"]


def test_a_contender_that_fails_or_dies_is_one_clear_line(tmp_path):
    """Its own error comes back; a process that is gone is told with its exit code."""
    with Child(OURS) as child:
        with pytest.raises(ModelError, match="sqale-edge failed: ModelNotFoundError") as caught:
            child.call("load", model=str(tmp_path / "none.gguf"), settings={})
        assert "\n" not in str(caught.value)
        child._process.kill()
        with pytest.raises(ModelError, match="the process of sqale-edge ended: code"):
            child.call("peak")


def test_waiting_for_a_contender_can_be_stopped():
    """The process is gone behind the block."""
    with Child(OURS, should_stop=lambda: True) as child, pytest.raises(Cancelled):
        child.call("peak")
    assert child._process.poll() is not None


# Threads.


@pytest.mark.parametrize(
    ("n_allowed", "n_cores", "expected"),
    [
        (1, 1, [1]),
        (2, 2, [1, 2]),
        (8, 4, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, 6, [1, 2, 3, 4, 5, 6, 7, 8, 12]),
        (64, 24, [1, 2, 3, 4, 5, 6, 7, 8, 16, 23, 24, 32, 64]),
    ],
)
def test_the_numbers_of_threads_that_make_sense(n_allowed, n_cores, expected):
    """Never more than the allowed CPUs; the cores and one less are among them."""
    assert candidate_threads(n_allowed, n_cores) == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ({1: [4.0], 2: [2.0], 4: [1.0]}, 4),
        ({1: [4.0], 2: [1.02], 4: [1.0]}, 2),  # as good, with fewer
        ({1: [1.0, 1.0, 1.0], 2: [0.5, 9.0, 9.0]}, 1),  # one lucky sample is no median
        ({2: [1.0, 1.0, 50.0], 1: [2.0, 2.0, 2.0]}, 2),  # and one unlucky one neither
        ({2: [1.0, 3.0, 3.0], 1: [2.0]}, 2),  # what dropped out early had no worse rounds to get through
    ],
)
def test_the_best_number_is_the_least_with_the_best_median(samples, expected):
    """Within three hundredths."""
    assert choose(samples) == expected


@pytest.mark.parametrize("disturbed", [None, 1, 2, 3])
def test_a_disturbed_round_does_not_decide(disturbed):
    """Whichever of the best number's: it is found, and those that are far behind drop out early."""
    paces = {1: 8.0, 2: 4.0, 3: 2.7, 4: 2.0, 6: 1.4, 8: 1.0}
    asked = []

    def measure(n):
        asked.append(n)
        return paces[n] * (5 if n == 8 and asked.count(n) == disturbed else 1)

    samples = _take_samples(list(paces), measure, 0.05, lambda: None)
    assert choose(samples) == 8
    assert [len(samples[n]) for n in (1, 2, 3, 4)] == ([2] * 4 if disturbed is None else [len(samples[4])] * 4)
    assert len(samples[6]) == len(samples[8]) >= 3


def test_tuning_measures_each_number_and_keeps_the_best(engine):
    """Prefill and decode have numbers of their own; the engine goes on with them, and all its places are free."""
    tuned = tune(engine, [1, 2], seconds=0.2)
    assert tuned.decode_s.keys() == tuned.prefill_s.keys() == {1, 2}
    assert all(min(samples) > 0 for samples in [*tuned.decode_s.values(), *tuned.prefill_s.values()])
    assert (engine.n_threads, engine.n_threads_batch) == (tuned.threads, tuned.threads_batch)
    found = json.loads(json.dumps(tuned.to_dict()))
    assert found["threads"] in (1, 2)
    assert found["decode"]["1"]["tok_per_s"] > 0
    assert make_tuning(tuned, "m").threads == tuned.threads
    assert len([engine.new_sequence(0) for _ in range(3)]) == 3


# Files.


def test_each_run_is_a_line_at_the_end(document, tmp_path):
    """Folders are made; what is there stays."""
    path = tmp_path / "new" / "speed.jsonl"
    append_document(document, path)
    append_document({"second": 2}, path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        json.loads(json.dumps(document)),
        {"second": 2},
    ]
    with pytest.raises(SqaleEdgeError, match="cannot be written"):
        append_document(document, tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")  # noqa: PTH110
def test_a_full_disk_is_one_clear_line():
    """And no part of a line stays."""
    from pathlib import Path

    with pytest.raises(SqaleEdgeError, match="No space left"):
        append_document({}, Path("/dev/full"))


def test_the_commit_is_that_of_a_clone(tmp_path, monkeypatch):
    """Anywhere else there is none."""
    monkeypatch.chdir(tmp_path)
    assert read_commit() is None


def test_documents_of_one_model_are_combined():
    """The newest result of each measurement counts, with what was left out of it; other settings stay apart."""

    def make(measurements, what, n_ctx=4096, **settings):
        skipped = [{"measurement": name, "what": what, "why": "no time"} for name in measurements]
        return {
            "model": {"sha256": "ab"},
            "measured_at": f"when {what}",
            "machine": {"cpu": "a", "load_average_at_start": 1.0},
            "versions": {"python": "3.11", "commit": what},
            "settings": {"n_ctx": n_ctx, **settings},
            "measurements": dict.fromkeys(measurements, what),
            "skipped": skipped,
        }

    documents = [make(["votes", "ttft"], "old"), make(["votes"], "new", n_draft=4), make(["votes"], "x", n_ctx=512)]
    first, second = combine_documents(documents)
    assert first["measurements"] == {"votes": "new", "ttft": "old"}
    assert {name: run["commit"] for name, run in first["runs"].items()} == {"votes": "new", "ttft": "old"}
    assert first["runs"]["ttft"]["measured_at"] == "when old"
    assert [(one["measurement"], one["what"]) for one in first["skipped"]] == [("ttft", "old"), ("votes", "new")]
    assert second["measurements"] == {"votes": "x"}


def test_goals_are_read_off_a_document():
    """A ratio at its limit is reached; memory counts for the model and the context it is meant for only."""
    figure = Figure("decode at 0", {"decode_bare": [0.95], "decode_sampling": [1.0], "decode_grammar": [1.1]})
    ratios = {
        "speed of sampling against bare": summarize([0.95]),
        "speed of grammar against sampling": summarize([1 / 1.1]),
    }
    loaded = Figure("load", {OURS: [1.0, 1.1]}, about={"peak_memory_bytes": {OURS: summarize([2 << 30])}})
    peak = {"figures": [loaded.to_dict()]}
    document = {
        "model": {"file_type": 15, "n_parameters": 1_880_000_000},
        "settings": {"n_ctx": 16_384},
        "measurements": {"decoding": {"figures": [{**figure.to_dict(), "ratios": ratios}]}, "loading": peak},
    }
    assert [(goal.limit, goal.is_met) for goal in list_goals(document)[:2]] == [(0.97, False), (0.95, True)]
    assert [(goal.is_met, goal.n_samples) for goal in list_goals(document)[2:]] == [(False, 2)]
    document["model"]["n_parameters"] = 5_000_000
    assert len(list_goals(document)) == 2


def test_plots_are_png_files(document, tmp_path):
    """One for each measurement with times."""
    pytest.importorskip("matplotlib")
    paths = draw_plots(document, tmp_path / "plots")
    assert [path.name for path in paths] == [f"speed-{name}.png" for name in NAMES if name != "bandwidth"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_without_matplotlib_there_are_no_plots(document, tmp_path, monkeypatch):
    """And no folder for them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw_plots(document, tmp_path / "plots") is None
    assert not (tmp_path / "plots").exists()
