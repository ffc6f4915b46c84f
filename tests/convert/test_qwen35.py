"""Names, shapes and array changes of Qwen3.5."""

import json

import numpy as np
import pytest
from checkpoints import write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from sqale_edge.convert.checkpoint import Checkpoint
from sqale_edge.convert.qwen35 import add_one, plan_tensors, tile_value_heads, to_decay
from sqale_edge.convert.qwen35_config import Qwen35Config
from sqale_edge.convert.writer import convert_tensor

from sqale_edge.errors import CheckpointError, TensorShapeError, UnsupportedArchitectureError

HEADS = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 8))


@given(HEADS)
def test_tiling_follows_its_plain_definition(heads):
    """Row r of value head v of key head k moves from the k-th group of value heads to the v-th round of key heads."""
    n_key, n_each, width = heads
    order = tile_value_heads(n_key, n_key * n_each, width)
    for k in range(n_key):
        for v in range(n_each):
            for r in range(width):
                assert order[(v * n_key + k) * width + r] == (k * n_each + v) * width + r


@given(HEADS)
def test_tiling_and_its_inverse_are_the_identity(heads):
    """Regrouping loses and repeats nothing; equal counts stay as they are."""
    n_key, n_each, width = heads
    order = tile_value_heads(n_key, n_key * n_each, width)
    rows = np.arange(len(order))
    assert (rows[order][np.argsort(order)] == rows).all()
    if n_each == 1:
        assert (order == rows).all()


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=50))
def test_decay_is_minus_exp_correctly_rounded(values):
    """`-exp(A_log)` is the float32 nearest to the exact value."""
    decay = to_decay(np.array(values, np.float32))
    assert decay.dtype == np.float32
    assert (decay == np.array([-np.exp(np.float64(value)) for value in values]).astype(np.float32)).all()


def test_norms_get_one_added_in_float32():
    """The sum is made in float32, whatever the checkpoint's type."""
    weight = np.array([0.0, -1.0, 1e-8, 3.5], np.float32)
    assert add_one(weight).tolist() == [1.0, 0.0, 1.0, 4.5]
    assert add_one(weight).dtype == np.float32


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = write_checkpoint(
        tmp_path_factory.mktemp("c") / "m", key_heads=2, value_heads=6, linear_head_dim=4, dtype="F32"
    )
    checkpoint = Checkpoint.open(folder)
    return checkpoint, Qwen35Config.from_json(checkpoint.config, folder)


def convert(opened, name):
    """The stored array and the converted one, FP32."""
    checkpoint, config = opened
    plan = next(plan for plan in plan_tensors(config, checkpoint.tensors, checkpoint.folder)[0] if plan.name == name)
    return np.array(plan.source.map()), np.concatenate(list(convert_tensor(plan, "F32")))


def tile(values, n_key=2, n_value=6):
    """The plain definition, on an array whose first axis is value heads by rows."""
    heads = values.reshape(n_key, n_value // n_key, -1, *values.shape[1:])
    return np.concatenate([heads[k, v] for v in range(n_value // n_key) for k in range(n_key)])


def test_queries_and_keys_stay_and_values_move(opened):
    """In the joint projection and in the convolution only the value rows are regrouped."""
    n_qk = 2 * 2 * 4
    stored, converted = convert(opened, "blk.0.attn_qkv.weight")
    assert (converted == np.concatenate([stored[:n_qk], tile(stored[n_qk:])])).all()
    stored, converted = convert(opened, "blk.0.ssm_conv1d.weight")
    assert (converted == np.concatenate([stored[:n_qk, 0], tile(stored[n_qk:, 0])])).all()


@pytest.mark.parametrize("name", ["attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"])
def test_rows_by_value_head_are_regrouped(opened, name):
    """Gate, alpha, beta and the time step's bias follow their heads."""
    stored, converted = convert(opened, f"blk.0.{name}")
    assert (converted == tile(stored)).all()


def test_the_output_projection_is_regrouped_by_column(opened):
    """What the value heads write is read in their new order."""
    stored, converted = convert(opened, "blk.0.ssm_out.weight")
    assert (converted == tile(stored.T).T).all()


def test_decay_is_regrouped_too(opened):
    """`ssm_a` is `-exp(A_log)` in the new order of heads."""
    stored, converted = convert(opened, "blk.0.ssm_a")
    assert (converted == to_decay(tile(stored))).all()


def test_only_zero_centred_norms_change(opened):
    """All norms get one added but DeltaNet's own, whose weight is the factor already."""
    for name in (
        "blk.0.attn_norm",
        "blk.0.post_attention_norm",
        "blk.3.attn_q_norm",
        "blk.3.attn_k_norm",
        "output_norm",
    ):
        stored, converted = convert(opened, f"{name}.weight")
        assert (converted == stored + np.float32(1)).all()
    stored, converted = convert(opened, "blk.0.ssm_norm.weight")
    assert (converted == stored).all()


def test_all_else_is_untouched(opened):
    """Feed-forward, attention and embedding keep every value in its place."""
    for name in ("token_embd", "blk.0.ffn_up", "blk.3.ffn_down", "blk.3.attn_q", "blk.3.attn_k", "blk.3.attn_output"):
        stored, converted = convert(opened, f"{name}.weight")
        assert (converted == stored).all()


# (what is changed in the language model's config, the error, a part of its message)
BAD_CONFIGS = [
    ({"hidden_size": None}, CheckpointError, "no hidden_size"),
    ({"hidden_size": "256"}, CheckpointError, "hidden_size '256'"),
    ({"hidden_size": 0}, CheckpointError, "hidden_size 0"),
    ({"hidden_size": True}, CheckpointError, "hidden_size True"),
    ({"hidden_size": 512}, TensorShapeError, r"\[640, 256\], but config.json asks for \[640, 512\]"),
    ({"vocab_size": 1 << 40}, CheckpointError, "vocab_size"),
    ({"num_hidden_layers": 3}, CheckpointError, "layer_types"),
    ({"num_hidden_layers": 1 << 20}, CheckpointError, "num_hidden_layers"),
    ({"layer_types": ["linear_attention"] * 4}, CheckpointError, "tensors are missing"),
    ({"layer_types": ["mamba"] * 4}, CheckpointError, "layer_types"),
    ({"layer_types": [{}] * 4}, CheckpointError, "layer_types"),
    ({"linear_num_value_heads": 3}, UnsupportedArchitectureError, "must be a multiple"),
    ({"linear_num_value_heads": 1 << 24}, UnsupportedArchitectureError, "wide together"),
    ({"linear_value_head_dim": 64}, UnsupportedArchitectureError, "widths 32 and 64"),
    ({"num_key_value_heads": 3}, UnsupportedArchitectureError, "must be a multiple"),
    ({"hidden_act": "gelu"}, UnsupportedArchitectureError, "hidden_act 'gelu'"),
    ({"rms_norm_eps": float("nan")}, CheckpointError, "rms_norm_eps nan"),
    ({"rms_norm_eps": -1}, CheckpointError, "rms_norm_eps -1"),
    ({"rope_parameters": 7}, CheckpointError, "rope_parameters 7"),
    ({"rope_parameters": {"rope_theta": 1e7, "rope_type": "yarn"}}, UnsupportedArchitectureError, "rope_type 'yarn'"),
    ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [1]}}, CheckpointError, "mrope_section"),
    (
        {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.5}},
        UnsupportedArchitectureError,
        "RoPE over 96",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CONFIGS)
def test_a_config_that_cannot_be_right_is_refused(tmp_path, changes, error, message):
    """Each wrong value is named, with what was expected there."""
    folder = write_checkpoint(tmp_path / "m")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= changes
    config["text_config"] = {name: value for name, value in config["text_config"].items() if value is not None}
    path.write_text(json.dumps(config))
    with pytest.raises(error, match=message):
        plan(folder)


def plan(folder):
    checkpoint = Checkpoint.open(folder)
    config = Qwen35Config.from_json(checkpoint.config, folder / "config.json")
    return plan_tensors(config, checkpoint.tensors, folder)


@pytest.mark.parametrize(
    "architectures", [None, [], ["LlamaForCausalLM"], "Qwen3_5ForCausalLM", [7], ["Qwen3_5MoeForCausalLM"]]
)
def test_other_architectures_are_refused_by_name(tmp_path, architectures):
    """The message says which are supported."""
    folder = write_checkpoint(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text()) | {"architectures": architectures}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UnsupportedArchitectureError, match="supported: Qwen3_5ForConditionalGeneration, Qwen3_5ForCausalLM"
    ):
        plan(folder)


def test_layers_are_told_by_the_interval_where_there_is_no_list(tmp_path):
    """Older configs name only every how many layers one is attention."""
    folder = write_checkpoint(tmp_path / "m", is_multimodal=False)
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"]
    (folder / "config.json").write_text(json.dumps(config | {"full_attention_interval": 4}))
    assert len(plan(folder)[0]) == 55


def test_a_stored_head_is_used_whatever_the_config_says(tmp_path):
    """Tied or not is decided by the tensors."""
    folder = write_checkpoint(tmp_path / "m", is_tied=False)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    assert plan(folder)[0][-1].name == "output.weight"
