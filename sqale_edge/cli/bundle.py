"""`sqale-edge bundle`: this program and models for machines without a network."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from sqale_edge.cli import EXIT_ERROR
from sqale_edge.cli.listening import listening
from sqale_edge.cli.options import PATH, json_option
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.bundle.installer.contents import Contents
    from sqale_edge.store.steps import Listener

_digest = click.option(
    "--digest", metavar="SHA256", help="The bundle's digest, as its maker says it is; another bundle is refused."
)


@click.group()
def bundle() -> None:
    """Carry this program, all that it needs and models to machines without a network.

    \b
    Examples:
      sqale-edge bundle create --model sqale
      sqale-edge bundle verify sqale-edge-0.1.0-linux-x86_64-python3.11.zip
      sqale-edge bundle install sqale-edge-0.1.0-linux-x86_64-python3.11.zip
    """


@bundle.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="PATH",
    help="A zip if it ends with .zip, else a folder. [default: a zip here, named after what is in it]",
)
@click.option("-m", "--model", "models", multiple=True, help="A name in the store, or a GGUF file; may be repeated.")
@click.option("--platform", help="Such as linux-x86_64, macos-arm64, windows-x86_64. [default: this machine's]")
@click.option("--python-version", "python", metavar="3.N", help="Of the other machine. [default: of this Python]")
@click.option(
    "--wheel",
    "wheels",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Take this wheel, rather than what is installed here; may be repeated.",
)
@click.option(
    "--find-links",
    type=PATH,
    multiple=True,
    metavar="FOLDER",
    help="Where there are wheels for another platform; may be repeated.",
)
@click.option("--offline", is_flag=True, help="Download no wheels, also for another platform.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle of that name.")
@json_option
def create(
    *,
    output: Path | None,
    models: tuple[str, ...],
    platform: str | None,
    python: str | None,
    wheels: tuple[Path, ...],
    find_links: tuple[Path, ...],
    offline: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write a bundle, and print its path.

    For this platform and this Python the wheels are made of what is installed here, and nothing is downloaded. For
    others pip gets what is not the same everywhere; llama-cpp-python has to be compiled there, and is given with
    --wheel.

    \b
    Examples:
      sqale-edge bundle create --model sqale
      sqale-edge bundle create --model sqale --output stick/sqale-edge
      sqale-edge bundle create --platform windows-x86_64 --wheel llama_cpp_python-0.3.36-py3-none-win_amd64.whl
    """
    from sqale_edge.bundle.creation import create_bundle  # noqa: PLC0415 - keeps --help light

    with listening() as listener:
        made = create_bundle(
            output,
            models,
            platform=platform,
            python=python,
            wheels=wheels,
            find_links=find_links,
            is_offline=offline,
            overwrite=overwrite,
            listener=listener,
        )
    for note in made.notes:
        _say(f"Note: {note}.")
    _say(f"{made.n_bytes / 1e6:,.1f} MB for {made.about['platform']} with Python {made.about['python']}.")
    _say(f"Its digest, to be sent in another way than the bundle: {made.digest}")
    write_out(dump_json(made.to_dict(), indent=2) if as_json else str(made.path))


@bundle.command()
@click.argument("path", type=PATH, metavar="BUNDLE")
@_digest
@json_option
def verify(path: Path, *, digest: str | None, as_json: bool) -> int:
    """Read every byte of BUNDLE, a folder or a zip, and print its digest; exit code 1 if anything is wrong.

    What is missing, changed, cut, swapped or too much is found. A bundle of which all was made anew by somebody else is
    as whole as the first one; only its digest differs: compare it with what the maker says, or give that with --digest.

    \b
    Example:
      sqale-edge bundle verify sqale-edge-0.1.0-linux-x86_64-python3.11.zip
    """
    from sqale_edge.bundle.creation import open_bundle  # noqa: PLC0415 - keeps --help light
    from sqale_edge.bundle.installer.contents import check_digest, find_damage  # noqa: PLC0415

    with _errors(path), listening() as listener:
        contents, problems = find_damage(open_bundle(path), _shower(listener))
    if as_json:
        write_out(dump_json({"path": str(path), "digest": contents.digest, "problems": problems}, indent=2))
    else:
        write_out("\n".join(problems) or contents.digest)
    if problems:
        line = (
            f"Error: damaged: {str(path)!r}, {len(problems)} of its files. Fix: copy it again, or have it made again."
        )
        click.echo(printable(line), err=True)
        return EXIT_ERROR
    with _errors(path):
        check_digest(contents, digest)
    _say("whole, and the one with that digest" if digest else "whole; compare the digest with what its maker says")
    return 0


@bundle.command()
@click.argument("path", type=PATH, metavar="BUNDLE")
@click.option(
    "--venv", type=PATH, metavar="FOLDER", help="Where to install it. [default: sqale-edge in this user's home]"
)
@_digest
@click.option("--no-models", is_flag=True, help="Install the program alone.")
@click.option("--models-only", is_flag=True, help="Put the models into this user's store, and install no program.")
@json_option
def install(
    path: Path, *, venv: Path | None, digest: str | None, no_models: bool, models_only: bool, as_json: bool
) -> None:
    """Install BUNDLE, a folder or a zip, without a network, and print the path of its command.

    Its program gets a virtual environment of its own; its models go into this user's store. Every byte is looked at
    before. On a machine without sqale-edge run the install.py of the bundle instead, which does the same.

    \b
    Examples:
      sqale-edge bundle install sqale-edge-0.1.0-linux-x86_64-python3.11.zip --venv ~/tools/sqale-edge
      sqale-edge bundle install stick/sqale-edge --models-only
    """
    from sqale_edge.bundle.creation import open_bundle  # noqa: PLC0415 - keeps --help light
    from sqale_edge.bundle.installer.contents import check_bundle  # noqa: PLC0415
    from sqale_edge.bundle.installer.installation import install_bundle  # noqa: PLC0415
    from sqale_edge.bundle.installer.place import choose_place, find_command  # noqa: PLC0415

    if models_only and (no_models or venv):
        raise click.UsageError("--models-only installs no program: leave out --no-models and --venv")
    if models_only:
        with _errors(path), listening() as listener:
            contents = check_bundle(open_bundle(path), _shower(listener), digest)
            report = _place_models(contents, listener)
        write_out(dump_json(report, indent=2) if as_json else "\n".join(report["models"]))
        return
    with _errors(path):
        venv = choose_place(venv)
    with _errors(venv), listening() as listener:
        found = install_bundle(open_bundle(path), venv, _shower(listener), digest=digest, models=not no_models)
    command = find_command(venv)
    _say(f"The digest of the bundle is {found}")
    _say(f"Try it: {command} demo")
    write_out(dump_json({"command": str(command), "venv": str(venv), "digest": found}) if as_json else str(command))


def _place_models(contents: Contents, listener: Listener) -> dict[str, Any]:
    from sqale_edge.bundle.models import place_models  # noqa: PLC0415 - keeps --help light

    placed = place_models(contents, contents.read_about()["models"], listener)
    if not placed:
        _say("The bundle holds no model.")
    for name, is_new in placed.items():
        _say(f"{name} {'is ready' if is_new else 'was there already'}: sqale-edge ask DB QUESTION --model {name}")
    return {"digest": contents.digest, "models": list(placed)}


@contextlib.contextmanager
def _errors(where: Path) -> Iterator[None]:
    """What the installer raises, which knows nothing of this package, or the system becomes a BundleError."""
    from sqale_edge.bundle.installer.contents import InstallError, explain  # noqa: PLC0415 - keeps --help light

    try:
        yield
    except (InstallError, OSError) as error:
        known = error if isinstance(error, InstallError) else explain(error, where)
        raise BundleError(str(known), path=where, hint=known.hint) from error


def _shower(listener: Listener) -> Any:
    """The listener as the installer tells it."""
    from sqale_edge.store.steps import Step  # noqa: PLC0415 - keeps --help light

    return lambda step, name, n_done, n_total: listener.show(Step(step, name, n_done, n_total))


def _say(line: str) -> None:
    click.echo(printable(line), err=True)
