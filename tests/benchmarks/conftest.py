"""The demo model's files and a few of its episodes as token logs, made once a run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from sqale_edge.benchmarks import read_questions
from sqale_edge.benchmarks.drift import LogsFile, describe_recording, read_logs, record_logs
from sqale_edge.benchmarks.reference_vllm import FORM, ReferenceWriter, describe_checkpoint
from sqale_edge.convert import convert_checkpoint

from sqale_edge import Agent, EngineSettings
from sqale_edge.llama.logits import LogitsModel
from sqale_edge.models import find_model
from sqale_edge.sample_shop import write_sample_shop

sys.path.append(str(Path(__file__).parents[2] / "demo"))

SETTINGS = EngineSettings(n_ctx=4_096, threads=1, threads_batch=1)
QUESTIONS = ("How many customers are there?", "List the names of the customers with city Lille.")


@pytest.fixture(scope="session")
def demo_settings():
    return SETTINGS


@pytest.fixture(scope="session")
def drift_folder(tmp_path_factory):
    """A folder with two questions about the shop."""
    folder = tmp_path_factory.mktemp("drift")
    write_sample_shop(folder / "shop.sqlite")
    lines = [{"id": f"q{n}", "db": "shop.sqlite", "question": text} for n, text in enumerate(QUESTIONS)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def demo_checkpoint(drift_folder):
    """The demo model as a Hugging Face folder."""
    from restore import restore_folder

    restore_folder(find_model("demo").path, drift_folder / "checkpoint")
    return drift_folder / "checkpoint"


@pytest.fixture(scope="session")
def demo_files(demo_checkpoint, drift_folder):
    """The demo model in several file types, by their names."""
    quants = ("BF16", "F32", "Q8_0", "Q4_0")
    convert_checkpoint(demo_checkpoint, drift_folder / "{quant}.gguf", quant=quants)
    return {quant: drift_folder / f"{quant}.gguf" for quant in quants}


@pytest.fixture(scope="session")
def record(drift_folder):
    """Records the questions' logs with a model."""

    def record_with(model, path):
        questions = read_questions(drift_folder / "questions.jsonl")
        with Agent.load(model, settings=SETTINGS) as agent:
            head = describe_recording(agent, Path(model), questions, settings=SETTINGS, seed=0)
            with LogsFile(path, head) as file:
                list(record_logs(agent, questions, file, seed=0))
        return path

    return record_with


@pytest.fixture(scope="session")
def logs(demo_files, drift_folder, record):
    """The file of the BF16 model's logs."""
    return record(demo_files["BF16"], drift_folder / "logs.jsonl")


@pytest.fixture(scope="session")
def make_reference(demo_checkpoint, logs):
    """Writes a folder of reference outputs that llama.cpp itself computes with a file, as if another engine had."""

    def make(folder, model, *, engine="transformers", dtype="float32", top_k=None, change=lambda rows: rows):
        file = read_logs(logs)
        head = {
            "form": FORM,
            "engine": engine,
            "dtype": dtype,
            "versions": {"python": "3"},
            "machine": {"cpu": "this one", "system": "this one"},
            "model": describe_checkpoint(demo_checkpoint),
            "n_vocab": file.head.n_vocab,
            "vocabulary_sha256": file.head.vocabulary_sha256,
            "top_k": top_k,
        }
        writer = ReferenceWriter(folder, head)
        with LogitsModel(model, SETTINGS) as loaded:
            for number, log in enumerate(file.logs.values()):
                logits = np.concatenate(list(loaded.evaluate(log.tokens[:-1]))).astype(np.float64)
                logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
                rows = change(logits.astype(np.float32))
                writer.add(number, log.id, log.tokens, lambda put, rows=rows: put(0, len(rows), rows))
        return folder

    return make


@pytest.fixture(scope="session")
def fp32(demo_files, drift_folder, make_reference):
    """What stands in for transformers: all logprobs of the F32 file."""
    return make_reference(drift_folder / "fp32", demo_files["F32"])


@pytest.fixture
def fp32_copy(fp32, tmp_path):
    """One that may be damaged."""
    shutil.copytree(fp32, tmp_path / "copy")
    return tmp_path / "copy"
