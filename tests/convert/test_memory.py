"""Converting needs little memory, whatever the size of the checkpoint."""

import json
import os
import struct
import subprocess
import sys

import pytest
from checkpoints import encode, make_tensors, write_checkpoint, write_json, write_safetensors
from sqale_edge.convert import verify_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no limit counts anonymous memory alone")
WIDTH = 65_536
LIMIT_BYTES = 200 << 20
QUANTIZER_LIMIT_BYTES = 100 << 20  # measured: 75 MB suffice, and whole matrices need more than 100 MB
CONVERT = "import sys; from sqale_edge.cli import main; main(sys.argv[1:])"
QUANTIZE = (
    "import sys; from pathlib import Path; from sqale_edge.llama.quantize import quantize_file; source, target = "
    "map(Path, sys.argv[1:3]); quantize_file(source, target, 'Q8_0', threads=1, buffer_bytes=int(sys.argv[3]))"
)


def write_wide_checkpoint(folder):
    """Four layers whose twelve feed-forward matrices are 34 MB of zeros each, a hole in their file."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = make_tensors(config["text_config"], seed=0, is_multimodal=True)
    hidden = config["text_config"]["hidden_size"]
    config["text_config"]["intermediate_size"] = WIDTH
    write_json(folder / "config.json", config)
    narrow = {name: ("BF16", encode(array, "BF16")) for name, array in tensors.items() if ".mlp." not in name}
    write_safetensors(folder / "narrow.safetensors", narrow)
    header, end = {}, 0
    for name in tensors.keys() - narrow:
        shape = [hidden, WIDTH] if "down" in name else [WIDTH, hidden]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * hidden * WIDTH]}
        end += 2 * hidden * WIDTH
    text = json.dumps(header).encode()
    with (folder / "wide.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    weight_map = dict.fromkeys(narrow, "narrow.safetensors") | dict.fromkeys(header, "wide.safetensors")
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The folder with BF16.gguf and Q8_0.gguf, made in a process that may have LIMIT_BYTES of memory of its own."""
    folder = tmp_path_factory.mktemp("wide")
    arguments = ["convert", write_wide_checkpoint(folder / "m"), "-o", folder / "{quant}.gguf", "--threads", "2"]
    result = run_limited(LIMIT_BYTES, CONVERT, *arguments, "-q", "BF16", "-q", "Q8_0")
    assert result.returncode == 0, result.stderr
    return folder


def run_limited(n_bytes, script, *arguments):
    """Run Python code with at most so much anonymous memory, in this process and in each of its children."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({n_bytes}, {n_bytes})); "
    return subprocess.run(
        [sys.executable, "-P", "-c", limit + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each of its threads reserves a buffer
    )


def test_a_checkpoint_is_converted_in_half_of_the_memory_that_it_fills(converted):
    """403 MB of weights are read, quantized and run where no process may have more than LIMIT_BYTES."""
    sizes = {path.stem: path.stat().st_size for path in converted.glob("*.gguf")}
    assert sizes["BF16"] > 2 * LIMIT_BYTES * 0.95
    assert verify_file(converted / "Q8_0.gguf").n_bytes == sizes["Q8_0"]


def test_the_quantizer_keeps_to_its_buffer(converted, tmp_path):
    """With a small buffer a limit suffices in which whole matrices would not fit."""
    arguments = [converted / "BF16.gguf", tmp_path / "m.gguf"]
    small, large = (run_limited(QUANTIZER_LIMIT_BYTES, QUANTIZE, *arguments, n) for n in (1 << 20, 1 << 40))
    assert small.returncode == 0, small.stderr
    assert "QuantizationError" in large.stderr
