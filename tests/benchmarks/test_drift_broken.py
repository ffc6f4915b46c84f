"""A model that computes something else stands out in engine drift, far above what rounding does."""

import json
import shutil
import struct

import numpy as np
import pytest
from sqale_edge.benchmarks.drift import DriftBench
from sqale_edge.convert import convert_checkpoint

HEAD = 256  # numbers of an attention head of the demo model; its query projection has as many for the gate


def edit_tensor(folder, name, change):
    """Change a tensor of a checkpoint in one file, in its BF16 bits, which keep their shape."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (n_header,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + n_header])[name]
    start, end = (8 + n_header + offset for offset in entry["data_offsets"])
    array = np.frombuffer(bytes(data[start:end]), np.uint16).reshape(entry["shape"])
    data[start:end] = np.ascontiguousarray(change(array)).tobytes()
    path.write_bytes(data)


def change_rope_theta(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 100
    (folder / "config.json").write_text(json.dumps(config))


def zero_a_layer(folder):
    for name in ("linear_attn.out_proj", "mlp.down_proj"):
        edit_tensor(folder, f"model.layers.2.{name}.weight", np.zeros_like)


def swap_heads(folder):
    """The two query heads of an attention layer, with their gates; what they are added up with stays."""
    name = "model.layers.3.self_attn.q_proj.weight"
    edit_tensor(folder, name, lambda array: np.roll(array, 2 * HEAD, axis=0))


@pytest.fixture(scope="module")
def drift(demo_settings, logs, fp32):
    """Mean KL of a file's written tokens against the reference of the right model."""

    def measure(path):
        bench = DriftBench(logs, path, [], [fp32], settings=demo_settings)
        (document,) = [step for step in bench.run() if isinstance(step, dict)]
        return document["against"]["transformers FP32"]["written"]

    return measure


@pytest.fixture(scope="module")
def sound(drift, demo_files):
    return drift(demo_files["BF16"])


@pytest.mark.parametrize("break_it", [change_rope_theta, zero_a_layer, swap_heads])
def test_a_broken_model_stands_out(break_it, drift, sound, demo_checkpoint, tmp_path):
    """More than twenty times as far away as the sound one, and seldom of the same mind where that counts."""
    shutil.copytree(demo_checkpoint, tmp_path / "broken")
    break_it(tmp_path / "broken")
    convert_checkpoint(tmp_path / "broken", tmp_path / "broken.gguf", quant="BF16")
    broken = drift(tmp_path / "broken.gguf")
    assert broken["kl"]["mean"] > 20 * sound["kl"]["mean"]
    assert broken["top1_agreement"] < sound["top1_agreement"]


def test_a_sound_model_does_not(sound):
    """What BF16 rounds away is small."""
    assert sound["kl"]["mean"] < 0.005
    assert sound["top1_agreement"] > 0.98
