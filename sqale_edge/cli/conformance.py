"""`sqale-edge conformance`: a checkpoint's own tools and texts beside ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sqale_edge.benchmarks.conformance import compare_checkpoint, read_adapter, show_report
from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import PATH, SECONDS
from sqale_edge.cli.text import dump_json, printable, write_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.benchmarks.conformance import Conformance


@click.command()
@click.argument("checkpoint", type=PATH)
@click.argument("db", nargs=-1, required=True, type=PATH)
@click.option(
    "--run-code",
    is_flag=True,
    help="Needed: the checkpoint's sqale_agent.py is run, in a process of its own, with your rights. Read it first.",
)
@click.option("--adapter", type=PATH, metavar="FILE", help="TOML that says how to reach what is not found by itself.")
@click.option(
    "--python", default=sys.executable, metavar="PATH", show_default="this one", help="The Python that runs the code."
)
@click.option("--timeout", type=SECONDS, default=10.0, show_default=True, metavar="S", help="Seconds for each call.")
@click.option("--all", "is_complete", is_flag=True, help="Show every case that differs, not the first three of a kind.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with every text and every difference.")
def conformance(
    *,
    checkpoint: Path,
    db: tuple[Path, ...],
    run_code: bool,
    adapter: Path | None,
    python: str,
    timeout: float,
    is_complete: bool,
    as_json: bool,
) -> int:
    """Compare the tools and texts in CHECKPOINT's sqale_agent.py with ours, on each DB, byte for byte.

    Exit code 0 if all that could be compared is the same, 3 if something differs or nothing could be compared.
    The code gets copies of the databases. How an adapter is written: docs/accuracy.md.

    \b
    Example:
      sqale-edge conformance qwen3.5-2b-grpo-sqale shop.sqlite --run-code
    """
    if not run_code:
        raise click.UsageError(
            "this runs the sqale_agent.py of the checkpoint, a stranger's code, with your rights: read it, and say so "
            "with --run-code"
        )
    expressions = read_adapter(adapter) if adapter else {}
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    def work() -> Iterator[Conformance]:
        yield compare_checkpoint(
            checkpoint, db, adapter=expressions, python=python, timeout_s=timeout, should_stop=lambda: is_stopped
        )

    (report,) = iterate_in_background(work, stop)
    write_out(
        dump_json(report.to_dict(), indent=2) if as_json else printable(show_report(report, is_complete=is_complete))
    )
    return 0 if report.count("same") and not report.count("different") else EXIT_NO_ANSWER
