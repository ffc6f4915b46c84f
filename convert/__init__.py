"""Conversion: a Hugging Face checkpoint of Qwen3.5 becomes verified GGUF files, without torch.

```python
from sqale_edge.convert import convert_checkpoint

convert_checkpoint("qwen3.5-2b-grpo-sqale", "sqale.gguf", quant="Q4_K_M")
```
"""

from .conversion import Conversion, ConvertedFile, Progress, convert_checkpoint
from .imatrix import Imatrix
from .recipe import Recipe, find_recipe, list_recipes
from .training_prompt import TrainingPrompt
from .verify import Verification, verify_file

__all__ = [
    "Conversion",
    "ConvertedFile",
    "Imatrix",
    "Progress",
    "Recipe",
    "TrainingPrompt",
    "Verification",
    "convert_checkpoint",
    "find_recipe",
    "list_recipes",
    "verify_file",
]
