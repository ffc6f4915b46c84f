"""Measure the demo model and write its card: what the package says of it, and what people read.

    python demo/card.py [--checkpoint FOLDER] [--pairs pairs.jsonl]

`--checkpoint` first makes the package's model file anew from what the training exported. The figures come from that
file alone: it is made a Hugging Face folder again, converted to each type, and asked the same held-out questions.
`--pairs` adds questions about real databases: JSON lines with `db` (a path relative
to the file), `question` and `gold_sql`. Written are `sqale_edge/demo.json` and `demo/CARD.md`. Takes about 15 minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import jinja2
from evaluate import evaluate
from held_out import SEED
from restore import restore_folder
from sqale_edge.benchmarks.statistics import wilson_interval
from sqale_edge.convert import convert_checkpoint

from sqale_edge import Agent, Database, EngineSettings, SqaleEdgeError, __version__
from sqale_edge.results import same_rows

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "sqale_edge" / "demo.gguf"
TRAINING = ROOT / "demo" / "training.json"
QUANTS = ("BF16", "Q8_0", "Q4_K_M")
_N_REAL = 150


def measure(pairs: Path | None, n_questions: int) -> dict[str, Any]:
    """Every figure of the card."""
    card: dict[str, Any] = {
        "sha256": hashlib.sha256(MODEL.read_bytes()).hexdigest(),
        "bytes": MODEL.stat().st_size,
        "measured_with": {
            "sqale_edge": __version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        },
        "held_out": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        restore_folder(MODEL, folder / "checkpoint")
        for quant in QUANTS:
            model = folder / f"{quant}.gguf"
            convert_checkpoint(folder / "checkpoint", model, quant=quant)
            report, _ = evaluate(model, n_questions, SEED, threads=1)
            card["held_out"][quant] = {"bytes": model.stat().st_size} | {
                name: value for name, value in report.items() if name not in ("model", "seconds")
            }
            print(quant, json.dumps(card["held_out"][quant]), flush=True)  # noqa: T201
    if pairs:
        card["real"] = measure_real(pairs)
    return card


def measure_real(pairs: Path) -> dict[str, Any]:
    """Execution accuracy on real databases, whose questions are not of the kinds that it was trained on."""
    lines = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
    chosen = random.Random(SEED).sample(lines, min(_N_REAL, len(lines)))
    n_right = 0
    with Agent.load(MODEL, settings=EngineSettings(n_ctx=4_096, threads=1, threads_batch=1)) as agent:
        for pair in chosen:
            with Database.open(pairs.parent / pair["db"]) as database:
                gold = database.query(pair["gold_sql"], max_rows=1_000).rows
                try:
                    episode = agent.run(pair["question"], database)
                except SqaleEdgeError:  # such as a schema that does not fit into the context
                    continue
                n_right += episode.sql is not None and same_rows(episode.rows, gold, ordered=pair["has_order_by"])
    low, high = wilson_interval(n_right, len(chosen))
    return {"n": len(chosen), "n_right": n_right, "low": round(low, 4), "high": round(high, 4)}


def write_card(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    template = (Path(__file__).parent / "card.md.jinja").read_text(encoding="utf-8")
    return (
        jinja2.Template(template, undefined=jinja2.StrictUndefined).render({"real": None, **card}, share=_share) + "\n"
    )


def _share(figures: dict[str, Any]) -> str:
    share = figures["n_right"] / figures["n"]
    return f"{share:.1%} ({figures['low']:.1%} to {figures['high']:.1%})"


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Measure the demo model and write its card.")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="make the model file from it first")
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="questions about real databases")
    parser.add_argument("--questions", type=int, default=300)
    arguments = parser.parse_args()
    if arguments.checkpoint:
        convert_checkpoint(arguments.checkpoint, MODEL, quant="BF16", overwrite=True)
        shutil.copyfile(arguments.checkpoint / TRAINING.name, TRAINING)
    card = measure(arguments.pairs, arguments.questions)
    card["training"] = json.loads(TRAINING.read_text(encoding="utf-8"))
    text = json.dumps(card, ensure_ascii=False, indent=1)
    MODEL.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    (Path(__file__).parent / "CARD.md").write_text(write_card(card), encoding="utf-8")


if __name__ == "__main__":
    main()
