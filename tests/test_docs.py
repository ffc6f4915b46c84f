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
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


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


def options_of(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", [page for page in MARKDOWN if page.name not in PAGES], ids=lambda page: page.name)
def test_commands_of_the_documentation_exist(page):
    """Each `sqale-edge COMMAND --option` in a page is one that the program has, with these options."""
    text = page.read_text(encoding="utf-8")
    wrong = []
    for line in re.findall(r"(?:^|[\s`/\\])sqale-edge ([a-z][^`|\n]*)", "\n".join(CODE.findall(text)), re.MULTILINE):
        if "…" in line:  # a message of the program
            continue
        command, words = cli, line.split()
        while isinstance(command, click.Group) and words:
            command = command.get_command(CONTEXT, words.pop(0))
        given = [re.match(r"--[a-z-]+", word) for word in words]
        if command is None or {match[0] for match in given if match} - options_of(command):
            wrong.append(line)
    assert wrong == []
