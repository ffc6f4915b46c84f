"""What is published of the models that this package was made for. Other questions, asked by another program."""

from __future__ import annotations

from typing import NamedTuple

BENCHMARKS = {"sqale": "SQaLe", "bird": "BIRD dev", "ehrsql": "EHRSQL"}
"""By the form of their questions."""

N_QUESTIONS = 300
"""Of each benchmark."""


class PublishedModel(NamedTuple):
    """Execution accuracy in percent, in the order of BENCHMARKS; and what a question takes, where that is published."""

    name: str
    accuracies: tuple[float, float, float]
    tflop: float | None = None


MODELS = (
    PublishedModel("M_SQaLe", (66.3, 52.3, 23.7), 224),
    PublishedModel("M_BIRD", (54.0, 54.7, 23.7)),
    PublishedModel("M_SynSQL", (50.7, 44.3, 13.3)),
    PublishedModel("base model, not fine-tuned", (38.7, 19.3, 8.2)),
)
