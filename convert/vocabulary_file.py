"""A checkpoint's vocabulary, chat template and training texts as a GGUF file without weights.

For a model that runs somewhere else: such a file is all that its texts need here. The folder needs no weights either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqale_edge.errors import CheckpointError

from .checkpoint import Checkpoint
from .foreign import is_folder, read_json
from .general_fields import read_sampling
from .provenance import find_provenance
from .qwen35_config import Qwen35Config
from .tokenizer import read_vocabulary
from .training_prompt import read_training_prompt
from .writer import Field, check_strings, write_gguf

if TYPE_CHECKING:
    from pathlib import Path


def write_vocabulary(folder: Path, path: Path) -> None:
    """Write the new file `path`, whose text fields are those that a conversion of `folder` would write.

    Raises:
        ConversionError: Something is wrong with the folder, or its model is of another family.
    """
    if not is_folder(folder):
        raise CheckpointError(f"{str(folder)!r} is not a folder", path=folder, hint="check the path")
    checkpoint = Checkpoint(folder, read_json(folder / "config.json"), {})
    config = Qwen35Config.from_json(checkpoint.config, folder / "config.json")
    fields: list[Field] = [
        ("general.architecture", "str", "qwen35"),
        ("general.type", "str", "vocab"),
        *find_provenance(folder).to_metadata(),
        *read_sampling(checkpoint),
        *config.to_metadata(),
        *read_vocabulary(checkpoint, config.n_vocab).to_metadata(),
        *read_training_prompt(folder).to_metadata(),
    ]
    check_strings(fields, folder)
    write_gguf(path, fields, [], "F32", lambda _: None)
