"""`sqale-edge eval --write-predictions`: a model's answers as the benchmark takes them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from sqale_edge.benchmarks import write_predictions
from sqale_edge.benchmarks.submissions import check_target
from sqale_edge.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sqale_edge.benchmarks import Question, Results


@dataclasses.dataclass(frozen=True)
class Target:
    """Where predictions are to be written.

    Attributes:
        form: One of PREDICTION_FORMS.
        overwrite: What has that name may be replaced.
    """

    path: Path
    form: str
    overwrite: bool

    def check(self, read: Sequence[Path | None]) -> None:
        """Raise for what is better found out before a model is asked for hours; `read` are the files in use."""
        if any(file and self.path.resolve() == file.resolve() for file in read):
            raise click.UsageError(f"--write-predictions names a file that is needed: {str(self.path)!r}")
        check_target(self.path, form=self.form, overwrite=self.overwrite)

    def write(self, questions: Sequence[Question], results: Results | None) -> None:
        """Write the answers in `results` to `questions`, all of the benchmark, and say so."""
        if results is None:
            raise click.UsageError("--write-predictions writes a model's answers: give --model M, or its results file")
        write_predictions(self.path, questions, results.sql, form=self.form, overwrite=self.overwrite)
        n_left = sum(question.id not in results.sql for question in questions)
        left = f"; {n_left} of {len(questions)} questions were not asked" if n_left else ""
        click.echo(printable(f"The predictions are in {str(self.path)!r}, in the form {self.form}{left}."), err=True)
