"""What other programs hold on to, and how the modules may lean on each other."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import sqale_edge
from sqale_edge import errors

PACKAGE = Path(sqale_edge.__file__).parent
FILES = {
    ".".join(("sqale_edge", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# Each of these may import those before it. `llama`, `remote`, `convert`, `benchmarks`, `cli` are packages, free inside.
ORDER = """
    _version errors settings home episode results
    sql_text new_files private_files row_budget sqlite_guard sqlite_files sqlite_errors
    text_files csv_files json_files column_types imports database
    schema tool_text tools grammar
    exclusive engine batch llama convert catalogue installed models remote loading
    rendering chat_template replies protocol transcripts prefix_files prefixes turn loop request running agent vote
    testing sample_shop benchmarks store bundle cli
""".split()  # noqa: SIM905 - a line for each layer
HEAVY = {"llama_cpp", "numpy", "huggingface_hub", "gguf"}


def part_of(module):
    """`sqale_edge.llama.engine` -> `llama`; the package itself -> the empty string."""
    return module.split(".")[1] if "." in module else ""


def imports_of(module):
    """(imported module of ours, whether importing `module` runs it) for every import anywhere in it."""
    path = FILES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = set()
    for node in ast.walk(tree):
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_typing or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            later |= set(ast.walk(node)) - {node}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "sqale_edge":
                yield name, node not in later


def test_tests_run_against_the_installed_package():
    """The wheel is tested, not the source folder beside the tests: call `pytest`, not `python -m pytest`."""
    assert Path(__file__).parents[1] / "sqale_edge" != PACKAGE


@pytest.mark.parametrize("name", ["sqale_edge", "sqale_edge.benchmarks", "sqale_edge.convert", "sqale_edge.llama"])
def test_all_is_the_public_surface(name):
    """`__all__` is sorted, and lists every public name that is not a module, and no other."""
    module = importlib.import_module(name)
    public = {
        key for key, value in vars(module).items() if key[0] != "_" and not isinstance(value, types.ModuleType)
    } | ({"__version__"} & vars(module).keys())
    assert module.__all__ == sorted(public)


def test_every_module_has_its_place():
    """A new module is put into ORDER; one that is gone is taken out."""
    assert {part_of(module) for module in FILES} - {""} == set(ORDER)


@pytest.mark.parametrize("module", FILES)
def test_imports_point_one_way(module):
    """A module imports only what stands before it in ORDER, lazy and type-only imports included."""
    here = part_of(module)
    allowed = (
        {"errors", "new_files", "llama"} if here == "convert" else {*ORDER[: ORDER.index(here)]} if here else {*ORDER}
    )
    imported = {part_of(name) for name, _ in imports_of(module)}
    assert imported - allowed - {here} == set()


@pytest.mark.parametrize("module", FILES)
def test_llama_and_convert_are_loaded_late(module):
    """Importing a module loads llama.cpp or the conversion only if it is part of them."""
    own = {"llama": {"llama"}, "convert": {"convert", "llama"}}.get(part_of(module), set())
    eager = {part_of(name) for name, is_eager in imports_of(module) if is_eager}
    assert eager & {"llama", "convert"} <= own


@pytest.mark.parametrize(
    "module",
    [
        "sqale_edge",
        "sqale_edge.testing",
        *(
            f"sqale_edge.cli.{name}"
            for name in ("ask", "bench", "bundle", "convert", "doctor", "drift", "eval", "imatrix")
        ),
    ],
)
def test_import_is_light(module):
    """Importing, and so `--help`, loads neither llama.cpp nor numpy nor the hub's client."""
    code = f"import sys, {module}; print(*sys.modules)"  # -P: not the source folder here
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_error_tree_equals_its_drawing():
    """The drawing in the docstring of `errors` names every public type, under its parent."""
    drawn, open_parents = {}, []
    for line in errors.__doc__.split("```")[1].strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.findall(r"\b[A-Z]\w+", re.split(r" {4,}", line.strip())[0])
        open_parents[depth:] = names[:1]
        drawn |= dict.fromkeys(names, open_parents[depth - 1] if depth else "Exception")
    real = {
        name: next(base.__name__ for base in kind.__mro__[1:] if base.__name__[0] != "_")
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and name[0] != "_"
    }
    assert drawn == real


@pytest.mark.parametrize("module", FILES)
def test_every_module_has_a_docstring(module):
    """Each file begins by saying what it is for."""
    assert ast.get_docstring(ast.parse(FILES[module].read_text(encoding="utf-8")))
