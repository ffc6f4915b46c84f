"""Recipes: what may stand in one, and what becomes of it."""

import json

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint
from sqale_edge.convert.gguf_file import GgufFile
from sqale_edge.convert.recipe import find_recipe, list_recipes, read_recipe

from sqale_edge.errors import ConversionError, QuantizationError
from sqale_edge.llama.quantize import quantize_file
from sqale_edge.models import find_model

WHOLE = """
name = "mine"
about = "for a test"
base = "Q4_K_M"
imatrix = "optional"
output = "Q8_0"

[tensors]
"blk.0.ffn_down.weight" = "Q6_K"
"blk.*.ffn_*.weight" = "Q5_0"
"blk.[0-2].ssm_out.weight" = "BF16"
"""


def write_recipe(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("source") / "agent")


@pytest.fixture(scope="module")
def stock(checkpoint, tmp_path_factory):
    """BF16 and Q4_K_M, without a recipe."""
    folder = tmp_path_factory.mktemp("stock")
    convert_checkpoint(checkpoint, folder, ["BF16", "Q4_K_M"])
    return {quant: GgufFile.read(folder / f"agent-{quant}.gguf") for quant in ("BF16", "Q4_K_M")}


def shapes_of(file):
    return {name: tensor.shape for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("recipe", list_recipes(), ids=lambda recipe: recipe.name)
def test_recipes_of_the_package_fit(recipe, stock):
    """Each is in the file of its name, says what it is for, and fits the demo model and a random one."""
    assert recipe.path.stem == recipe.name
    assert find_recipe(recipe.name.upper()) == recipe
    for file in (GgufFile.read(find_model("demo").path), stock["BF16"]):
        mix = recipe.choose_types(shapes_of(file))
        assert len(mix.tensors) >= len(recipe.tensors)


def test_sensitive_tensors_are_protected():
    """`q4-protected` keeps what suffers most near the original, and leaves the feed-forward layers to Q4_K_M."""
    mix = find_recipe("q4-protected").choose_types(shapes_of(GgufFile.read(find_model("demo").path)))
    parts = {name.split(".", 2)[2].removesuffix(".weight") for name in mix.tensors}
    assert parts == {"ssm_out", "attn_qkv", "attn_gate", "attn_q", "attn_k", "attn_v", "attn_output"}
    assert set(mix.tensors.values()) == {"Q8_0"}


def test_a_file_has_the_types_of_its_recipe(checkpoint, stock, tmp_path):
    """The first pattern decides, the head has the output's type, and all other tensors are those of the base."""
    path = write_recipe(tmp_path, WHOLE)
    report = convert_checkpoint(checkpoint, tmp_path / "m.gguf", recipe=path)
    file = GgufFile.read(tmp_path / "m.gguf")
    types = {name: tensor.type for name, tensor in file.tensors.items()}
    expected = {name: tensor.type for name, tensor in stock["Q4_K_M"].tensors.items()}
    for name in expected:
        if ".ffn_" in name:
            expected[name] = "Q6_K" if name == "blk.0.ffn_down.weight" else "Q5_0"
        if "ssm_out" in name:
            expected[name] = "BF16"
    assert types == expected | {"token_embd.weight": "Q8_0"}
    recipe = read_recipe(path)
    assert file.fields["sqale.recipe.name"] == "mine"
    assert file.fields["sqale.recipe.sha256"] == recipe.digest
    assert file.fields["general.file_type"] == 15
    assert (report.files[0].recipe, report.files[0].quant) == ("mine", "Q4_K_M")
    assert "sqale.recipe.name" not in stock["Q4_K_M"].fields


def test_a_head_of_its_own_has_its_type(tmp_path):
    """Where head and embedding are two tensors, each key is for one of them."""
    source = write_checkpoint(tmp_path / "untied", is_tied=False)
    text = WHOLE.partition("[tensors]")[0] + 'token_embedding = "Q5_1"\n'
    convert_checkpoint(source, tmp_path / "m.gguf", recipe=write_recipe(tmp_path, text))
    tensors = GgufFile.read(tmp_path / "m.gguf").tensors
    assert (tensors["output.weight"].type, tensors["token_embd.weight"].type) == ("Q8_0", "Q5_1")


def test_recipes_and_types_come_from_one_run(checkpoint, tmp_path):
    """Each file is named after its recipe or type; a type is made only if it is asked for."""
    report = convert_checkpoint(checkpoint, tmp_path, "Q8_0", recipe=["q4-protected", write_recipe(tmp_path, WHOLE)])
    assert [file.path.name for file in report.files] == [
        f"agent-{name}.gguf" for name in ("Q8_0", "q4-protected", "mine")
    ]
    assert json.loads(json.dumps(report.to_dict()))["files"][1]["recipe"] == "q4-protected"


def test_a_digest_is_of_what_counts(tmp_path):
    """Comments and the text for people may change; a type, a pattern and the order of patterns may not."""
    digest = read_recipe(write_recipe(tmp_path, WHOLE)).digest
    assert read_recipe(write_recipe(tmp_path, "# hello\n" + WHOLE.replace("for a test", "better"))).digest == digest
    lines = WHOLE.splitlines()
    swapped = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    for other in (WHOLE.replace("Q5_0", "Q5_1"), WHOLE.replace("[0-2]", "*"), swapped):
        assert read_recipe(write_recipe(tmp_path, other)).digest != digest


# (what is changed in WHOLE, into what, a part of the message)
DAMAGE = [
    ('about = "for a test"', "", "'about' is missing"),
    ("output =", "outptu =", "the key 'outptu' is not one of name, about, base"),
    ('"Q4_K_M"', '"Q4_K"', "the base 'Q4_K' is not one of Q8_0"),
    ('"Q4_K_M"', '"BF16"', "the base 'BF16' is not one of"),
    ('"Q5_0"', '"Q4_K_M"', "'Q4_K_M' of 'blk.*.ffn_*.weight' is a file type, and not a tensor's"),
    ('"Q5_0"', '"IQ1_S"', "'IQ1_S' of 'blk.*.ffn_*.weight' is not a tensor's type: give one of BF16"),
    ('"Q5_0"', "5", "5 of 'blk.*.ffn_*.weight' is not a tensor's type"),
    ('output = "Q8_0"', 'output = ""', "output '' is not one line of text"),
    ('"optional"', '"maybe"', "imatrix 'maybe' is not one of required, optional, unused"),
    ('"mine"', '"Q8_0"', "the name 'Q8_0' is not one of small letters"),
    ('"mine"', '"a/b"', "the name 'a/b' is not one of small letters"),
    ('"mine"', "7", "name 7 is not one line of text"),
    ("[tensors]", "[[tensors]]", "'tensors' is not a table"),
    ("[tensors]", "[tensors", "is no recipe"),
    ('base = "Q4_K_M"', 'base = "Q4_K_M"\nbase = "Q4_0"', "is no recipe: Cannot overwrite a value"),
    ("name", "\0", "is no recipe"),
]


@pytest.mark.parametrize(("old", "new", "message"), DAMAGE)
def test_what_is_wrong_with_a_recipe_is_said(tmp_path, old, new, message):
    """In one line, with the value and what is allowed."""
    assert old in WHOLE
    with pytest.raises(QuantizationError) as caught:
        read_recipe(write_recipe(tmp_path, WHOLE.replace(old, new, 1)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_what_is_no_file_is_an_error(tmp_path):
    """A file that is missing, a folder, bytes that are no text, and a name that no recipe has."""
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    for name in ("missing.toml", "folder.toml", "binary.toml"):
        with pytest.raises(QuantizationError, match=name):
            find_recipe(str(tmp_path / name))
    with pytest.raises(QuantizationError, match="there is no recipe 'q4-best'") as caught:
        find_recipe("q4-best")
    assert "q4-protected" in caught.value.hint


# (pattern, type, a part of the message)
UNFIT = [
    ("blk.*.ffn_dwon.weight", "Q8_0", "'blk.*.ffn_dwon.weight' matches no tensor that is quantized"),
    ("blk.*.attn_norm.weight", "Q8_0", "matches no tensor that is quantized"),
    ("blk.*.ssm_conv1d.weight", "Q8_0", "matches no tensor that is quantized"),
    ("ffn_down", "Q8_0", "matches no tensor that is quantized"),
    ("token_embd.weight", "Q8_0", "is of the head"),
    ("blk.0.ffn_up.weight", "Q8_0", "decides on no tensor: those before it match them all"),
    (
        "blk.*.ssm_out.weight",
        "Q4_K",
        "blk.0.ssm_out.weight has rows of 128, which the blocks of 256 of Q4_K do not fill",
    ),
]


@pytest.mark.parametrize(("pattern", "kind", "message"), UNFIT)
def test_a_recipe_that_does_not_fit_is_refused_before_writing(checkpoint, tmp_path, pattern, kind, message):
    """A pattern without effect and a type that a tensor cannot have are errors; nothing is written."""
    text = WHOLE.replace('"blk.[0-2].ssm_out.weight" = "BF16"', f'"{pattern}" = "{kind}"')
    path = write_recipe(tmp_path, text)
    with pytest.raises(QuantizationError) as caught:
        convert_checkpoint(checkpoint, tmp_path / "m.gguf", recipe=path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]


def test_a_width_that_the_head_cannot_have_is_refused(tmp_path):
    """The head's types are checked as all others are."""
    source = write_checkpoint(tmp_path / "narrow", hidden=96, ffn=96)
    text = WHOLE.partition("[tensors]")[0].replace("Q8_0", "Q6_K")
    with pytest.raises(QuantizationError, match=r"token_embd\.weight has rows of 96, which the blocks of 256 of Q6_K"):
        convert_checkpoint(source, tmp_path / "m.gguf", recipe=write_recipe(tmp_path, text))


def test_two_recipes_of_one_name_are_an_error(checkpoint, tmp_path):
    """Their files would have the same name; the same recipe twice is made once."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(WHOLE)
    second.write_text(WHOLE.replace("Q5_0", "Q5_1"))
    with pytest.raises(QuantizationError, match="two recipes are called mine"):
        convert_checkpoint(checkpoint, tmp_path / "out", recipe=[first, second])
    with pytest.raises(ConversionError, match="needs an importance matrix"):
        convert_checkpoint(checkpoint, tmp_path / "out", recipe="q4-fast")
    assert not (tmp_path / "out").exists()


def test_the_quantizer_takes_a_mix_by_itself(stock, tmp_path):
    """Without a conversion: a file and what a recipe chooses for its tensors."""
    source = stock["BF16"]
    mix = find_recipe("q4-protected").choose_types(shapes_of(source))
    quantize_file(source.path, tmp_path / "q.gguf", "Q4_K_M", mix=mix, threads=1)
    types = {name: tensor.type for name, tensor in GgufFile.read(tmp_path / "q.gguf").tensors.items()}
    assert mix.tensors.items() <= types.items()
    assert types["blk.0.ffn_up.weight"] == "Q4_K"
