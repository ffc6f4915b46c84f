"""The vocabulary, chat template and training texts of a model that runs in a server, read from its files here.

llama.cpp tokenises for a server, too, as it does for its own models: so foreign text is kept from becoming a control
token in one place for both, and a remote episode has the tokens of a local one. The server's tokenizer is asked at the
start whether it agrees.

The files are a GGUF of the same model in any quantization, or the checkpoint's folder, where weights are not needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import ConversionError, ModelLoadError, ModelNotFoundError
from sqale_edge.installed import list_names, read_installed
from sqale_edge.models import ModelFile, find_model
from sqale_edge.private_files import PrivateDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqale_edge.llama.model import LlamaModel
    from sqale_edge.llama.vocabulary import Vocabulary
    from sqale_edge.remote.address import Address
    from sqale_edge.remote.server import ServedModel, Server

# Letters of several scripts, digits, blanks, marks, composed and uncomposed accents: what tokenizers tell apart.
_PROBE = (
    "SELECT count(*), \"größe\" FROM t WHERE x >= 3.14 AND y <> 'é e\u0301';\n\n  -- 日本語 👍\tçok\r\n"
    '{"tool": "run_query", "args": {"sql": "..."}}   don\'t 12345 a_b|c -> d.e\u00a0f'
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the texts of a served model are.

    Attributes:
        file: A GGUF, or a folder.
        said: Where that is, for people.
    """

    file: ModelFile
    said: str


def find_source(tokenizer: str | None, model: ServedModel, address: Address) -> Source:
    """Where the files of `model` are here.

    Args:
        tokenizer: What was given: a name in the store, a GGUF file, a folder; None looks for the model itself.
        model: What the server says; believed about paths only where it runs on this machine.
        address: Of the server.

    Raises:
        ModelNotFoundError: They are not here.
    """
    if tokenizer is not None:
        return Source(find_model(tokenizer), tokenizer)
    for name in list_names():
        installed = read_installed(name)
        if installed and installed.manifest.repository in (model.root, model.name):
            return Source(find_model(name), f"{name} of the store")
    root = Path(model.root)
    if address.is_here and root.is_absolute() and (root.is_dir() or root.suffix == ".gguf"):
        return Source(ModelFile(root), str(root))
    raise ModelNotFoundError(
        f"the vocabulary and training texts of {model.root!r}, which {address} serves, are not here",
        hint="name them with --tokenizer (SQALE_EDGE_TOKENIZER): a model in the store, a GGUF file, or its folder",
    )


@contextlib.contextmanager
def opened_file(source: Source) -> Iterator[Path]:
    """A GGUF file with the texts of `source`, for the block.

    Raises:
        ModelLoadError: A folder's files cannot be used.
    """
    path = source.file.path
    if not path.is_dir():
        yield path
        return
    from sqale_edge.convert.vocabulary_file import write_vocabulary  # noqa: PLC0415 - not a light import

    private = PrivateDirectory()
    try:
        target = private.path / "vocabulary.gguf"
        try:
            write_vocabulary(path, target)
        except ConversionError as error:
            raise ModelLoadError(
                f"the vocabulary in {str(path)!r} cannot be used: {error}",
                hint="name another folder, or a GGUF file of the model, with --tokenizer (SQALE_EDGE_TOKENIZER)",
            ) from error
        yield target
    finally:
        private.remove()


def load_vocabulary(source: Source) -> LlamaModel:
    """The model without its weights. Raises as `LlamaModel` does, or ModelLoadError."""
    from sqale_edge.llama.model import LlamaModel  # noqa: PLC0415 - loaded when a model is

    with opened_file(source) as path:
        return LlamaModel.without_weights(path)


def check_agreement(vocabulary: Vocabulary, source: Source, server: Server, model: ServedModel) -> None:
    """Raise ModelLoadError unless the server's tokenizer makes the same tokens, of plain text and of all markup."""
    from sqale_edge.engine import Piece  # noqa: PLC0415

    markup = "".join(vocabulary.markup)
    for text in (_PROBE, markup):
        ours, theirs = vocabulary.tokenize([Piece(text, trusted=True)]), server.tokenize(model.name, text)
        if ours != theirs:
            position = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
            raise ModelLoadError(
                f"{server.address} tokenises otherwise than {source.said}: token {position} is "
                f"{_show(theirs, position)} there and {_show(ours, position)} here",
                hint="name the files of the model that is served with --tokenizer (SQALE_EDGE_TOKENIZER)",
            )


def _show(tokens: Sequence[int], position: int) -> str:
    return str(tokens[position]) if position < len(tokens) else "missing"
