"""`convert_checkpoint`: what comes out is right, and nothing else is left."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from checkpoints import CHAT_TEMPLATE, N_VOCAB, REFERENCE_TOKENS, SHAPES, write_checkpoint
from sqale_edge.convert import convert_checkpoint, verify_file
from sqale_edge.convert.gguf_file import GgufFile

from sqale_edge.errors import ConversionError, QuantizationError

LOGITS = Path(__file__).parents[1] / "fixtures" / "convert_logits.npz"
# Measured: F32 2e-11, F16 8e-6, BF16 6e-4, Q8_0 0.015. llama.cpp rounds activations to the weights' type, and random
# weights amplify that more than trained ones.
KL_BOUNDS = {"F32": 1e-9, "F16": 1e-4, "BF16": 2e-3, "Q8_0": 0.04}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("source") / "shop-agent")


@pytest.fixture(scope="module")
def converted(checkpoint, tmp_path_factory):
    """BF16, Q8_0 and Q4_K_M out of one run."""
    return convert_checkpoint(checkpoint, tmp_path_factory.mktemp("out"), ["BF16", "Q8_0", "Q4_K_M"])


def compute_logits(path: Path) -> np.ndarray:
    """(T, V) float32 at every position, with nothing but the weights rounded."""
    model = llama_cpp.Llama(
        str(path), n_ctx=64, logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False, n_gpu_layers=0
    )
    model.eval(REFERENCE_TOKENS)
    logits = np.array(model.scores[: len(REFERENCE_TOKENS)])
    model.close()
    return logits


def kl_divergence(reference: np.ndarray, logits: np.ndarray) -> float:
    """Mean over positions, in nats."""

    def log_softmax(values: np.ndarray) -> np.ndarray:
        values = values.astype(np.float64) - values.max(-1, keepdims=True)
        return values - np.log(np.exp(values).sum(-1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("quant", KL_BOUNDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_agree_with_transformers_fp32(tmp_path, shape, quant):
    """A converted checkpoint computes what transformers computes in FP32, as closely as its file type can."""
    source = write_checkpoint(tmp_path / shape, **SHAPES[shape])
    convert_checkpoint(source, tmp_path / "model.gguf", quant)
    logits, reference = compute_logits(tmp_path / "model.gguf"), np.load(LOGITS)[shape]
    assert kl_divergence(reference, logits) <= KL_BOUNDS[quant]
    if quant in ("F32", "F16"):
        assert (logits.argmax(-1) == reference.argmax(-1)).all()


def test_several_types_come_from_one_run(converted):
    """Each type is one verified file, named after the model and the type."""
    assert [file.path.name for file in converted.files] == [
        f"shop-agent-{quant}.gguf" for quant in ("BF16", "Q8_0", "Q4_K_M")
    ]
    for file in converted.files:
        assert verify_file(file.path) == file.verification
        assert file.verification.n_vocab == N_VOCAB
    folder = converted.files[0].path.parent
    assert sorted(folder.iterdir()) == sorted(file.path for file in converted.files)


@pytest.mark.parametrize(("index", "code"), [(1, 7), (2, 15)])
def test_quantized_tensors_equal_those_of_the_plain_quantizer(converted, tmp_path, index, code):
    """The bounded buffer changes nothing: every tensor is that of llama.cpp's quantizer with its defaults."""
    plain = tmp_path / "plain.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = code
    assert not llama_cpp.llama_model_quantize(
        os.fsencode(converted.files[0].path), os.fsencode(plain), ctypes.byref(params)
    )
    assert read_tensors(converted.files[index].path) == read_tensors(plain)


def read_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    content = path.read_bytes()
    return {
        name: (tensor.type, tensor.shape, content[tensor.offset : tensor.offset + tensor.n_bytes])
        for name, tensor in GgufFile.read(path).tensors.items()
    }


def test_shards_names_and_order_do_not_matter(tmp_path):
    """The same weights in one file or in shards, under multimodal or plain names, give the same tensors."""
    results = []
    for number, (n_shards, is_multimodal) in enumerate([(1, True), (3, True), (1, False), (2, False)]):
        source = write_checkpoint(tmp_path / "same", n_shards=n_shards, is_multimodal=is_multimodal)
        results.append(tmp_path / f"{number}.gguf")
        convert_checkpoint(source, results[-1], "BF16")
        shutil.rmtree(source)
    first, *others = map(read_tensors, results)
    assert all(other == first for other in others)


def test_the_metadata_says_what_the_model_is(converted):
    """Architecture, shape, sampling defaults, chat template and name are where the runtime looks for them."""
    fields = GgufFile.read(converted.files[0].path).fields
    assert fields["general.architecture"] == "qwen35"
    assert fields["general.name"] == "shop-agent"
    assert fields["general.file_type"] == 32
    assert fields["general.size_label"] == "1.5M"
    assert fields["qwen35.block_count"] == 4  # the config claims an MTP layer, which the file does not have
    assert fields["qwen35.attention.recurrent_layers"] == [True, True, True, False]
    assert fields["qwen35.rope.dimension_sections"] == [3, 3, 2, 0]
    assert fields["qwen35.ssm.inner_size"] == 128
    assert fields["general.sampling.temp"] == pytest.approx(0.6)
    assert fields["general.sampling.top_k"] == 20
    assert fields["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert fields["tokenizer.ggml.pre"] == "qwen35"


def test_quantized_files_keep_all_metadata(converted):
    """Only the file type differs between the files of one run."""
    first, *others = (GgufFile.read(file.path).fields for file in converted.files)
    for other in others:
        assert {key for key in first | other if first.get(key) != other.get(key)} == {"general.file_type"}


def test_the_cache_layout_names_repository_and_revision(checkpoint, tmp_path):
    """A folder of the Hugging Face cache tells where the model comes from; its files are symbolic links."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--trl-lab--qwen3.5-2b-grpo-sqale" / "snapshots" / revision
    folder.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    report = convert_checkpoint(folder, tmp_path / "model.gguf", "BF16")
    fields = GgufFile.read(tmp_path / "model.gguf").fields
    assert report.name == fields["general.name"] == "qwen3.5-2b-grpo-sqale"
    assert report.repository == fields["sqale.source.repository"] == "trl-lab/qwen3.5-2b-grpo-sqale"
    assert report.revision == fields["sqale.source.revision"] == revision


def test_given_names_win(checkpoint, tmp_path):
    """Name, repository and revision can be given."""
    report = convert_checkpoint(
        checkpoint, tmp_path / "m.gguf", "BF16", name="My agent", repository="me/agent", revision="v2"
    )
    assert (report.name, report.repository, report.revision) == ("My agent", "me/agent", "v2")


def test_f16_holds_what_bf16_holds(checkpoint, tmp_path):
    """F16 is written from the checkpoint itself, and equals the BF16 values where both can hold them."""
    convert_checkpoint(checkpoint, tmp_path, ["F16", "F32"])
    f16, f32 = (read_tensors(tmp_path / f"shop-agent-{quant}.gguf") for quant in ("F16", "F32"))
    name = "blk.0.ffn_up.weight"
    assert f16[name][0] == "F16"
    expected = np.frombuffer(f32[name][2], np.float32).astype(np.float16)
    assert np.array_equal(np.frombuffer(f16[name][2], np.float16), expected)


def test_a_value_that_f16_cannot_hold_is_an_error(tmp_path):
    """Overflow to infinity is refused, not written."""
    source = write_checkpoint(tmp_path / "model", dtype="F32")
    with (source / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(1e30).tobytes())
    convert_checkpoint(source, tmp_path / "ok.gguf", "F16")  # the last tensor is of the vision tower
    header = source / "model.safetensors"
    start = 8 + int.from_bytes(header.read_bytes()[:8], "little")
    with header.open("r+b") as file:
        file.seek(start)
        file.write(np.float32(1e30).tobytes())
    with pytest.raises(ConversionError, match="too large for F16"):
        convert_checkpoint(source, tmp_path / "model.gguf", "F16")
    convert_checkpoint(source, tmp_path / "model.gguf", "BF16")


def test_progress_reaches_the_end_of_every_step(checkpoint, tmp_path):
    """Each step reports from nothing to its total."""
    seen: dict[tuple[str, str], list[tuple[int, int]]] = {}
    convert_checkpoint(
        checkpoint,
        tmp_path / "m.gguf",
        "Q8_0",
        on_progress=lambda p: seen.setdefault((p.step, p.file), []).append((p.n_done, p.n_total)),
    )
    assert [step for step, _ in seen] == ["write", "quantize", "verify"]
    for reports in seen.values():
        done = [n_done for n_done, _ in reports]
        assert done == sorted(done)
        assert reports[-1][0] == reports[-1][1]


def test_what_progress_raises_stops_the_conversion(checkpoint, tmp_path):
    """A callback can stop the conversion at any step; nothing is left."""
    for step in ("write", "quantize", "verify"):

        def stop(progress, step=step):
            if progress.step == step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert_checkpoint(checkpoint, tmp_path / "m.gguf", "Q4_0", on_progress=stop)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "quant", "message"),
    [
        ("there.gguf", "BF16", "exists already"),
        ("model.bin", "BF16", r"does not end in \.gguf"),
        ("missing/model.gguf", "BF16", "does not exist"),
        ("model.gguf", ["BF16", "Q8_0"], "cannot all go to"),
        ("model.gguf", "Q9_Z", "is not a file type"),
        ("model.gguf", "IQ2_XS", "importance matrix"),
        ("model.gguf", [], "no file type"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_writing(checkpoint, tmp_path, target, quant, message):
    """Existing files, unknown types and impossible places are errors, and the folder stays as it was."""
    (tmp_path / "there.gguf").write_text("precious")
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(checkpoint, tmp_path / target, quant)
    assert [file.name for file in tmp_path.iterdir()] == ["there.gguf"]
    assert (tmp_path / "there.gguf").read_text() == "precious"


def test_a_folder_that_is_missing_is_made(checkpoint, tmp_path):
    """Several types go into it by name; it is gone again if the conversion fails."""

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(checkpoint, tmp_path / "models", ["BF16", "Q8_0"], on_progress=stop)
    assert list(tmp_path.iterdir()) == []
    report = convert_checkpoint(checkpoint, tmp_path / "models", ["BF16", "Q8_0"])
    assert [file.path.parent for file in report.files] == [tmp_path / "models"] * 2
    assert sorted(path.suffix for path in (tmp_path / "models").iterdir()) == [".gguf", ".gguf"]


def test_overwriting_replaces_a_link_and_not_what_it_points_to(checkpoint, tmp_path):
    """A symbolic link at the target's place becomes the file; the other end is untouched."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "m.gguf").symlink_to(tmp_path / "precious")
    with pytest.raises(ConversionError, match="exists already"):
        convert_checkpoint(checkpoint, tmp_path / "m.gguf", "BF16")
    convert_checkpoint(checkpoint, tmp_path / "m.gguf", "BF16", overwrite=True)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "m.gguf").is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.gguf", "precious"]


def test_a_target_may_have_the_name_of_another_type(checkpoint, tmp_path):
    """`BF16.gguf` holding Q8_0 is odd, but it is what was asked for."""
    report = convert_checkpoint(checkpoint, tmp_path / "BF16.gguf", "Q8_0")
    assert "Q8_0" in report.files[0].verification.types
    assert [file.name for file in tmp_path.iterdir()] == ["BF16.gguf"]


def test_types_are_named_in_any_case(checkpoint, tmp_path):
    """`q8_0` is Q8_0."""
    report = convert_checkpoint(checkpoint, tmp_path / "m-{quant}.gguf", "q8_0")
    assert report.files[0].path.name == "m-Q8_0.gguf"


def test_verify_refuses_a_damaged_file(converted, tmp_path):
    """A truncated file, one with NaN weights and one that is no GGUF are errors of one line."""
    whole = converted.files[1].path.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    nan = bytearray(whole)
    info = GgufFile.read(converted.files[1].path).tensors["token_embd.weight"]
    nan[info.offset : info.offset + info.n_bytes] = b"\x00\x7e" * (info.n_bytes // 2)  # every scale is NaN
    for content in (whole[:-1000], whole[:100], b"", b"not a model" * 10, bytes(nan)):
        damaged.write_bytes(content)
        with pytest.raises(ConversionError) as caught:
            verify_file(damaged)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConversionError, match="cannot be read"):
        verify_file(tmp_path / "missing.gguf")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux")
def test_the_quantizer_reports_a_full_disk(converted):
    """A disk that fills up while quantizing is an error, not a crash."""
    from sqale_edge.llama.worker import run_in_child

    with pytest.raises(QuantizationError, match="could not be quantized"):
        run_in_child("quantize", str(converted.files[0].path), "/dev/full", "Q8_0", None)
