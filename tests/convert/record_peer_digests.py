"""Record what llama.cpp's own converter and quantizer make of the tests' checkpoints. Run by hand when
`checkpoints.py` changes.

    python tests/convert/record_peer_digests.py LLAMA_CPP_SOURCE

Needs, in an environment of its own: torch (CPU), transformers >= 5, llama-cpp-python of our version, gguf, numpy.
LLAMA_CPP_SOURCE is the folder with `convert_hf_to_gguf.py`, for example `vendor/llama.cpp` in llama-cpp-python's
source distribution. Writes `convert_peer.json` in `tests/fixtures`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp
from checkpoints import SHAPES, write_checkpoint
from digests import digest_fields, digest_tensors

FIXTURE = Path(__file__).parents[1] / "fixtures" / "convert_peer.json"
FILE_TYPES = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}
# It knows word patterns by a hash of a real vocabulary's tokens, and the tests' vocabulary is a small one.
CONVERT = (
    "import runpy, sys; from conversion.base import TextModel; TextModel.get_vocab_base_pre = lambda *_: 'qwen35'; "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def main() -> None:
    source, recorded = Path(sys.argv[1]).resolve(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shape, settings in SHAPES.items():
            checkpoint, base = write_checkpoint(folder / shape, **settings), folder / f"{shape}.gguf"
            convert(source, checkpoint, base)
            tensors = {"BF16": digest_tensors(base)}
            for file_type, code in FILE_TYPES.items():
                quantized = folder / f"{shape}-{file_type}.gguf"
                quantize(base, quantized, code)
                tensors[file_type] = digest_tensors(quantized)
            recorded[shape] = {"fields": digest_fields(base), "tensors": tensors}
    FIXTURE.write_text(dump(recorded), encoding="utf-8")
    sys.stdout.write(f"llama-cpp-python {llama_cpp.__version__}, {FIXTURE.stat().st_size:,} bytes\n")


def convert(source: Path, checkpoint: Path, target: Path) -> None:
    """As its documentation says, except for the name of the word pattern."""
    script = source / "convert_hf_to_gguf.py"
    options = [checkpoint, "--no-mtp", "--outtype", "bf16", "--outfile", target]
    paths = os.pathsep.join([str(source / "gguf-py"), str(source)])
    subprocess.run(
        [sys.executable, "-c", CONVERT, script, *options], check=True, env={**os.environ, "PYTHONPATH": paths}
    )


def quantize(source: Path, target: Path, code: int) -> None:
    """With the quantizer's defaults."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = code
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise SystemExit(f"{source} cannot be quantized")


def dump(recorded: dict) -> str:
    """JSON with one key or tensor a line, so that a change is seen."""
    return re.sub(r' ?("[^"]+": [\[{])', r"\n\1", json.dumps(recorded)) + "\n"


if __name__ == "__main__":
    main()
