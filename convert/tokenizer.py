"""`tokenizer.json` as GGUF vocabulary: tokens, their types, merges, special tokens and the chat template.

llama.cpp splits text into words by its own copy of each model's pattern, named in `tokenizer.ggml.pre`. A pattern that
it does not have under a known name would tokenize differently from training, so it is an error here.

Not guaranteed: Unicode normalization. Qwen's tokenizer composes characters (NFC) first and llama.cpp does not; the file
says so in `sqale.tokenizer.normalizer`, for whoever hands text to it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import CheckpointError

from .foreign import is_there, quote, read_json, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .writer import Field

# Source: tokenizer.json of Qwen3.5 and of Qwen2.5, and the patterns of these names in src/llama-vocab.cpp of llama.cpp.
_START, _END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?", r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _START + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _END: "qwen35",
    _START + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _END: "qwen2",
}
_SPECIAL_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
}  # the name in tokenizer_config.json, and in GGUF
_TOKENIZER_LIMIT = 1 << 26  # bytes; five times that of Qwen3.5
_TEMPLATE_LIMIT = 1 << 20
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
NORMALIZER_KEY = "sqale.tokenizer.normalizer"


class TokenType(enum.IntEnum):
    """Source: enum llama_token_type in llama.h."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer in GGUF's terms.

    Attributes:
        pre: The name of the word pattern.
        tokens, types: By id, as many as the embedding has rows.
        merges: `left right`, the first to be applied first.
        special: Role (`eos`, `padding`, ...) to id.
        chat_template: None where there is none.
        normalizer: The Unicode form that text is brought into first, `NFC`; None for none.
    """

    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    special: dict[str, int]
    chat_template: str | None
    normalizer: str | None

    def to_metadata(self) -> list[Field]:
        """The `tokenizer.*` keys."""
        fields: list[Field] = [
            ("ggml.model", "str", "gpt2"),  # any byte-level BPE
            ("ggml.pre", "str", self.pre),
            ("ggml.tokens", "[str]", self.tokens),
            ("ggml.token_type", "[i32]", self.types),
            ("ggml.merges", "[str]", self.merges),
            *((f"ggml.{role}_token_id", "u32", token) for role, token in self.special.items()),
            ("ggml.add_bos_token", "bool", False),
            ("ggml.add_eos_token", "bool", False),
        ]
        if self.chat_template is not None:
            fields.append(("chat_template", "str", self.chat_template))
        keyed: list[Field] = [(f"tokenizer.{name}", kind, value) for name, kind, value in fields]
        return keyed if self.normalizer is None else [*keyed, (NORMALIZER_KEY, "str", self.normalizer)]


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE. Source: encoder.py of openai/gpt-2."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


def read_vocabulary(checkpoint: Checkpoint, n_vocab: int) -> Vocabulary:
    """The checkpoint's vocabulary; ids that no text becomes are filled with unused tokens, up to `n_vocab`.

    Raises:
        CheckpointError: There is no tokenizer, it contradicts itself, or llama.cpp would tokenize differently.
    """
    path = checkpoint.folder / "tokenizer.json"
    if not is_there(path):
        raise CheckpointError(
            f"no tokenizer.json in {str(checkpoint.folder)!r}",
            path=path,
            hint="copy it from the model's repository into the folder",
        )
    tokenizer, settings = read_json(path, limit=_TOKENIZER_LIMIT), checkpoint.read_optional("tokenizer_config.json")
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise CheckpointError("tokenizer.json is not a BPE tokenizer, the only kind that is supported", path=path)
    pre = _read_pattern(tokenizer, model, path)
    added = _read_added(tokenizer, settings, path)
    tokens, types = _number_tokens(model["vocab"], added, n_vocab, path)
    special = _read_special(checkpoint.config, settings, {token: entry["id"] for token, entry in added.items()})
    merges, template = _read_merges(model, path), _read_chat_template(checkpoint, settings)
    normalizer = next(iter(_list_steps(tokenizer, "normalizer", "normalizers")), {}).get("type")
    return Vocabulary(pre, tokens, types, merges, special, template, normalizer)


def _list_steps(tokenizer: Mapping[str, Any], name: str, list_name: str) -> list[dict[str, Any]]:
    """A part of the pipeline as the list of its steps; one that makes no sense as a step of that type."""
    step = tokenizer.get(name)
    steps = step.get(list_name) if isinstance(step, dict) and step.get("type") == "Sequence" else [step]
    steps = steps if isinstance(steps, list) else [steps]
    return [each if isinstance(each, dict) else {"type": each} for each in steps if each is not None]


def _read_pattern(tokenizer: Mapping[str, Any], model: Mapping[str, Any], path: Path) -> str:
    """llama.cpp's name for the way in which text is split, after a check that nothing else is done to it."""
    split = _list_steps(tokenizer, "pre_tokenizer", "pretokenizers")
    kinds, normalizers, processors = (
        [step.get("type") for step in steps]
        for steps in (
            split,
            _list_steps(tokenizer, "normalizer", "normalizers"),
            _list_steps(tokenizer, "post_processor", "processors"),
        )
    )
    problem = ""
    if kinds != ["Split", "ByteLevel"] or split[1].get("add_prefix_space") or split[1].get("use_regex", True):
        problem = f"the pre_tokenizer {quote(kinds)}"
    elif split[0].get("behavior") != "Isolated" or split[0].get("invert"):
        problem = f"a Split with behavior {quote(split[0].get('behavior'))}"
    elif normalizers not in ([], ["NFC"]):
        problem = f"the normalizer {quote(normalizers)}"
    elif processors not in ([], ["ByteLevel"]):
        problem = f"the post_processor {quote(processors)}"
    elif any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        problem = "BPE with dropout, a prefix or a suffix"
    if problem:
        raise CheckpointError(f"tokenizer.json uses {problem}, which llama.cpp would not do", path=path)
    pattern = split[0].get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else pattern
    if not isinstance(regex, str) or regex not in _PATTERNS:
        raise CheckpointError(
            f"tokenizer.json splits words by {quote(regex)}, which is not as {' or '.join(_PATTERNS.values())} does it",
            path=path,
        )
    return _PATTERNS[regex]


def _read_added(tokenizer: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """The tokens that are recognised before text is split, by their text; tokenizer_config.json can add more."""
    listed, decoder = tokenizer.get("added_tokens", []), settings.get("added_tokens_decoder", {})
    entries = list(listed) if isinstance(listed, list) else [listed]
    known = {entry["id"] for entry in entries if isinstance(entry, dict) and type(entry.get("id")) is int}
    for key, entry in decoder.items() if isinstance(decoder, dict) else []:
        if not _TOKEN_ID.fullmatch(key) or not isinstance(entry, dict):
            raise CheckpointError(f"added_tokens_decoder has {quote(key)}, which is no id of a token", path=path)
        if int(key) not in known:
            entries.append({**entry, "id": int(key)})
    added: dict[str, dict[str, Any]] = {}
    for entry in entries:
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or type(entry.get("id")) is not int:
            raise CheckpointError(f"an added token has no text or no id: {quote(entry)}", path=path)
        if content in added:
            raise CheckpointError(f"the added token {quote(content)} is there twice", path=path)
        if any(entry.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
            raise CheckpointError(
                f"the added token {quote(content)} swallows white space or needs word ends, which llama.cpp cannot do",
                path=path,
            )
        added[content] = entry
    return added


def _number_tokens(
    plain: Mapping[str, Any], added: Mapping[str, Any], n_vocab: int, path: Path
) -> tuple[list[str], list[int]]:
    """Texts and types by id."""
    tokens: list[str | None] = [None] * n_vocab
    types: list[int] = [TokenType.UNUSED] * n_vocab
    alphabet = set(byte_alphabet())
    if missing := alphabet - plain.keys():
        raise CheckpointError(
            f"tokenizer.json has no token for {len(missing)} of the 256 bytes, first {min(missing)!r}", path=path
        )

    def put(token: str, index: Any, kind: TokenType) -> None:
        if type(index) is not int or not 0 <= index < n_vocab:
            raise CheckpointError(
                f"the token {quote(token)} has the id {quote(index)}, but the embedding has {n_vocab:,} rows", path=path
            )
        if tokens[index] not in (None, token):
            raise CheckpointError(
                f"the tokens {quote(tokens[index])} and {quote(token)} have the same id {index}", path=path
            )
        tokens[index], types[index] = token, kind

    for token, index in plain.items():
        if not alphabet.issuperset(token) and token not in added:
            raise CheckpointError(f"the token {quote(token)} is not written in the byte-level alphabet", path=path)
        put(token, index, TokenType.NORMAL)
    for token, entry in added.items():
        if plain.get(token, entry["id"]) != entry["id"]:
            raise CheckpointError(
                f"the token {quote(token)} has the ids {quote(plain[token])} and {entry['id']}", path=path
            )
        # Some are control tokens by their form although not marked "special": llama.cpp's conversion takes them so.
        is_control = entry.get("special") or (token.startswith("<|") and token.endswith("|>"))
        put(token, entry["id"], TokenType.CONTROL if is_control else TokenType.USER_DEFINED)
    return [f"[PAD{index}]" if token is None else token for index, token in enumerate(tokens)], types


def _read_merges(model: Mapping[str, Any], path: Path) -> list[str]:
    """Merges as `left right`, from either form that tokenizer.json has had: `"left right"` and `["left", "right"]`."""
    merges, vocabulary = model.get("merges"), model["vocab"]
    if not isinstance(merges, list) or not merges:
        raise CheckpointError("tokenizer.json has no list of merges", path=path)
    result = []
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise CheckpointError(f"merge {number} of tokenizer.json is not a pair: {quote(merge)}", path=path)
        left, right = pair
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(
                f"merge {number} of tokenizer.json, {quote(left)} and {quote(right)}, needs a token that is not there",
                path=path,
            )
        result.append(f"{left} {right}")
    return result


def _read_special(config: Mapping[str, Any], settings: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, int]:
    """Role to id: by the text in tokenizer_config.json, or else by the id in config.json."""
    special = {}
    text_config = config.get("text_config")
    for role, name in _SPECIAL_ROLES.items():
        entry = settings.get(f"{role}_token")
        content = entry.get("content") if isinstance(entry, dict) else entry
        index = ids.get(content) if isinstance(content, str) else None
        for values in (config, text_config):
            if index is None and isinstance(values, dict) and type(values.get(f"{role}_token_id")) is int:
                index = values[f"{role}_token_id"]
        if index is not None and index in ids.values():
            special[name] = index
    return special


def _read_chat_template(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> str | None:
    """The chat template; the file of its own wins over tokenizer_config.json, as in transformers."""
    path = checkpoint.folder / "chat_template.jinja"
    if is_there(path):
        return read_text(path, limit=_TEMPLATE_LIMIT)
    template = settings.get("chat_template", checkpoint.read_optional("chat_template.json").get("chat_template"))
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
    if not isinstance(template, str):
        return None
    if len(template) > _TEMPLATE_LIMIT:
        raise CheckpointError(
            f"the chat template is {len(template):,} characters long, more than {_TEMPLATE_LIMIT:,}",
            path=checkpoint.folder,
        )
    return template
