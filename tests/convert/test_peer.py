"""Conversions equal those of llama.cpp's own converter and quantizer, recorded by `record_peer_digests.py`."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest
from checkpoints import SHAPES, write_checkpoint
from digests import digest_fields, digest_tensors
from sqale_edge.convert import convert_checkpoint

PEER = json.loads((Path(__file__).parents[1] / "fixtures" / "convert_peer.json").read_text(encoding="utf-8"))
# A compiler may fuse the multiplications and additions of the K-quants' search; for x86-64 it does not.
needs_x86 = pytest.mark.skipif(
    platform.machine().lower() not in {"x86_64", "amd64"}, reason="quantized bytes were recorded on x86-64"
)


@pytest.fixture(scope="module", params=SHAPES)
def both(request, tmp_path_factory):
    """The files made of one shape by type, and what was recorded for it."""
    folder = tmp_path_factory.mktemp(request.param)
    source = write_checkpoint(folder / request.param, **SHAPES[request.param])
    report = convert_checkpoint(source, folder, ["BF16", "Q8_0", "Q4_K_M"])
    return {file.quant: file.path for file in report.files}, PEER[request.param]


def split_decays(tensors):
    """The tensors apart from `ssm_a`, and those as float32."""
    others = {name: digest for name, digest in tensors.items() if not name.endswith(".ssm_a")}
    decays = {name: np.frombuffer(bytes.fromhex(tensors[name][2]), np.float32) for name in tensors.keys() - others}
    return others, decays


@pytest.mark.parametrize(
    "quant", ["BF16", pytest.param("Q8_0", marks=needs_x86), pytest.param("Q4_K_M", marks=needs_x86)]
)
def test_every_tensor_has_the_peers_bytes(both, quant):
    """The same tensors, types, shapes and bytes; `ssm_a` within one unit in the last place: exponentials differ."""
    paths, recorded = both
    others, decays = split_decays(digest_tensors(paths[quant]))
    peer_others, peer_decays = split_decays(recorded["tensors"][quant])
    assert others == peer_others
    assert decays.keys() == peer_decays.keys()
    assert len(decays) >= 3
    for name, decay in decays.items():
        np.testing.assert_array_max_ulp(decay, peer_decays[name], maxulp=1)


def test_every_key_that_matters_has_the_peers_value(both):
    """Architecture, hyperparameters, tokenizer and sampling defaults: the same keys, of the same types."""
    paths, recorded = both
    assert digest_fields(paths["BF16"]) == recorded["fields"]


def test_the_recorded_shapes_are_those_that_differ():
    """Value heads 1, 2 and 4 times the key heads, tied and not, one file and shards, both forms of names."""
    seen = [list_settings(settings) for settings in SHAPES.values()]
    ratios, tied, sharded, multimodal = (set(values) for values in zip(*seen, strict=True))
    assert ratios == {1, 2, 4}
    assert tied == sharded == multimodal == {True, False}
    assert PEER.keys() == SHAPES.keys()


def list_settings(settings):
    return (
        settings["value_heads"] // settings["key_heads"],
        settings.get("is_tied", True),
        settings.get("n_shards", 1) > 1,
        settings.get("is_multimodal", True),
    )
