"""The documentation says what the program does."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import click
import pytest

import sqale_edge
from sqale_edge.cli import cli

ROOT = Path(__file__).parents[1]
MARKDOWN = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = runpy.run_path(str(ROOT / "docs/generate.py"))["PAGES"]
CONTEXT = click.Context(cli, info_name="sqale-edge")


def shell_blocks(text):
    return re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name):
    """The committed page is the one that the installed program makes; if not: `python docs/generate.py`."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name]()


@pytest.mark.parametrize("name", cli.list_commands(CONTEXT))
def test_every_command_has_an_example(name):
    """Help describes the command and each option, and shows the command as it is typed, on a line of its own."""
    command = cli.get_command(CONTEXT, name)
    text = command.get_help(click.Context(command, info_name=name, parent=CONTEXT))
    assert re.search(rf"^  Examples?:\n    sqale-edge {name}\b", text, re.MULTILINE)
    assert "\\b" not in text
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_readme_has_two_commands():
    """A fresh machine needs exactly two commands: one to install and see it work, one to install and test."""
    blocks = shell_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    commands = [block.replace("\\\n", " ").strip() for block in blocks]
    assert len(commands) == 2
    assert all("\n" not in command for command in commands)
    assert re.search(r"pip install \. && \S*sqale-edge demo$", commands[0])
    assert re.search(r"pip install '\.\[dev\]'.*&& \S*pytest$", commands[1])


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_local_links_resolve(page):
    """Every link to a file of this repository finds one."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def spoken_texts():
    """Every text of the package's source, with `…` for what is only known at run time."""
    for path in Path(sqale_edge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("name", ["models.md", "troubleshooting.md"])
def test_errors_of_the_troubleshooting_are_real(name):
    """Each message in the tables is one that the program can write, whole."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \|", page.partition("\n## When it fails")[2] or page, re.MULTILINE)
    assert len(rows) > 10
    assert set(rows) - set(spoken_texts()) == set()
