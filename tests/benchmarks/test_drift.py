"""The measurement of drift on the demo model: real files, real logits, real episodes."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from sqale_edge.benchmarks import read_questions
from sqale_edge.benchmarks.drift import DriftBench, LogsFile, compare_logs, read_done, read_logs, write_markdown
from sqale_edge.benchmarks.drift.report import draw_plot
from sqale_edge.benchmarks.speed.results import append_document
from sqale_edge.convert import convert_checkpoint

from sqale_edge.errors import BenchmarkError, Cancelled
from sqale_edge.llama.logits import LogitsModel


def measure(settings, logs, base, models=(), *, references=(), **options):
    bench = DriftBench(logs, base, models, references, settings=settings, **options)
    return [step for step in bench.run() if isinstance(step, dict)]


@pytest.fixture
def make(make_reference, tmp_path):
    """Writes reference outputs into a new folder."""
    return lambda name, *args, **options: make_reference(tmp_path / name, *args, **options)


@pytest.fixture(scope="module")
def documents(demo_settings, logs, demo_files, fp32):
    files = [demo_files["Q8_0"], demo_files["Q4_0"]]
    return measure(demo_settings, logs, demo_files["BF16"], files, references=[fp32])


def plain_figures(settings, logs, base, contender):
    """Mean KL and agreement over what is written, by the plain formula over whole logs."""
    kl, same = [], []
    settings = dataclasses.replace(settings, n_batch=64)
    for log in read_logs(logs).logs.values():
        rows = []
        for path in (base, contender):
            with LogitsModel(path, settings) as model:
                logits = np.concatenate(list(model.evaluate(log.tokens[:-1]))).astype(np.float64)
            rows.append(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        mask = ~np.isin(log.kinds[1:], ("prompt", "result"))
        p, q = rows[0][mask], rows[1][mask]
        kl.append((p * np.log(p / q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    return float(np.concatenate(kl).mean()), float(np.concatenate(same).mean())


def test_figures_are_the_plain_formulas(documents, demo_settings, logs, demo_files):
    """Of each file against the one that is not quantized; fewer bits are further away."""
    means = []
    for document, quant in zip(documents[1:], ("Q8_0", "Q4_0"), strict=True):
        found = document["against"]["llama.cpp BF16"]
        assert found["figure"] == "quantization"
        kl, same = plain_figures(demo_settings, logs, demo_files["BF16"], demo_files[quant])
        assert found["written"]["kl"]["mean"] == pytest.approx(kl, rel=1e-6)
        assert found["written"]["top1_agreement"] == pytest.approx(same, abs=1e-3)
        means.append(found["written"]["kl"]["mean"])
    assert 0 < means[0] < means[1]


def test_documents_name_everything_they_depend_on(documents, logs, demo_files):
    """Machine, versions, digests of files and logs, and the shape of batches, which is the same for all."""
    for document in documents:
        assert document["machine"]["cpu"]
        assert document["versions"]["llama_cpp_python"]
        assert len(document["contender"]["sha256"]) == 64
        assert document["logs"]["n_tokens"] == read_logs(logs).n_tokens
        assert document["shape"] == documents[0]["shape"]
        assert {"engine", "sha256", "model"} <= document["against"]["transformers FP32"]["about"].keys()
    table = write_markdown(documents)
    for text in (documents[0]["machine"]["cpu"], documents[1]["contender"]["sha256"][:16], "64 positions at a time"):
        assert text in table
    assert table.count("| Q4_0.gguf |") == 4  # two figures, each as a whole and by kind


def test_two_runs_agree(documents, demo_settings, logs, demo_files, fp32):
    """Every figure is the same to the last digit."""
    again = measure(demo_settings, logs, demo_files["BF16"], [demo_files["Q8_0"]], references=[fp32])
    assert [one["against"] for one in again] == [one["against"] for one in documents[:2]]


def test_a_file_is_at_no_distance_from_itself(demo_settings, logs, demo_files, make):
    """What is left is the rounding of logprobs to float32; in batches of another size it is more."""
    own = make("own", demo_files["BF16"], engine="vllm", dtype="bfloat16")
    n_batch = demo_settings.n_batch
    (document,) = measure(demo_settings, logs, demo_files["BF16"], references=[own], n_batch=n_batch)
    found = document["against"]["vLLM BF16"]
    assert found["figure"] == "engine"
    assert found["all"]["kl"]["max"] < 1e-9
    assert found["all"]["top1_agreement"] == 1
    (other,) = measure(demo_settings, logs, demo_files["BF16"], references=[own], n_batch=7)
    assert 1e-9 < other["against"]["vLLM BF16"]["all"]["kl"]["mean"] < 1e-3


def test_references_are_held_against_the_exact_one(demo_settings, logs, demo_files, fp32, make):
    """One that was rounded, if it has all logprobs; one with the likeliest only is said to be left out."""
    rounded = make("b", demo_files["BF16"], engine="vllm", dtype="bfloat16")
    *_, last = measure(demo_settings, logs, demo_files["BF16"], references=[rounded, fp32])
    assert (last["contender"]["label"], list(last["against"])) == ("vLLM BF16", ["transformers FP32"])
    assert 0 < last["against"]["transformers FP32"]["written"]["kl"]["mean"] < 0.01
    top = make("t", demo_files["BF16"], engine="vllm", dtype="bfloat16", top_k=20)
    steps = list(DriftBench(logs, demo_files["BF16"], [], [top, fp32], settings=demo_settings).run())
    assert any("kept only its likeliest" in step for step in steps if isinstance(step, str))
    found = next(step for step in steps if isinstance(step, dict))["against"]
    assert found["vLLM BF16"]["written"]["kl"]["mean"] <= found["transformers FP32"]["written"]["kl"]["mean"] + 1e-4


def test_what_is_measured_is_not_measured_again(documents, demo_settings, demo_files, fp32, logs):
    """The documents of a results file are given back; other logs are another measurement."""
    path = logs.with_name("results.jsonl")
    for document in documents:
        append_document(document, path)
    done = read_done(path)
    bench = DriftBench(logs, demo_files["BF16"], [demo_files["Q8_0"]], [fp32], settings=demo_settings)
    steps = list(bench.run(done))
    assert [step for step in steps if isinstance(step, dict)] == documents[:2]
    assert not any("log 1" in step for step in steps if isinstance(step, str))
    fewer = DriftBench(logs, demo_files["BF16"], [], [fp32], settings=demo_settings, n_tokens=2)
    assert any("log 1 of 1" in step for step in fewer.run(done) if isinstance(step, str))


def test_a_stop_is_heard(demo_settings, logs, demo_files):
    """The measurement ends with Cancelled, wherever it is."""
    bench = DriftBench(logs, demo_files["BF16"], [demo_files["Q4_0"]], settings=demo_settings)
    steps = bench.run()
    while "log 2" not in next(steps):
        pass
    bench.stop()
    with pytest.raises(Cancelled):
        next(steps)


@pytest.mark.parametrize("shift", [1, -1])
def test_positions_that_moved_all_together_are_an_error(demo_settings, logs, demo_files, make, shift):
    """Rows that agree with themselves, but belong to a neighbouring position."""
    moved = make("m", demo_files["F32"], change=lambda rows: np.roll(rows, shift, axis=0))
    with pytest.raises(BenchmarkError, match="shifted"):
        measure(demo_settings, logs, demo_files["BF16"], references=[moved])


def test_a_re_ordered_vocabulary_is_an_error(demo_settings, logs, demo_files, demo_checkpoint, tmp_path):
    """Two tokens that changed places mean another tokenizer, whatever the weights are."""
    shutil.copytree(demo_checkpoint, tmp_path / "c")
    tokenizer = json.loads((tmp_path / "c" / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    one, other = list(words)[300:302]
    words[one], words[other] = words[other], words[one]
    (tmp_path / "c" / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert_checkpoint(tmp_path / "c", tmp_path / "swapped.gguf", quant="BF16")
    for base, files in ((demo_files["BF16"], [tmp_path / "swapped.gguf"]), (tmp_path / "swapped.gguf", [])):
        with pytest.raises(BenchmarkError, match="another vocabulary"):
            measure(demo_settings, logs, base, files)


def test_another_tokenizer_is_an_error(demo_settings, logs, qwen_gguf):
    """Before anything is evaluated."""
    with pytest.raises(BenchmarkError, match="another vocabulary"):
        measure(demo_settings, logs, qwen_gguf)


def test_references_of_other_weights_are_an_error(demo_settings, logs, demo_files, fp32, fp32_copy):
    """Two references belong to one checkpoint, and are of different kinds."""
    head = json.loads((fp32_copy / "reference.json").read_text())
    (fp32_copy / "reference.json").write_text(json.dumps(head | {"dtype": "bfloat16", "engine": "vllm"}))
    head["model"]["files"]["model.safetensors"] = "0" * 64
    with pytest.raises(BenchmarkError, match="two references are both"):
        DriftBench(logs, demo_files["BF16"], [], [fp32, fp32], settings=demo_settings)
    (fp32_copy / "reference.json").write_text(json.dumps(head | {"dtype": "bfloat16", "engine": "vllm"}))
    with pytest.raises(BenchmarkError, match="different checkpoints"):
        DriftBench(logs, demo_files["BF16"], [], [fp32, fp32_copy], settings=demo_settings)


# Logs and partings.


def test_logs_are_recorded_once(logs, drift_folder, record, demo_files, tmp_path):
    """The same command asks nothing again; a torn line is dropped and asked again, with the same tokens."""
    whole = logs.read_bytes()
    path = tmp_path / "logs.jsonl"
    path.write_bytes(whole[:-100])
    record(demo_files["BF16"], path)
    assert [log.tokens for log in read_logs(path).logs.values()] == [
        log.tokens for log in read_logs(logs).logs.values()
    ]
    before = path.read_bytes()
    record(demo_files["BF16"], path)
    assert path.read_bytes() == before
    with pytest.raises(BenchmarkError, match="another recording: model_sha256"):
        record(demo_files["Q4_0"], path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "no file of token logs"),
        (lambda lines: lines[1:], "no file of token logs"),
        (lambda lines: [*lines, lines[1]], "line 4: this is a second log"),
        (lambda lines: [lines[0], "{}"], "line 2: this is no token log"),
        (lambda lines: [lines[0], lines[1].replace('"tokens": [', '"tokens": [99999, ')], "line 2"),
        (lambda lines: [lines[0], lines[1].replace('["prompt", ', '["prompt", 1')], "line 2"),
    ],
)
def test_a_broken_file_of_logs_is_an_error(logs, tmp_path, change, message):
    """In one line that names the place."""
    path = tmp_path / "logs.jsonl"
    path.write_text("".join(line + "\n" for line in change(logs.read_text().splitlines())))
    with pytest.raises(BenchmarkError, match=message):
        read_logs(path)


def test_episodes_of_one_model_do_not_part(logs):
    """All tokens and all results are the same."""
    file = read_logs(logs)
    found = compare_logs(file, file)
    assert (found["n"], found["n_parted"], found["n_other_result"]) == (2, 0, 0)


def test_episodes_part_where_a_token_differs(logs, tmp_path):
    """The turn and the kind are those of the first token that differs; other rows are another result."""
    file = read_logs(logs)
    first, second = file.logs.values()
    place = next(n for n, kind in enumerate(first.kinds) if kind == "sql")
    tokens = (*first.tokens[:place], (first.tokens[place] + 1) % file.head.n_vocab, *first.tokens[place + 1 :])
    episode = dataclasses.replace(first.episode, rows=((12345,),))
    other = dataclasses.replace(first, tokens=tokens, episode=episode)
    with LogsFile(tmp_path / "other.jsonl", file.head) as writer:
        writer.add(other)
        writer.add(dataclasses.replace(second, tokens=second.tokens[:-1], kinds=second.kinds[:-1]))
    found = compare_logs(file, read_logs(tmp_path / "other.jsonl"))
    assert (found["n_parted"], found["n_other_result"]) == (2, 1)
    assert found["partings"][0] | {"id": ""} == {
        "id": "",
        "place": place,
        "turn": first.turn_of(place),
        "kind": "sql",
        "has_same_result": False,
    }
    assert found["partings"][1]["place"] == len(second.tokens) - 1
    table = write_markdown([found])
    assert "end with another result" in table
    assert f"recorded on {file.head.machine['cpu']}" in table
    assert found["models"][0]["sha256"][:8] in table


def test_recordings_that_differ_in_more_than_the_model_are_not_compared(logs, tmp_path):
    """Another seed gives other episodes."""
    file = read_logs(logs)
    with LogsFile(tmp_path / "o.jsonl", dataclasses.replace(file.head, seed=1)) as writer:
        writer.add(next(iter(file.logs.values())))
    with pytest.raises(BenchmarkError, match="differ in seed"):
        compare_logs(file, read_logs(tmp_path / "o.jsonl"))


# For people.


def test_the_drawing_is_a_png(documents, tmp_path):
    """Where matplotlib is there."""
    pytest.importorskip("matplotlib")
    assert draw_plot(documents, tmp_path / "new" / "drift.png")
    assert (tmp_path / "new" / "drift.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BenchmarkError, match="no figures"):
        draw_plot([], tmp_path / "none.png")


def test_the_demos_questions_are_written_once(tmp_path):
    """Held-out ones and those about the shop, each with its database; a second start leaves them alone."""
    from drift import SHOP, write_questions

    path = write_questions(tmp_path / "questions", 3)
    questions = read_questions(path)
    assert len(questions) == 3 + len(SHOP)
    assert all(question.db.is_file() for question in questions)
    before = path.stat().st_mtime_ns
    assert write_questions(tmp_path / "questions", 3).stat().st_mtime_ns == before
