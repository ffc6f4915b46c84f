"""Measure the drift of the packaged demo model, with one command; stopped, the same command goes on.

    python demo/drift.py [--vllm PYTHON] [--transformers PYTHON] [--questions 40] [--folder FOLDER]

The model in the package is made a Hugging Face folder again, held-out questions are written, and the rest is what
`sqale-edge drift run` does. Figures go to `benchmarks/results/drift.jsonl`; `python docs/generate.py` then puts them
into docs/accuracy.md. PYTHON is an interpreter of an environment that has vLLM, or torch and transformers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path

from held_out import SEED, write_benchmark
from restore import restore_folder
from sqale_edge.benchmarks import read_questions
from sqale_edge.benchmarks.drift import QUANTS, DriftPlan, DriftRun, draw_plot, write_markdown

from sqale_edge import EngineSettings
from sqale_edge.models import find_model
from sqale_edge.sample_shop import write_sample_shop

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "drift.jsonl"
SHOP = (
    "How many customers are there?",
    "How many customers with city Ghent are there?",
    "What is the average price of the products?",
    "Show the number of orders for each status.",
    "Which customer has the most orders? Give its name.",
)


def write_questions(folder: Path, n_questions: int) -> Path:
    """Held-out questions, and some about the sample shop, in `folder`, in one step; the file with the questions."""
    path = folder / "questions.jsonl"
    if not path.exists():
        partial = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        written = write_benchmark(n_questions, SEED, partial)
        write_sample_shop(partial / "shop.sqlite")
        with written.open("a", encoding="utf-8") as file:
            for number, question in enumerate(SHOP):
                file.write(json.dumps({"id": f"shop-{number}", "db": "shop.sqlite", "question": question}) + "\n")
        partial.rename(folder)
    return path


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Measure the drift of the packaged demo model.")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--transformers", metavar="PYTHON")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("drift"), help="for everything that is made")
    parser.add_argument("--quant", action="append", help="a file type; repeat")
    parser.add_argument("--add", action="append", type=Path, default=[], help="another GGUF file of it; repeat")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    model = find_model("demo").path
    digest = hashlib.sha256(model.read_bytes()).hexdigest()[:8]
    checkpoint = arguments.folder / f"demo-{digest}"
    if not (checkpoint / "config.json").exists():
        restore_folder(model, checkpoint)
    path = write_questions(arguments.folder / f"questions-{arguments.questions}", arguments.questions)
    questions = read_questions(path)
    pythons = {"vllm": arguments.vllm, "transformers": arguments.transformers}
    plan = DriftPlan(
        checkpoint=checkpoint,
        questions=questions,
        chosen=questions,
        folder=arguments.folder,
        output=arguments.output,
        quants=arguments.quant or QUANTS,
        models=arguments.add,
        pythons={name: python for name, python in pythons.items() if python},
        settings=EngineSettings(n_ctx=4_096, threads=1, threads_batch=1),
    )
    documents = []
    for step in DriftRun(plan).steps():
        if isinstance(step, str):
            print(step, flush=True)  # noqa: T201
        else:
            documents.append(step)
    print(write_markdown(documents))  # noqa: T201
    if draw_plot(documents, arguments.folder / "drift.png"):
        print(f"The drawing is {arguments.folder / 'drift.png'}")  # noqa: T201


if __name__ == "__main__":
    main()
