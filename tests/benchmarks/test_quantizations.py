"""Recipes and file types side by side, on a small model."""

import dataclasses
import json

import pytest
from sqale_edge.benchmarks.quantizations import Comparison, compare_quantizations, main, write_table

from sqale_edge.errors import BenchmarkError, ConversionError
from sqale_edge.models import find_model
from sqale_edge.testing import make_shop


@pytest.fixture
def comparison(qwen_gguf, tmp_path):
    """Two files, nothing that takes time."""
    return Comparison(source=qwen_gguf, folder=tmp_path / "made", quants=("Q8_0",), speed=False, threads=1)


def run(comparison):
    *steps, document = compare_quantizations(comparison)
    return steps, document


def test_each_file_is_made_once_and_described(comparison, qwen_gguf):
    """Sizes and digests of the source, the types and the recipes; a second run does nothing, and says the same."""
    steps, document = run(comparison)
    assert steps == [
        "q4-fast: left out: it needs an importance matrix",
        "q4-imatrix: left out: it needs an importance matrix",
        "source: file",
        "Q8_0: file",
        "q4-protected: file",
    ]
    rows = {row["label"]: row for row in document["rows"]}
    assert rows["source"]["file_bytes"] == qwen_gguf.stat().st_size
    assert rows["Q8_0"]["bits_per_weight"] == pytest.approx(8.5, abs=0.2)
    assert rows["source"]["bits_per_weight"] > rows["Q8_0"]["bits_per_weight"] > rows["q4-protected"]["bits_per_weight"]
    again, same = run(comparison)
    assert [step for step in again if "left out" not in step] == []
    assert same["rows"] == document["rows"]
    table = write_table(document)
    assert "| q4-protected |" in table
    assert document["source_sha256"] in table


def test_what_is_missing_is_done_and_nothing_else(comparison):
    """After a kill that tore the last line, after a file was deleted, and after it was replaced."""
    _, document = run(comparison)
    results = comparison.folder / "quantizations.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    steps, after = run(comparison)
    assert [step for step in steps if "left out" not in step] == ["q4-protected: file"]
    (comparison.folder / f"{comparison.source.stem}-Q8_0.gguf").unlink()
    steps, last = run(comparison)
    assert [step for step in steps if "left out" not in step] == ["Q8_0: file"]
    (comparison.folder / f"{comparison.source.stem}-Q8_0.gguf").write_bytes(b"something else")
    steps, _ = run(comparison)
    assert [step for step in steps if "left out" not in step] == ["Q8_0: file"]
    for other in (after, last):
        assert [row["sha256"] for row in other["rows"]] == [row["sha256"] for row in document["rows"]]


def test_files_take_turns_in_rounds_of_speed(comparison):
    """Each round measures every file once; the table has the medians, and a second run measures nothing again."""
    comparison = dataclasses.replace(comparison, recipes=("q4-protected",), speed=True)
    steps, document = run(comparison)
    labels = ("source", "Q8_0", "q4-protected")
    assert steps == [f"{label}: file" for label in labels] + [
        f"{label}: speed, round {number} of 3" for number in (1, 2, 3) for label in labels
    ]
    for row in document["rows"]:
        for name in ("prefill_tok_per_s", "decode_tok_per_s"):
            assert len(row["speed_rounds"][name]) == 3
            assert row[name] == sorted(row["speed_rounds"][name])[1] > 0
    assert run(comparison)[0] == []
    assert "| decode tok/s |" in write_table(document)


def test_drift_is_measured_on_token_logs(demo_files, logs, tmp_path):
    """Held against the source: a little at Q8_0, more at Q4_0."""
    source = demo_files["BF16"]
    comparison = Comparison(
        source=source, folder=tmp_path / "made", quants=("Q8_0", "Q4_0"), speed=False, threads=1, logs=logs
    )
    _, document = run(comparison)
    rows = {row["label"]: row for row in document["rows"]}
    assert "kl_written" not in rows["source"]
    assert 0 < rows["Q8_0"]["kl_all"] < rows["Q4_0"]["kl_all"]
    assert rows["Q8_0"]["same_top_token"] >= rows["Q4_0"]["same_top_token"] > 0.5
    assert "| KL of all |" in write_table(document)


def test_accuracy_is_that_of_asking(tmp_path):
    """The demo model, unquantized and at Q8_0, on a question that it can answer."""
    shop = make_shop(tmp_path / "shop.sqlite")
    record = {"id": "1", "db": shop.name, "question": "How many customers are there?"}
    record["sql"] = "SELECT count(*) FROM customers"
    (tmp_path / "questions.jsonl").write_text(json.dumps(record) + "\n")
    comparison = Comparison(
        source=find_model("demo").path,
        folder=tmp_path / "made",
        quants=(),
        recipes=("q4-protected",),
        questions=tmp_path / "questions.jsonl",
        speed=False,
        threads=1,
    )
    _, document = run(comparison)
    for row in document["rows"]:
        assert row["n_scorable"] == 1
        assert row["accuracy"] in (0, 1)


def test_results_of_another_model_are_not_mixed(comparison, tmp_path):
    """Another source in the same folder is an error, and so is a folder with something else in it."""
    run(comparison)
    other = Comparison(source=find_model("demo").path, folder=comparison.folder, quants=("Q8_0",), speed=False)
    with pytest.raises(BenchmarkError, match="is about another model"):
        list(compare_quantizations(other))
    (comparison.folder / "quantizations.jsonl").write_text("nonsense\n")
    with pytest.raises(BenchmarkError, match="is damaged"):
        list(compare_quantizations(comparison))
    with pytest.raises(ConversionError, match="missing"):
        list(compare_quantizations(Comparison(source=tmp_path / "missing.gguf", folder=tmp_path)))


def test_the_command_prints_the_table(qwen_gguf, tmp_path, capsys):
    """stdout has the table or one JSON document, stderr what is being done; an error is one line."""
    options = [str(qwen_gguf), "--folder", str(tmp_path / "made"), "--quant", "Q8_0", "--recipe", "q4-protected"]
    options += ["--no-speed", "--threads", "1"]
    assert main(options) == 0
    out, err = capsys.readouterr()
    assert out.startswith("| | MB | bits a weight | quantized in s |\n|---|---|---|---|\n| source |")
    assert "Q8_0: file" in err
    assert main([*options, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3
    assert main([*options, "--imatrix", str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err.startswith("Error: the importance matrix 'missing' cannot be used")
