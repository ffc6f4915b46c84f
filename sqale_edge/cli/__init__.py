"""The command line: parse, call, print.

stdout carries the answer and nothing else; everything for the eye goes to stderr.
Exit codes: 0 answered, 1 an error (one line on stderr), 2 wrong usage, 3 finished without an answer, 130 cancelled.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from sqale_edge._version import __version__
from sqale_edge.cli.streams import prepared_streams
from sqale_edge.cli.text import printable
from sqale_edge.errors import Cancelled, SqaleEdgeError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_ERROR, EXIT_NO_ANSWER, EXIT_CANCELLED = 1, 3, 130

# Each command is the object of its own name in the module of its name; imported when it is used.
_COMMANDS = ("ask", "bench", "bundle", "conformance", "convert", "demo", "doctor", "drift", "eval", "imatrix", "models")


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, so that the others stay light."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"sqale_edge.cli.{cmd_name}"), cmd_name)
        return command

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click does it, which prints help here."""
        with _person_may_end():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _person_may_end():
            return super().invoke(ctx)


@contextlib.contextmanager
def _person_may_end() -> Iterator[None]:
    """What click would make more of: a reader that has seen enough (`| head`) is no error, Ctrl-C no empty line."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(0) from None
    except KeyboardInterrupt:
        raise Cancelled("the command was cancelled") from None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="sqale-edge")
@click.option("-v", "--verbose", is_flag=True, help="Show the log, llama.cpp's included, on stderr.")
def cli(*, verbose: bool) -> None:
    """Ask questions of SQLite databases, with a small model that runs on this machine."""
    if verbose:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    with prepared_streams():
        code = _run(args)
    sys.exit(code)


def _run(args: list[str] | None) -> int:
    try:
        result: Any = cli.main(args, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt, Cancelled):
        click.echo("Cancelled.", err=True)
        return EXIT_CANCELLED
    except SqaleEdgeError as error:
        click.echo(format_error(error), err=True)
        return EXIT_ERROR
    except OSError as error:
        click.echo(printable(f"Error: {error}."), err=True)
        return EXIT_ERROR
    return result if isinstance(result, int) else 0


def format_error(error: SqaleEdgeError) -> str:
    """The one line that a person sees: what failed, and the fix."""
    message = " ".join(str(error).split())
    return printable(f"Error: {message}. Fix: {error.hint}." if error.hint else f"Error: {message}.")
