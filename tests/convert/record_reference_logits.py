"""Record what transformers and tokenizers make of the tests' checkpoints. Run by hand when `checkpoints.py` changes.

    python tests/convert/record_reference_logits.py

Needs, in an environment of its own: torch (CPU), transformers >= 5, numpy. Writes `convert_logits.npz` and
`convert_tokens.json` in `tests/fixtures`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from checkpoints import CORPUS, REFERENCE_TOKENS, SHAPES, write_checkpoint

FIXTURES = Path(__file__).parents[1] / "fixtures"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        logits = {
            name: compute_logits(write_checkpoint(Path(folder) / name, **shape)) for name, shape in SHAPES.items()
        }
        tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / next(iter(SHAPES)) / "tokenizer.json"))
    np.savez_compressed(FIXTURES / "convert_logits.npz", **logits)
    tokens = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in CORPUS}
    text = json.dumps(tokens, ensure_ascii=True, separators=(",", ":"))
    (FIXTURES / "convert_tokens.json").write_text(text + "\n", encoding="utf-8")
    versions = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, tokenizers)]
    spread = {name: (array.shape, float(array.std())) for name, array in logits.items()}
    sys.stdout.write(f"{', '.join(versions)}\n{spread}\n")


@torch.inference_mode()
def compute_logits(folder: Path) -> np.ndarray:
    """FP32 logits at every position of `REFERENCE_TOKENS`, (T, V) float32."""
    config = transformers.AutoConfig.from_pretrained(folder)
    text_config = getattr(config, "text_config", config)
    model = transformers.AutoModelForCausalLM.from_config(text_config, dtype=torch.float32)
    stored = {}
    for path in folder.glob("*.safetensors"):
        stored |= load_float32(path)
    stored = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in stored.items()
        if not name.startswith("model.visual.")
    }
    missing, unexpected = model.load_state_dict(stored, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{folder.name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.eval()(torch.tensor([REFERENCE_TOKENS])).logits[0].float().numpy()


def load_float32(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(path).items()}


if __name__ == "__main__":
    main()
