"""Conversion: a Hugging Face checkpoint of Qwen3.5 becomes GGUF files, without torch.

    from sqale_edge.convert import convert_checkpoint
    convert_checkpoint("qwen3.5-2b-grpo-sqale", "sqale-Q4_K_M.gguf", quant="Q4_K_M")
"""

from .conversion import convert_checkpoint

__all__ = ["convert_checkpoint"]
