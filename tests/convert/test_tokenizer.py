"""The vocabulary in the GGUF tokenizes as the checkpoint's own tokenizer does."""

import json
import unicodedata
from pathlib import Path

import llama_cpp
import pytest
from checkpoints import CHAT_TEMPLATE, N_VOCAB, PLAIN_TOKENS, write_checkpoint
from sqale_edge.convert import convert_checkpoint
from sqale_edge.convert.checkpoint import Checkpoint
from sqale_edge.convert.tokenizer import TokenType, read_vocabulary

from sqale_edge.errors import CheckpointError, ConversionError

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "convert_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    convert_checkpoint(write_checkpoint(folder / "m"), folder / "m.gguf", "BF16")
    model = llama_cpp.Llama(str(folder / "m.gguf"), vocab_only=True, verbose=False)
    yield model
    model.close()


@pytest.mark.parametrize("text", RECORDED)
def test_tokens_are_those_of_the_checkpoints_tokenizer(model, text):
    """The same ids as recorded from Hugging Face tokenizers, once text is in the form that the file asks for."""
    composed = unicodedata.normalize(model.metadata["sqale.tokenizer.normalizer"], text)
    assert model.tokenize(composed.encode(), add_bos=False, special=True) == RECORDED[text]


@pytest.mark.parametrize("text", RECORDED)
def test_tokens_turn_back_into_the_text(model, text):
    """No byte is lost on the way."""
    assert model.detokenize(RECORDED[text], special=True) == unicodedata.normalize("NFC", text).encode()


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "m")


def change(folder, **changes):
    """Rewrite `tokenizer.json`; a function as value gets the old one."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        tokenizer[name] = value(tokenizer[name]) if callable(value) else value
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def read(folder):
    return read_vocabulary(Checkpoint.open(folder), N_VOCAB)


def test_types_follow_what_the_tokenizer_says(folder):
    """Special tokens and `<|...|>` are control tokens, added ones user-defined, ids beyond the tokenizer unused."""
    vocabulary = read(folder)
    types = dict(zip(vocabulary.tokens, vocabulary.types, strict=True))
    assert types["<|im_end|>"] == TokenType.CONTROL
    assert types["<|fim_prefix|>"] == TokenType.CONTROL  # not special in tokenizer.json
    assert types["<think>"] == types["</tool_call>"] == TokenType.USER_DEFINED
    assert types["a"] == TokenType.NORMAL
    assert vocabulary.tokens[N_VOCAB - 1] == f"[PAD{N_VOCAB - 1}]"
    assert vocabulary.types[N_VOCAB - 1] == TokenType.UNUSED
    ids = vocabulary.tokens.index
    assert vocabulary.special == {"eos": ids("<|im_end|>"), "padding": ids("<|endoftext|>")}


def test_both_forms_of_merges_are_the_same(folder):
    """`"a b"` and `["a", "b"]` give the same merges."""
    pairs = read(folder)
    change(folder, model=lambda model: model | {"merges": [" ".join(pair) for pair in model["merges"]]})
    assert read(folder) == pairs


def test_a_hole_in_the_ids_is_filled(folder):
    """An id that no token has becomes unused, as in llama.cpp's own conversion."""
    change(folder, added_tokens=lambda added: [token for token in added if token["content"] != PLAIN_TOKENS[0]])
    vocabulary = read(folder)
    hole = vocabulary.tokens.index(PLAIN_TOKENS[1]) - 1
    assert vocabulary.tokens[hole] == f"[PAD{hole}]"
    assert vocabulary.types[hole] == TokenType.UNUSED


def test_the_chat_template_may_stand_in_any_of_its_places(folder):
    """In tokenizer_config.json, named there, in a JSON file, or in a file of its own, which wins."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    assert read(folder).chat_template == CHAT_TEMPLATE
    path.write_text(
        json.dumps(
            settings | {"chat_template": [{"name": "default", "template": "A"}, {"name": "rag", "template": "B"}]}
        )
    )
    assert read(folder).chat_template == "A"
    (folder / "chat_template.jinja").write_text("C")
    assert read(folder).chat_template == "C"
    (folder / "chat_template.jinja").unlink()
    del settings["chat_template"]
    path.write_text(json.dumps(settings))
    assert read(folder).chat_template is None
    (folder / "chat_template.json").write_text('{"chat_template": "D"}')
    assert read(folder).chat_template == "D"


def test_tokens_of_the_config_are_added(folder):
    """tokenizer_config.json can hold added tokens that tokenizer.json lacks."""
    path = folder / "tokenizer_config.json"
    entry = {"content": "<extra>", "special": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": {"600": entry}}))
    vocabulary = read(folder)
    assert (vocabulary.tokens[600], vocabulary.types[600]) == ("<extra>", TokenType.CONTROL)


def drop(name):
    return lambda model: model | {"vocab": {token: index for token, index in model["vocab"].items() if token != name}}


# (what is changed in tokenizer.json, a part of the message)
BAD_TOKENIZERS = [
    ({"model": {"type": "Unigram"}}, "not a BPE tokenizer"),
    ({"model": []}, "not a BPE tokenizer"),
    ({"model": drop("Ġ")}, "no token for 1 of the 256 bytes"),
    ({"model": drop("ĠSELECT")}, "needs a token that is not there"),
    ({"model": lambda model: model | {"merges": None}}, "no list of merges"),
    ({"model": lambda model: model | {"merges": ["a b c"]}}, "not a pair: 'a b c'"),
    ({"model": lambda model: model | {"merges": [7]}}, "not a pair: 7"),
    ({"model": lambda model: model | {"dropout": 0.1}}, "dropout"),
    ({"model": lambda model: model | {"vocab": model["vocab"] | {"ab": "7"}}}, "has the id '7'"),
    ({"model": lambda model: model | {"vocab": model["vocab"] | {"ab": -1}}}, "has the id -1"),
    ({"model": lambda model: model | {"vocab": model["vocab"] | {"ab": 0}}}, "have the same id 0"),
    ({"model": lambda model: model | {"vocab": model["vocab"] | {"ab": N_VOCAB}}}, "embedding has 640 rows"),
    (
        {"model": lambda model: model | {"vocab": model["vocab"] | {"a b": 600}}},
        "not written in the byte-level alphabet",
    ),
    ({"pre_tokenizer": None}, "pre_tokenizer"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
    (
        {
            "pre_tokenizer": lambda pre: (
                pre
                | {"pretokenizers": [pre["pretokenizers"][0] | {"pattern": {"Regex": "x"}}, pre["pretokenizers"][1]]}
            )
        },
        "splits words by 'x'",
    ),
    ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
    ({"post_processor": {"type": "TemplateProcessing"}}, "post_processor"),
    ({"added_tokens": [{"id": 3}]}, "no text or no id"),
    ({"added_tokens": 7}, "no text or no id"),
    ({"added_tokens": lambda added: [*added, added[0]]}, "is there twice"),
    ({"added_tokens": lambda added: [added[0] | {"lstrip": True}]}, "white space"),
    ({"added_tokens": [{"id": 5, "content": "a"}]}, "has the ids"),
    ({"added_tokens": [{"id": [5], "content": "a"}]}, "no text or no id"),
    ({"added_tokens": [{"id": {}, "content": "a"}, {"id": 5}]}, "no text or no id"),
    ({"model": lambda model: model | {"merges": []}}, "no list of merges"),
    ({"added_tokens": lambda added: [*added, {"id": 600, "content": "\ud800"}]}, "half a surrogate pair"),
    ({"added_tokens": lambda added: [*added, {"id": int("9" * 4000), "content": "a"}]}, "a number of 4,000 digits"),
    ({"normalizer": {"type": ["x" * 10**6]}}, r"the normalizer \[\['x+\.\.\.x+'\]\]"),
    ({"pre_tokenizer": [{"type": "x"}] * 10**5}, "the pre_tokenizer"),
    ({"model": lambda model: model | {"merges": [["x" * 10**6, "y"]]}}, "needs a token that is not there"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_TOKENIZERS)
def test_a_tokenizer_that_llama_cpp_would_get_wrong_is_refused(folder, changes, message):
    """Contradictions, and steps that llama.cpp does not do, are errors that name them."""
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


# (what tokenizer_config.json has more, a part of the message; None where it does no harm)
ODD_SETTINGS = [
    ({"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}, "added_tokens_decoder has '999.*999', which is no id"),
    ({"added_tokens_decoder": {"\u00b2": {"content": "a"}}}, "added_tokens_decoder has '\u00b2', which is no id"),
    ({"added_tokens_decoder": {"\u0663": {"content": "a"}}}, "added_tokens_decoder has '\u0663', which is no id"),
    ({"added_tokens_decoder": {"600": ["a"]}}, "added_tokens_decoder has '600', which is no id"),
    ({"added_tokens_decoder": {"600": {"content": "a\0b"}}}, r"'a\\x00b' for tokenizer\.ggml\.tokens has a NUL"),
    ({"chat_template": [{"name": ["default"], "template": "x"}]}, None),
    ({"chat_template": [{"name": {}, "template": "x"}, {"name": "default", "template": ["y"]}, 7]}, None),
    ({"chat_template": "a\0b"}, r"'a\\x00b' for tokenizer\.chat_template has a NUL"),
    ({"chat_template": "\ud800"}, "half a surrogate pair"),
    ({"chat_template": "x" * (2 << 20)}, "the chat template is 2,097,152 characters long"),
    ({"eos_token": {"content": ["x"]}, "pad_token": 7, "bos_token": [[]]}, None),
]


@pytest.mark.parametrize(("changes", "message"), ODD_SETTINGS, ids=range(len(ODD_SETTINGS)))
def test_odd_settings_are_errors_or_do_no_harm(folder, tmp_path, changes, message):
    """Nothing but one line comes out of them, and no string that llama.cpp would cut gets into a file."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if message is None:
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")
        return
    with pytest.raises(ConversionError, match=message) as caught:
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.gguf").exists()


def test_a_template_file_with_a_nul_is_an_error(folder, tmp_path):
    """The end of it would be lost."""
    (folder / "chat_template.jinja").write_bytes(b"a\0b")
    with pytest.raises(ConversionError, match=r"for tokenizer\.chat_template has a NUL"):
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")


def test_a_missing_tokenizer_is_an_error_with_a_hint(folder):
    """The hint says where to get it."""
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json") as caught:
        read(folder)
    assert "copy it" in caught.value.hint
