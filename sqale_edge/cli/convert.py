"""`sqale-edge convert`: a checkpoint becomes GGUF files, or one file is verified."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

from sqale_edge.cli.options import PATH
from sqale_edge.cli.signals import end_requests_handled
from sqale_edge.cli.steps import Steps
from sqale_edge.cli.tables import make_table, render_table
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.errors import ConversionError, SqaleEdgeError

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.convert import Conversion, Verification
    from sqale_edge.convert.conversion import ConvertedFile
    from sqale_edge.convert.recipe import Recipe

_WIDTH = 120


def _check_types(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The types as llama.cpp spells them, each once."""
    from sqale_edge.llama.quantize import check_file_type  # noqa: PLC0415 - keeps --help light

    try:
        return tuple(dict.fromkeys(map(check_file_type, names)))
    except ConversionError as error:
        raise click.BadParameter(_one_line(error)) from error


def _check_recipes(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[Recipe, ...]:
    from sqale_edge.convert.recipe import find_recipe  # noqa: PLC0415 - keeps --help light

    try:
        return tuple(map(find_recipe, names))
    except ConversionError as error:
        raise click.BadParameter(_one_line(error)) from error


@click.command()
@click.argument("checkpoint", required=False, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Needed with CHECKPOINT: a .gguf file; a folder, made if it is missing; or a name with {quant} in it.",
)
@click.option(
    "-q",
    "--quant",
    multiple=True,
    metavar="TYPE",
    callback=_check_types,
    help="File type, as often as wanted: Q8_0, BF16, ... [default: Q4_K_M, if there is no --recipe]",
)
@click.option(
    "--recipe",
    multiple=True,
    metavar="NAME|FILE",
    callback=_check_recipes,
    help="A recipe of --list-recipes, or of a .toml file: other types for single tensors. As often as wanted.",
)
@click.option(
    "--imatrix",
    type=PATH,
    metavar="FILE",
    help="An importance matrix of this model, of `imatrix` or llama.cpp: what must be kept best.",
)
@click.option("--list-recipes", is_flag=True, help="Only show the recipes there are.")
@click.option(
    "--verify",
    type=PATH,
    metavar="FILE",
    help="Only check this GGUF file: read it, load it, decode a token.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--no-training-prompt", is_flag=True, help="Leave the checkpoint's sqale_agent.py alone.")
@click.option("--name", help="The model's name. [default: of the repository or the folder]")
@click.option(
    "--repository", metavar="OWNER/NAME", help="Where the checkpoint comes from. [default: what the folder tells]"
)
@click.option("--revision", help="Its commit. [default: what the folder tells]")
@click.option(
    "--threads",
    type=click.IntRange(1, 512),
    help="CPU threads for quantizing. [default: all that this process may use]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
def convert(
    checkpoint: Path | None,
    *,
    output: Path | None,
    quant: tuple[str, ...],
    recipe: tuple[Recipe, ...],
    imatrix: Path | None,
    list_recipes: bool,
    verify: Path | None,
    overwrite: bool,
    no_training_prompt: bool,
    name: str | None,
    repository: str | None,
    revision: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Convert CHECKPOINT to GGUF, and print the paths of the new files.

    CHECKPOINT is a folder with config.json, weights as safetensors, and tokenizer.json.

    \b
    Examples:
      sqale-edge convert qwen3.5-2b-grpo-sqale -o sqale.gguf
      sqale-edge convert qwen3.5-2b-grpo-sqale -o models/ -q Q4_K_M -q Q8_0
      sqale-edge convert qwen3.5-2b-grpo-sqale -o closer.gguf --recipe q4-protected
      sqale-edge convert --list-recipes
      sqale-edge convert --verify sqale.gguf
    """
    from sqale_edge.convert import convert_checkpoint  # noqa: PLC0415 - keeps --help light
    from sqale_edge.convert.outputs import check_target, list_outputs  # noqa: PLC0415

    if list_recipes:
        _check_alone("--list-recipes")
        _show_recipes(as_json=as_json)
        return
    if (checkpoint is None) == (verify is None):
        raise click.UsageError("give either a CHECKPOINT to convert, or --verify FILE, or --list-recipes")
    if verify is not None:
        _check_alone("--verify")
        _verify(verify, as_json=as_json)
        return
    assert checkpoint is not None, "one of the two was given"
    if output is None:
        raise click.UsageError("give the output with -o FILE")
    quants, recipes = quant or None, recipe or None
    try:
        check_target(output, [each.label for each in list_outputs(quants, recipes)])
    except ConversionError as error:
        raise click.UsageError(_one_line(error)) from error
    console = Console(stderr=True)
    steps = Steps(console)
    with end_requests_handled(steps.end), steps:
        conversion = convert_checkpoint(
            checkpoint,
            output,
            quants,
            recipe=recipes,
            imatrix=imatrix,
            overwrite=overwrite,
            training_prompt=not no_training_prompt,
            name=name,
            repository=repository,
            revision=revision,
            threads=threads,
            on_progress=steps.show,
        )
    for line in _describe(conversion):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    _print(conversion.to_dict(), "\n".join(str(file.path) for file in conversion.files), as_json=as_json)


def _show_recipes(*, as_json: bool) -> None:
    from sqale_edge.convert.outputs import DEFAULT_QUANT  # noqa: PLC0415 - keeps --help light
    from sqale_edge.convert.recipe import list_recipes  # noqa: PLC0415

    recipes = list_recipes()
    if as_json:
        write_out(dump_json({"default": DEFAULT_QUANT, "recipes": [recipe.to_dict() for recipe in recipes]}, indent=2))
        return
    table = make_table()
    for column in ("recipe", "base", "importance matrix", "about"):
        table.add_column(column, overflow="fold")
    for recipe in recipes:
        table.add_row(recipe.name, recipe.base, recipe.imatrix, recipe.about)
    write_out(f"{render_table(table, _WIDTH)}\nWithout --recipe: --quant {DEFAULT_QUANT}, llama.cpp's own mix")


def _check_alone(option: str) -> None:
    """Raise for options beside `option`, with which nothing is converted."""
    context = click.get_current_context()
    given = {
        parameter.opts[-1]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    if unused := given - {option, "--json"}:
        raise click.UsageError(f"{option} converts nothing: leave out {', '.join(sorted(unused))}")


def _verify(path: Path, *, as_json: bool) -> None:
    from sqale_edge.convert import verify_file  # noqa: PLC0415 - keeps --help light

    try:
        verification = verify_file(path)
    except ConversionError as error:
        error.hint = error.hint or "convert or download it again"
        raise
    _print(dataclasses.asdict(verification), _describe_file(str(path), verification), as_json=as_json)


def _one_line(error: SqaleEdgeError) -> str:
    return printable(f"{error}; {error.hint}" if error.hint else str(error))


def _print(report: dict[str, Any], text: str, *, as_json: bool) -> None:
    """What belongs on stdout."""
    write_out(dump_json(report, indent=2) if as_json else text)


def _describe(conversion: Conversion) -> list[str]:
    """The report for a person."""
    dropped = (
        f"{conversion.n_dropped} tensors dropped that only serve pictures or drafts" if conversion.n_dropped else ""
    )
    lines = [", ".join(filter(None, [f"{conversion.name}: converted in {conversion.seconds:.1f} s", dropped]))]
    lines += [
        f"  {_describe_file(str(file.path), file.verification)}{_describe_making(file)}, {file.seconds:.1f} s"
        for file in conversion.files
    ]
    found = [f"{key.rpartition('.')[2]} from {name}" for key, name in conversion.prompt.found.items()]
    if found:
        lines.append(f"  training prompt: {', '.join(found)}")
    if conversion.prompt.missing:
        names = ", ".join(key.rpartition(".")[2] for key in conversion.prompt.missing)
        lines.append(f"  training prompt: not found: {names}; the runtime uses its own wording for these")
    return lines + [f"  note: {note}" for note in conversion.notes]


def _describe_file(path: str, verification: Verification) -> str:
    types = ", ".join(f"{count} {kind}" for kind, count in sorted(verification.types.items()))
    size = f"{verification.n_bytes / 1e6:,.1f} MB, {verification.n_parameters / 1e6:,.1f} M parameters"
    parts = f"{verification.n_tensors} tensors ({types}), {verification.n_vocab:,} tokens"
    return f"{path}: {size}, {parts}, verified: it loads and decodes"


def _describe_making(file: ConvertedFile) -> str:
    recipe = f", recipe {file.recipe} on {file.quant}" if file.recipe else ""
    return recipe + (", with an importance matrix" if file.imatrix_sha256 else "")
