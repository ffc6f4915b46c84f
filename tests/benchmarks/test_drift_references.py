"""Reference outputs: what is written is read, and what does not belong together is an error, never a number."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import REFERENCE_TOKENS, SHAPES, write_checkpoint
from sqale_edge.benchmarks import reference_vllm
from sqale_edge.benchmarks.drift import DriftBench, LogsFile, read_logs, read_reference
from sqale_edge.benchmarks.drift.distributions import log_softmax
from sqale_edge.benchmarks.reference_vllm import ReferenceWriter
from sqale_edge.convert import convert_checkpoint

from sqale_edge import EngineSettings
from sqale_edge.errors import BenchmarkError
from sqale_edge.llama.logits import digest_vocabulary


def damage(folder, part, change, *, is_told=True):
    """Change an array of the first log, and with `is_told` its digest, too, as a faulty program would write it."""
    path = folder / f"00000.{part}.npy"
    np.save(path, change(np.load(path)))
    if is_told:
        entry = json.loads((folder / "00000.json").read_text())
        entry["sha256"][part] = reference_vllm.digest_file(path)
        (folder / "00000.json").write_text(json.dumps(entry))


def read_all(folder, logs):
    file = read_logs(logs)
    reference = read_reference(folder, file.head)
    for log in file.logs.values():
        opened = reference.open_log(log)
        yield opened.read(0, len(log.tokens) - 1), log


def test_rows_are_read_as_they_were_written(fp32, logs):
    """All logprobs in float32, a row for each token but the first, and those of the tokens that came."""
    for known, log in read_all(fp32, logs):
        assert known.ids is None
        assert known.logprobs.shape[0] == len(log.tokens) - 1
        assert np.exp(known.logprobs.astype(float)).sum(axis=1) == pytest.approx(1, abs=1e-4)
        assert known.actual.tolist() == [known.logprobs[row, token] for row, token in enumerate(log.tokens[1:])]


def test_the_likeliest_are_kept(fp32, demo_files, logs, make_reference, tmp_path):
    """With `top_k` they are the largest ones, falling, each with its id; the token that came is kept beside them."""
    folder = make_reference(tmp_path / "top", demo_files["F32"], top_k=10)
    for (known, log), (whole, _) in zip(read_all(folder, logs), read_all(fp32, logs), strict=True):
        assert known.logprobs.shape == (len(log.tokens) - 1, 10)
        assert (known.logprobs == -np.sort(-whole.logprobs, axis=1)[:, :10]).all()
        assert (np.take_along_axis(whole.logprobs, known.ids, axis=1) == known.logprobs).all()
        assert (known.actual == whole.actual).all()


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("logprobs", lambda rows: np.roll(rows, 1, axis=0), "shifted"),
        ("actual", lambda rows: np.roll(rows, 1), "shifted"),
        ("logprobs", lambda rows: rows[:, ::-1], "shifted"),
        ("logprobs", lambda rows: rows[:-1], "positions are missing"),
        ("actual", lambda rows: rows[1:], "positions are missing"),
        ("logprobs", lambda rows: rows[:, :-1], "positions are missing"),
        ("tokens", lambda tokens: tokens + 1, "not those of the log"),
        ("tokens", lambda tokens: tokens[:-1], "not those of the log"),
        ("logprobs", lambda rows: rows * np.nan, "no logprob"),
        ("logprobs", lambda rows: rows + 0.01, "no logprob"),
        ("logprobs", lambda rows: np.minimum(rows + 0.01, 0), "add up to 1.0"),
        ("logprobs", lambda rows: rows - 0.01, "add up to 0.99"),
    ],
)
def test_rows_that_do_not_belong_to_the_log_are_errors(fp32_copy, logs, part, change, message):
    """Moved, re-ordered, missing, of other tokens, or no distributions at all."""
    damage(fp32_copy, part, change)
    with pytest.raises((BenchmarkError, ValueError), match=message):
        list(read_all(fp32_copy, logs))


def test_a_damaged_array_is_an_error(fp32_copy, logs):
    """Its digest is another."""
    damage(fp32_copy, "logprobs", lambda rows: rows + 1e-5, is_told=False)
    with pytest.raises(BenchmarkError, match="digest"):
        list(read_all(fp32_copy, logs))


@pytest.mark.parametrize("key", ["n_vocab", "vocabulary_sha256"])
def test_another_vocabulary_is_an_error(fp32_copy, logs, key):
    """Ids would mean other tokens."""
    head = json.loads((fp32_copy / "reference.json").read_text())
    (fp32_copy / "reference.json").write_text(json.dumps(head | {key: 1}))
    with pytest.raises(BenchmarkError, match="another vocabulary"):
        list(read_all(fp32_copy, logs))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"form": "another"}', pytest.param("[" * 100_000, id="nested")])
def test_what_is_no_reference_is_an_error(tmp_path, logs, text):
    """Also a folder without one."""
    head = read_logs(logs).head
    with pytest.raises(BenchmarkError):
        read_reference(tmp_path, head)
    (tmp_path / "reference.json").write_text(text)
    with pytest.raises(BenchmarkError, match="no folder of reference outputs"):
        read_reference(tmp_path, head)


def test_a_log_that_is_not_there_is_an_error(fp32_copy, logs):
    """A reference that was stopped half way is no reference on the other half."""
    (fp32_copy / "00001.json").unlink()
    with pytest.raises(BenchmarkError, match="has nothing about"):
        list(read_all(fp32_copy, logs))


def test_the_writer_goes_on_and_takes_no_other(fp32_copy, logs):
    """Whole logs are kept; another log, another engine, rows that are missing or out of order are refused."""
    head = json.loads((fp32_copy / "reference.json").read_text())
    tokens = [list(log.tokens) for log in read_logs(logs).logs.values()]
    writer = ReferenceWriter(fp32_copy, head)
    assert writer.has(0, tokens[0])
    assert not writer.has(2, tokens[0])
    with pytest.raises(ValueError, match="another log"):
        writer.has(0, tokens[1])
    with pytest.raises(ValueError, match="another reference: engine"):
        ReferenceWriter(fp32_copy, head | {"engine": "vllm"})
    block = np.full((3, head["n_vocab"]), -np.log(head["n_vocab"]), np.float32)
    with pytest.raises(ValueError, match="0 rows in place of 3"):
        writer.add(2, "x", [1, 2, 3, 4], lambda put: None)
    with pytest.raises(ValueError, match="came behind row 0"):
        writer.add(2, "x", [1, 2, 3, 4], lambda put: put(1, 4, block))
    assert not writer.has(2, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("wanted", "n_vocab", "kept"),
    [("auto", 640, None), ("auto", 248_320, 1_000), ("all", 248_320, None), ("20", 640, 20), ("5000", 640, 640)],
)
def test_how_many_logprobs_are_kept(wanted, n_vocab, kept):
    """All of a small vocabulary, a thousand of a large one, or what was asked for, as far as there are so many."""
    assert reference_vllm.choose_top_k(wanted, n_vocab) == kept


def test_the_script_runs_without_this_package(logs, demo_checkpoint, qwen_gguf, tmp_path):
    """Logs of another vocabulary are refused before an engine is loaded; it imports nothing of ours."""
    code = f"""
import runpy, sys
sys.path[1:1] = {[part for part in sys.path if part]!r}
sys.modules["sqale_edge"] = sys.modules["llama_cpp"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    other = qwen_gguf.parent / "checkpoint"
    command = [sys.executable, "-P", "-c", code, reference_vllm.__file__, str(logs), str(other)]
    done = subprocess.run([*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another vocabulary" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_transformers_computed_is_near(logs, tmp_path):
    """FP32 logits that transformers gave for a random checkpoint, in this form: BF16 in llama.cpp drifts little."""
    fixtures = Path(__file__).parents[1] / "fixtures"
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **SHAPES["multimodal"])
    convert_checkpoint(checkpoint, tmp_path / "bf16.gguf", quant="BF16")
    with np.load(fixtures / "convert_logits.npz") as stored:
        rows = log_softmax(stored["multimodal"][:-1]).astype(np.float32)
    vocabulary_sha256, n_vocab = digest_vocabulary(tmp_path / "bf16.gguf")
    file = read_logs(logs)
    head = dataclasses.replace(file.head, n_vocab=n_vocab, vocabulary_sha256=vocabulary_sha256)
    some = next(iter(file.logs.values()))
    log = dataclasses.replace(some, tokens=tuple(REFERENCE_TOKENS), kinds=("sql",) * len(REFERENCE_TOKENS))
    with LogsFile(tmp_path / "logs.jsonl", head) as writer:
        writer.add(log)
    about = {
        "form": reference_vllm.FORM,
        "engine": "transformers",
        "dtype": "float32",
        "versions": {},
        "machine": {"cpu": "another"},
        "model": reference_vllm.describe_checkpoint(checkpoint),
        "n_vocab": n_vocab,
        "vocabulary_sha256": reference_vllm.digest_vocabulary(checkpoint),
        "top_k": None,
    }
    ReferenceWriter(tmp_path / "fp32", about).add(0, log.id, log.tokens, lambda put: put(0, len(rows), rows))
    settings = EngineSettings(threads=1, threads_batch=1)
    bench = DriftBench(
        tmp_path / "logs.jsonl", tmp_path / "bf16.gguf", references=[tmp_path / "fp32"], settings=settings
    )
    (document,) = [step for step in bench.run() if isinstance(step, dict)]
    assert 0 < document["against"]["transformers FP32"]["written"]["kl"]["mean"] < 1e-3
