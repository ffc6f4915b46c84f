"""Train the demo model on the CPU. Needs torch and transformers.

    python demo/train.py --state STATE --tokens 30e6
    python demo/train.py --state STATE --start FOLDER --tokens 60e6
    python demo/train.py --state STATE --export FOLDER

The first command starts or goes on: everything is in the folder STATE, which is written every few minutes and when the
process is asked to end (SIGTERM, Ctrl-C). Killed at any moment, it loses at most these few minutes. `log.jsonl` in it
has the curve. `--tokens` is the total; the learning rate falls during its last third, and may be given anew when
resuming. The second command begins with the weights, the count and the curve of an exported folder. The third writes
what has been learned so far as such a folder.

Fixed seeds; not guaranteed: the same weights on another machine or with another number of threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from batches import Batch, BatchMaker, split_batches
from episodes import TOKEN_KINDS, make_lessons
from model import export_folder, load_folder, make_model
from shape import make_config
from torch.nn import functional
from vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import Qwen3_5ForCausalLM

SEED = 20_251
_SAVE_S, _LOG_S, _TEST_S = 180, 20, 900
_N_TEST = 96  # held-out lessons
_WARM_UP_STEPS = 150
_EASY_TOKENS = 4e6  # until then the worlds grow from one or two tables to all sizes
_FALL = 0.3  # share of all tokens during which the learning rate falls


@dataclasses.dataclass
class Progress:
    """How far it is."""

    n_tokens: int = 0
    n_steps: int = 0
    n_runs: int = 0
    seconds: float = 0.0
    first_step: int = 0  # at which the optimizers were new


class Training:
    """Model, optimizers and progress, and the folder that they live in."""

    def __init__(self, state: Path, arguments: argparse.Namespace) -> None:
        self.state, self.arguments = state, arguments
        self.vocabulary = Vocabulary.load()
        self.config = make_config(self.vocabulary.n_tokens, self.vocabulary.end_token)
        self.model = make_model(self.config, SEED)
        self.optimizers = make_optimizers(self.model, arguments.rate, use_muon=arguments.optimizer == "muon")
        self.progress = Progress()
        self._path = state / "state.pt"
        if self._path.exists():
            saved = torch.load(self._path, weights_only=True)
            self.model.load_state_dict(saved["model"])
            for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(values)
            self.progress = Progress(**saved["progress"])
        elif arguments.start:
            self._begin_with(arguments.start)

    def _begin_with(self, folder: Path) -> None:
        """Take an exported folder's weights and history; what the optimizers knew is not in it."""
        history = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        curve = history["curve"]
        self.model.load_state_dict(load_folder(folder).state_dict())
        n_steps = curve[-1]["step"]
        self.progress = Progress(
            n_tokens=history["tokens"],
            n_steps=n_steps,
            n_runs=1,  # so that no episode of the first run is made again
            seconds=history["minutes"] * 60,
            first_step=n_steps,
        )
        self.state.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(line) + "\n" for line in curve)
        (self.state / "log.jsonl").write_text(lines, encoding="utf-8")

    def save(self) -> None:
        """Write the state; the old one stays until the new one is whole."""
        self.state.mkdir(parents=True, exist_ok=True)
        saved = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": dataclasses.asdict(self.progress),
        }
        fresh = self._path.with_suffix(".new")
        torch.save(saved, fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def log(self, **values: Any) -> None:
        """Add a line to the curve."""
        entry = {"tokens": self.progress.n_tokens, "step": self.progress.n_steps, **values}
        line = json.dumps(
            {name: round(value, 5) if isinstance(value, float) else value for name, value in entry.items()}
        )
        print(line, flush=True)  # noqa: T201
        with (self.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def describe(self) -> str:
        """How much it has learned from, and the curve on held-out lessons, as JSON."""
        lines = (json.loads(line) for line in (self.state / "log.jsonl").read_text(encoding="utf-8").splitlines())
        curve = [line for line in lines if "held_out_loss" in line]
        totals = {"tokens": self.progress.n_tokens, "minutes": round(self.progress.seconds / 60, 1)}
        return json.dumps(totals | {"curve": curve}, indent=1)

    def rate(self) -> float:
        """The learning rate's factor now: up, level, down."""
        warm = min(1.0, (self.progress.n_steps - self.progress.first_step + 1) / _WARM_UP_STEPS)
        left = 1 - self.progress.n_tokens / self.arguments.tokens
        return warm * max(0.01, min(1.0, left / _FALL))

    def difficulty(self) -> float:
        """How hard the worlds are now."""
        return min(1.0, self.progress.n_tokens / _EASY_TOKENS)

    def step(self, batch: Batch) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Learn one batch. Returns the loss, and for each learned token its kind and whether it was foreseen."""
        factor = self.rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["top_rate"] * factor
        with torch.autocast("cpu", torch.bfloat16, enabled=self.arguments.arithmetic == "bf16"):
            losses, kinds, is_right, _ = measure(self.model, batch)
        loss = losses.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.n_steps += 1
        self.progress.n_tokens += batch.n_tokens
        return loss.item(), kinds, is_right


def make_optimizers(model: Qwen3_5ForCausalLM, rate: float, *, use_muon: bool) -> list[torch.optim.Optimizer]:
    """AdamW, without weight decay for embeddings and vectors; or Muon for the matrices inside the blocks."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    settings: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}
    if use_muon:
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, weight_decay=0.0, **settings),
        ]
    else:
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        optimizers = [torch.optim.AdamW(groups, **settings)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["top_rate"] = rate
    return optimizers


def measure(model: Qwen3_5ForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each learned token of the batch: its loss in nats, kind, whether it is the likeliest one, and its row."""
    tokens = torch.from_numpy(batch.tokens)
    rows, places = torch.from_numpy(batch.is_learned[:, 1:]).nonzero(as_tuple=True)
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[rows, places])
    targets = tokens[rows, places + 1]
    losses = functional.cross_entropy(logits.float(), targets, reduction="none")
    kinds = torch.from_numpy(batch.kinds)[rows, places + 1]
    return losses, kinds, logits.detach().argmax(-1) == targets, rows


def share_by_kind(kinds: torch.Tensor, is_right: torch.Tensor) -> dict[str, float]:
    """The share of foreseen tokens, for each kind."""
    shares = {}
    for number, name in enumerate(TOKEN_KINDS):
        of_kind = is_right[kinds == number]
        if len(of_kind):
            shares[name] = of_kind.float().mean().item()
    return shares


@torch.no_grad()
def test(model: Qwen3_5ForCausalLM, batches: list[Batch]) -> dict[str, float]:
    """On held-out lessons: loss, foreseen tokens by kind, and the share of lessons that are foreseen as a whole."""
    model.eval()
    measured = [measure(model, batch) for batch in batches]
    model.train()
    losses, kinds, is_right = (torch.cat([one[place] for one in measured]) for place in range(3))
    whole = [is_right[rows == row].all().item() for _, _, is_right, rows in measured for row in rows.unique()]
    return {"held_out_loss": losses.mean().item(), **share_by_kind(kinds, is_right), "whole": sum(whole) / len(whole)}


def train(training: Training) -> None:
    """Learn until all tokens are seen or the process is asked to end."""
    progress, arguments = training.progress, training.arguments
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    progress.n_runs += 1
    training.save()
    held_out = split_batches(list(itertools.islice(make_lessons(7, "held_out"), _N_TEST)), arguments.batch)
    seed = SEED + 7_919 * progress.n_runs
    saved_at = logged_at = tested_at = started_at = time.monotonic()
    recent: list[tuple[float, torch.Tensor, torch.Tensor, int]] = []
    with BatchMaker(seed, training.difficulty(), arguments.batch) as maker:
        while progress.n_tokens < arguments.tokens and not end.is_set():
            batch = maker.take()
            recent.append((*training.step(batch), batch.n_tokens))
            maker.difficulty[0] = training.difficulty()
            now = time.monotonic()
            if now - logged_at > _LOG_S:
                kinds, is_right = (torch.cat([one[place] for one in recent]) for place in (1, 2))
                loss = sum(one[0] for one in recent) / len(recent)
                speed = sum(one[3] for one in recent) / (now - logged_at)
                training.log(loss=loss, **share_by_kind(kinds, is_right), rate=training.rate(), tok_per_s=round(speed))
                recent, logged_at = [], now
            if now - tested_at > _TEST_S:
                training.log(**test(training.model, held_out), minutes=(progress.seconds + now - started_at) / 60)
                tested_at = logged_at = time.monotonic()
            if now - saved_at > _SAVE_S:
                progress.seconds += now - started_at
                started_at = now
                training.save()
                saved_at = time.monotonic()
    progress.seconds += time.monotonic() - started_at
    training.save()
    training.log(**test(training.model, held_out), minutes=progress.seconds / 60)


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Train the demo model, or write what it has learned so far.")
    parser.add_argument("--state", type=Path, required=True, help="folder with everything that resuming needs")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="begin with these weights, if STATE is new")
    parser.add_argument("--tokens", type=float, default=30e6, help="all tokens to learn from, prompts included")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4_096, help="tokens of a batch, padding included")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument(
        "--arithmetic", choices=("bf16", "fp32"), default="fp32", help="bf16 is faster on processors with AMX only"
    )
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write a Hugging Face folder, do not train")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    training = Training(arguments.state, arguments)
    if arguments.export:
        export_folder(training.model, training.config, training.vocabulary, arguments.export)
        (arguments.export / "training.json").write_text(training.describe() + "\n", encoding="utf-8")
    else:
        train(training)


if __name__ == "__main__":
    main()
