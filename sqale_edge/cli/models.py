"""`sqale-edge models`: get models, and look after those that are there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sqale_edge.cli import EXIT_ERROR
from sqale_edge.cli.listening import listening
from sqale_edge.cli.options import PATH, join_options, json_option
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.errors import Cancelled, QuantizationError

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.installed import InstalledModel
    from sqale_edge.store.training_texts import PromptChoice


@click.group()
def models() -> None:
    """Get models once, and keep them in a folder of your own; nothing but `pull` and `add` ever connects.

    \b
    Examples:
      sqale-edge models list
      sqale-edge models pull sqale
      sqale-edge ask shop.sqlite "How many customers are there?" --model sqale
    """


def _check_quant(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """The type as llama.cpp spells it."""
    if value is None:
        return None
    from sqale_edge.llama.quantize import check_file_type  # noqa: PLC0415 - keeps --help light

    try:
        return check_file_type(value)
    except QuantizationError as error:
        raise click.BadParameter(printable(f"{error}; {error.hint}")) from error


# What `pull` and `add` have in common.
_new_model_options = join_options(
    click.option("--name", help="What the model is to be called. [default: after its origin]"),
    click.option(
        "--imatrix", type=PATH, metavar="FILE", help="An importance matrix for the conversion; see `imatrix`."
    ),
    click.option("--recipe", metavar="NAME|FILE", help="Convert it by a recipe instead; see convert --list-recipes."),
    click.option(
        "-q",
        "--quant",
        metavar="TYPE",
        callback=_check_quant,
        help="File type to convert a checkpoint to. [default: Q4_K_M]",
    ),
    click.option(
        "--training-prompt",
        type=PATH,
        metavar="FILE",
        help="Take them from this sqale_agent.py. [default: of the model's own repository]",
    ),
    click.option("--no-training-prompt", is_flag=True, help="Do without the texts that the model was trained with."),
    click.option("--offline", is_flag=True, help="Connect to nothing; say what to do by hand instead."),
    json_option,
)


@models.command("list")
@json_option
def list_command(*, as_json: bool) -> None:
    """Show the models that are there, those that have a name to pull, and what was not finished.

    \b
    Example:
      sqale-edge models list
    """
    from sqale_edge.cli.models_text import format_list, list_models  # noqa: PLC0415 - keeps --help light

    entries = list_models()
    write_out(dump_json(entries, indent=2) if as_json else format_list(entries))


@models.command()
@click.argument("model")
@_new_model_options
@click.option("--keep-source", is_flag=True, help="Keep the checkpoint that was converted, beside the model.")
def pull(
    model: str,
    *,
    name: str | None,
    quant: str | None,
    recipe: str | None,
    imatrix: Path | None,
    keep_source: bool,
    training_prompt: Path | None,
    no_training_prompt: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Download MODEL from Hugging Face, convert it, check it, and print the path of its file.

    MODEL is a name that `models list` shows, OWNER/REPOSITORY with a fine-tune of Qwen3.5, or one finished file,
    hf:OWNER/REPOSITORY/FILE.gguf; with @REVISION behind it if wanted. What was interrupted goes on where it was.

    \b
    Examples:
      sqale-edge models pull sqale
      sqale-edge models pull trl-lab/qwen3.5-2b-grpo-bird --quant Q8_0
      sqale-edge models pull hf:someone/qwen3.5-2b-grpo-sqale-GGUF/model-Q4_K_M.gguf --name sqale-ready
    """
    from sqale_edge.store.care import list_unfinished  # noqa: PLC0415 - keeps --help light
    from sqale_edge.store.pull import pull_model  # noqa: PLC0415

    prompt = _choose_prompt(training_prompt, no_training_prompt=no_training_prompt)
    try:
        with listening() as listener:
            installed = pull_model(
                model,
                name=name,
                quant=quant,
                recipe=recipe,
                imatrix=imatrix,
                keep_source=keep_source,
                prompt=prompt,
                is_offline=offline,
                listener=listener,
            )
    except Cancelled:
        for one in list_unfinished():
            kept = f"{one.n_bytes / 1e6:,.1f} MB of {one.name} are kept: the same command goes on"
            click.echo(printable(f"{kept}, and sqale-edge models rm {one.name} deletes them."), err=True)
        raise
    _report(installed, as_json=as_json)


@models.command()
@click.argument("source")
@_new_model_options
@click.option("--copy/--link", default=True, show_default=True, help="Copy a GGUF file, or leave it where it is.")
def add(
    source: str,
    *,
    name: str | None,
    quant: str | None,
    recipe: str | None,
    imatrix: Path | None,
    copy: bool,
    training_prompt: Path | None,
    no_training_prompt: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Take SOURCE into the store: a GGUF file, or the folder of a checkpoint, which is converted.

    SOURCE is a path, or a model of another program: ollama:NAME, lmstudio:PUBLISHER/REPOSITORY.

    \b
    Examples:
      sqale-edge models add model.gguf --name mine
      sqale-edge models add ollama:qwen2.5-coder:1.5b --link
      sqale-edge models add qwen3.5-2b-grpo-sqale/ --name sqale
    """
    from sqale_edge.store.add import add_model  # noqa: PLC0415 - keeps --help light

    prompt = _choose_prompt(training_prompt, no_training_prompt=no_training_prompt)
    with listening() as listener:
        installed = add_model(
            source,
            name=name,
            quant=quant,
            recipe=recipe,
            imatrix=imatrix,
            is_linked=not copy,
            prompt=prompt,
            is_offline=offline,
            listener=listener,
        )
    _report(installed, as_json=as_json)


@models.command()
@click.argument("name")
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Say what the model NAME is: its origin, digests, licence and training prompt.

    \b
    Example:
      sqale-edge models show sqale
    """
    from sqale_edge.cli.models_text import describe, describe_demo, format_model  # noqa: PLC0415 - keeps --help light
    from sqale_edge.models import DEMO  # noqa: PLC0415
    from sqale_edge.store.care import get_installed  # noqa: PLC0415

    about = describe_demo() if name == DEMO else describe(get_installed(name))
    write_out(dump_json(about, indent=2) if as_json else format_model(about))


@models.command()
@click.argument("name", required=False)
@json_option
def verify(name: str | None, *, as_json: bool) -> int:
    """Read every byte of the model NAME, or of all models, and compare digests; exit code 1 if one differs.

    \b
    Example:
      sqale-edge models verify
    """
    from sqale_edge.cli.models_text import find_demo_damage  # noqa: PLC0415 - keeps --help light
    from sqale_edge.errors import StoreError  # noqa: PLC0415
    from sqale_edge.installed import list_names  # noqa: PLC0415
    from sqale_edge.models import DEMO  # noqa: PLC0415
    from sqale_edge.store.care import find_damage, get_installed  # noqa: PLC0415

    problems: dict[str, list[str]] = {}
    with listening() as listener:
        for each in [name] if name else [*list_names(), DEMO]:
            try:
                problems[each] = find_demo_damage() if each == DEMO else find_damage(get_installed(each), listener)
            except StoreError as error:
                problems[each] = [str(error)]
    if as_json:
        write_out(dump_json([{"name": each, "problems": found} for each, found in problems.items()], indent=2))
    else:
        write_out("\n".join(f"{each}: {'; '.join(found) or 'as it was stored'}" for each, found in problems.items()))
    damaged = [each for each, found in problems.items() if found]
    if not damaged:
        return 0
    click.echo(
        printable(
            f"Error: damaged: {', '.join(damaged)}. Fix: sqale-edge models rm {damaged[0]}, and pull or add it again."
        ),
        err=True,
    )
    return EXIT_ERROR


@models.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def rm(name: str, *, yes: bool, as_json: bool) -> None:
    """Delete the model NAME, and what is left of an interrupted download of it. A linked file stays.

    \b
    Example:
      sqale-edge models rm sqale
    """
    from sqale_edge.store.care import remove_model  # noqa: PLC0415 - keeps --help light

    if not yes and sys.stdin is not None and sys.stdin.isatty():
        click.confirm(printable(f"Delete the model {name!r}?"), abort=True, err=True)
    with listening() as listener:
        remove_model(name, listener)
    if as_json:
        write_out(dump_json({"removed": name.lower()}))


@models.command()
@click.argument("name")
@json_option
def path(name: str, *, as_json: bool) -> None:
    """Print the path of the model NAME, for other programs.

    \b
    Example:
      sqale-edge models path sqale
    """
    from sqale_edge.cli.models_text import describe_path  # noqa: PLC0415 - keeps --help light

    found = describe_path(name)
    write_out(dump_json(found) if as_json else found["path"])


def _choose_prompt(file: Path | None, *, no_training_prompt: bool) -> PromptChoice:
    from sqale_edge.store.training_texts import PromptChoice  # noqa: PLC0415 - keeps --help light

    if file and no_training_prompt:
        raise click.UsageError("--training-prompt and --no-training-prompt contradict each other")
    return PromptChoice(file, is_wanted=not no_training_prompt)


def _report(installed: InstalledModel, *, as_json: bool) -> None:
    """The new model: its path, and what a person should know."""
    from sqale_edge.cli.models_text import describe  # noqa: PLC0415 - keeps --help light

    for note in installed.manifest.notes:
        click.echo(printable(f"Note: {note}."), err=True)
    name = installed.manifest.name
    click.echo(f"{name} is ready: sqale-edge ask DB QUESTION --model {name}", err=True)
    write_out(dump_json(describe(installed), indent=2) if as_json else str(installed.path))
