"""Models of the store that are made by a recipe, or with an importance matrix."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sqale_edge.convert.gguf_file import GgufFile
from sqale_edge.convert.imatrix import make_imatrix
from sqale_edge.convert.recipe import find_recipe
from stand_in_hub import READY_TEXT

from sqale_edge.errors import QuantizationError, StoreError
from sqale_edge.installed import list_names, read_installed
from sqale_edge.models import find_model
from sqale_edge.store.add import add_model
from sqale_edge.store.pull import pull_model


@pytest.fixture
def matrix(tmp_path, pulled):
    """An importance matrix that fits the checkpoint."""
    _, _, installed = pulled
    shapes = {name: tensor.shape for name, tensor in GgufFile.read(installed.path).tensors.items()}
    names = [name for name, shape in shapes.items() if len(shape) == 2 and name.startswith("blk.")]
    sums = {name: np.ones(shapes[name][1]) for name in names}
    make_imatrix(sums, dict.fromkeys(sums, 9), ["text.txt"], 1).write(tmp_path / "i.gguf")
    return tmp_path / "i.gguf"


def test_a_recipe_is_pulled_kept_and_found_again(hub, run):
    """It has a name and a file of its own, says what it was made by, and is not made twice."""
    code, out, err = run("models", "pull", "sqale", "--recipe", "q4-protected")
    assert code == 0, err
    installed = read_installed("sqale-q4-protected")
    assert out == f"{installed.path}\n"
    assert installed.path.name == "qwen3.5-2b-grpo-sqale-q4-protected.gguf"
    recipe = find_recipe("q4-protected")
    manifest = installed.manifest
    assert (manifest.quant, manifest.recipe, manifest.recipe_sha256) == ("Q4_K_M", "q4-protected", recipe.digest)
    assert manifest.imatrix_sha256 is None
    assert find_model("sqale-q4-protected").path == installed.path
    _, out, _ = run("models", "show", "sqale-q4-protected")
    assert re.search(rf"^recipe +q4-protected \(SHA-256 {recipe.digest}\)$", out, re.MULTILINE)
    _, out, _ = run("models", "list")
    assert re.search(r"^sqale-q4-protected +here +q4-protected ", out, re.MULTILINE)
    assert "--recipe q4-protected" in installed.renewal()
    n_before = len(hub.list_downloads())
    assert pull_model("sqale", recipe="q4-protected").path == installed.path
    assert len(hub.list_downloads()) == n_before


def test_an_importance_matrix_makes_another_model(hub, matrix):
    """The same name with it and without it: each is made when it is asked for, and the manifest has the digest."""
    first = pull_model("sqale", recipe="q4-fast", imatrix=matrix, name="mine")
    assert first.manifest.imatrix_sha256 == GgufFile.read(first.path).fields["sqale.imatrix.sha256"]
    assert "--imatrix FILE" in first.renewal()
    second = pull_model("sqale", quant="Q4_0", name="mine")
    assert (second.manifest.recipe, second.manifest.imatrix_sha256) == (None, None)
    assert first.path != second.path


def test_a_folder_is_added_by_a_recipe(checkpoint, home):
    """As it is pulled."""
    installed = add_model(str(checkpoint), name="mine", recipe="q4-protected", is_offline=True)
    assert installed.manifest.recipe == "q4-protected"
    assert GgufFile.read(installed.path).fields["sqale.recipe.name"] == "q4-protected"


def test_what_cannot_be_made_is_known_before_anything_is_asked(hub, ready, matrix, tmp_path, run):
    """A recipe that is not there or lacks its matrix, a damaged one, a contradiction, a finished file."""
    (tmp_path / "damaged.gguf").write_bytes(matrix.read_bytes()[:-40])
    cases = [
        ({"recipe": "q4-best"}, QuantizationError, "there is no recipe 'q4-best'"),
        ({"recipe": "q4-fast"}, QuantizationError, "the recipe q4-fast needs an importance matrix"),
        ({"recipe": "q4-fast", "imatrix": tmp_path / "damaged.gguf"}, QuantizationError, "'damaged.gguf' cannot be"),
        ({"quant": "BF16", "imatrix": matrix}, QuantizationError, "is of no use for BF16"),
        ({"quant": "Q8_0", "recipe": "q4-fast"}, StoreError, "Q8_0 and the recipe q4-fast contradict each other"),
    ]
    for options, kind, message in cases:
        with pytest.raises(kind, match=re.escape(message)):
            pull_model("sqale", **options)
    for text in (READY_TEXT, str(find_model("demo").path)):
        with pytest.raises(StoreError, match="is a finished file, and q4-protected cannot be made of it"):
            (pull_model if text == READY_TEXT else add_model)(text, recipe="q4-protected")
    code, _, err = run("models", "pull", "sqale", "--recipe", "q4-fast")
    assert code == 1
    assert err.startswith("Error: the recipe q4-fast needs an importance matrix. Fix: give one with --imatrix FILE")
    assert hub.requests == []
    assert list_names() == []
