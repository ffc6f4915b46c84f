"""The way back from a GGUF file to a checkpoint."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from restore import restore_folder
from sqale_edge.convert import convert_checkpoint


def test_a_restored_checkpoint_converts_to_the_same_file(demo_gguf, tmp_path):
    """Every tensor and every number of the model comes back, bit for bit."""
    restore_folder(demo_gguf, tmp_path / "folder")
    convert_checkpoint(tmp_path / "folder", tmp_path / "again.gguf", quant="BF16")
    one, again = gguf.GGUFReader(demo_gguf), gguf.GGUFReader(tmp_path / "again.gguf")
    assert [tensor.name for tensor in one.tensors] == [tensor.name for tensor in again.tensors]
    for tensor, other in zip(one.tensors, again.tensors, strict=True):
        same = np.array_equal(tensor.data, other.data)
        # exp and log round: a decay may differ in the last bit of float32
        assert same or (tensor.name.endswith("ssm_a") and np.allclose(tensor.data, other.data, rtol=1e-6)), tensor.name
    for name, field in one.fields.items():
        if name.startswith(("qwen35.", "tokenizer.", "sqale.prompt.")):
            assert again.fields[name].contents() == field.contents(), name


def test_only_the_demo_vocabulary_is_restored(qwen_gguf, tmp_path):
    """A file with another vocabulary is refused before anything is written."""
    with pytest.raises(ValueError, match="vocabulary"):
        restore_folder(qwen_gguf, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_the_demo_shape_has_rows_of_256(vocabulary):
    """Every width that a matrix of the demo model has is a multiple of 256."""
    from shape import make_config

    config = make_config(vocabulary.n_tokens, vocabulary.end_token)
    widths = [config["hidden_size"], config["intermediate_size"], config["num_attention_heads"] * config["head_dim"]]
    widths.append(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    assert [width % 256 for width in widths] == [0, 0, 0, 0]
