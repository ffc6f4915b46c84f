"""Reference outputs: what another program computes behind each token of the logs, kept for `sqale-edge drift measure`.

    python reference_vllm.py LOGS.jsonl CHECKPOINT -o FOLDER                            # vLLM, BF16
    python reference_vllm.py LOGS.jsonl CHECKPOINT -o FOLDER --engine transformers      # transformers, FP32

A script of its own: copy it to wherever vLLM is, with a GPU or without. It needs numpy and the engine, and neither
sqale-edge nor llama.cpp. Ctrl-C and kills leave whole logs; the same command goes on from there.

The form, `sqale-edge reference 1`, is a folder. `reference.json` says what computed it:

| field | what it holds |
|---|---|
| `form` | `sqale-edge reference 1` |
| `engine`, `dtype` | `vllm` or `transformers`; `bfloat16` or `float32` |
| `versions`, `machine` | of what computed, and on what |
| `model` | `name`, and `files`: SHA-256 of `config.json` and of each file of weights |
| `n_vocab`, `vocabulary_sha256` | how many ids there are, and what they stand for, as in the token logs |
| `top_k` | null where all logprobs are kept; else how many of each position |

For each log N, counted from 00000 in the order of the file, there is `N.json` with its `id`, `n_tokens` and the SHA-256
of each of its arrays, written last; and these arrays in NumPy's `.npy` form, which can be mapped into memory:

| file | shape | what it holds |
|---|---|---|
| `N.tokens.npy` | (T,) int32 | the log |
| `N.actual.npy` | (T - 1,) float32 | row r: natural logprob of token r + 1, given those before it |
| `N.logprobs.npy` | (T - 1, V) float32 | row r: logprobs of all ids there; V is `n_vocab` |
| | (T - 1, k) float32 | with `top_k`: the k largest, falling |
| `N.ids.npy` | (T - 1, k) int32 | with `top_k`: the ids that they belong to |
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Array = np.ndarray[Any, Any]
    Rows = Callable[[int, int, Array], None]  # takes the first row and the one behind the last, and their logprobs

FORM = "sqale-edge reference 1"
_LOGS_FORM = "sqale-edge token logs 1"
_FULL_VOCAB = 16_384  # a larger vocabulary is kept in full only if that is asked for
_USUAL_K = 1_000
_MOST_ENTRIES = 200_000_000  # of one log; vLLM makes Python objects of each, which take about 100 bytes
_SLICE_ROWS = 64
_CHUNK_BYTES = 1 << 22
# Offline, quiet, in this process; one thread of OpenMP is many times faster than several that wait for each other.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


class ReferenceWriter:
    """Writes a folder of this form; logs that are whole in it are kept.

    Args:
        folder: Made if it is not there. One of another reference is an error.
        head: `reference.json`, which is written with the first log; `versions` and `machine` may differ from those of
            an earlier start.

    Raises:
        ValueError: The folder holds another reference.
    """

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        self._folder, self._head = folder, head
        self._path = folder / "reference.json"
        if self._path.exists():
            found = json.loads(self._path.read_text(encoding="utf-8"))
            for key in ("form", "engine", "dtype", "model", "n_vocab", "vocabulary_sha256", "top_k"):
                if found.get(key) != head[key]:
                    raise ValueError(
                        f"{folder} holds another reference: {key} is {found.get(key)!r}, not {head[key]!r}"
                    )

    def has(self, number: int, tokens: Sequence[int]) -> bool:
        """Whether log `number` is whole already. Raises ValueError if it is another log."""
        path = self._folder / f"{number:05d}.json"
        if not path.exists():
            return False
        if np.load(self._folder / f"{number:05d}.tokens.npy").tolist() != list(tokens):
            raise ValueError(f"{path} is of another log: choose a new folder")
        return True

    def add(self, number: int, name: str, tokens: Sequence[int], fill: Callable[[Rows], None]) -> None:
        """Write a log: `fill` calls what it is given with logprobs of all ids, a block of rows at a time, in order.

        Raises:
            ValueError: Rows are missing, or are not in order.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            _put(self._path, json.dumps({**self._head, "made_at": made_at}, indent=1))
        n_rows, k = len(tokens) - 1, self._head["top_k"]
        arrays: dict[str, Array] = {"tokens": np.asarray(tokens, np.int32), "actual": np.empty(n_rows, np.float32)}
        if k:
            arrays["ids"] = np.empty((n_rows, k), np.int32)
        stem, width = self._folder / f"{number:05d}", k or self._head["n_vocab"]
        kept = np.lib.format.open_memmap(f"{stem}.logprobs.npy", mode="w+", dtype=np.float32, shape=(n_rows, width))
        n_done = 0

        def put(start: int, end: int, logprobs: Array) -> None:
            nonlocal n_done
            if start != n_done or logprobs.shape != (end - start, self._head["n_vocab"]):
                raise ValueError(f"rows {start} to {end} of shape {logprobs.shape} came behind row {n_done}")
            n_done = end
            actual = arrays["tokens"][start + 1 : end + 1, None]
            arrays["actual"][start:end] = np.take_along_axis(logprobs, actual, axis=1)[:, 0]
            if k:
                arrays["ids"][start:end] = top = _find_top(logprobs, k)
                kept[start:end] = np.take_along_axis(logprobs, top, axis=1)
            else:
                kept[start:end] = logprobs

        fill(put)
        if n_done != n_rows:
            raise ValueError(f"log {name!r} has {n_done} rows in place of {n_rows}")
        kept.flush()
        for part, array in arrays.items():
            np.save(f"{stem}.{part}.npy", array)
        digests = {part: digest_file(Path(f"{stem}.{part}.npy")) for part in (*arrays, "logprobs")}
        _put(Path(f"{stem}.json"), json.dumps({"id": name, "n_tokens": len(tokens), "sha256": digests}))


def _find_top(logprobs: Array, k: int) -> Array:
    """The ids of the `k` largest of each row, falling; of equal ones the smaller id first."""
    some = np.sort(np.argpartition(-logprobs, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(logprobs, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _put(path: Path, text: str) -> None:
    """Write a file in one step."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def digest_file(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest_vocabulary(folder: Path) -> str:
    """SHA-256 of the lines `[id, text]` of `tokenizer.json`, in the order of the ids: the one that token logs name."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    with contextlib.suppress(FileNotFoundError):
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        texts |= {int(number): entry["content"] for number, entry in settings.get("added_tokens_decoder", {}).items()}
    texts |= {entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", [])}
    digest = hashlib.sha256()
    for number in sorted(texts):
        digest.update(json.dumps([number, texts[number]]).encode() + b"\n")
    return digest.hexdigest()


def _name_cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_checkpoint(folder: Path) -> dict[str, Any]:
    """Name and digests of a checkpoint."""
    paths = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    return {"name": folder.resolve().name, "files": {path.name: digest_file(path) for path in paths}}


def read_logs(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a file of logs, and the others."""
    data = path.read_bytes()
    first, *lines = data[: data.rfind(b"\n") + 1].splitlines()
    head = json.loads(first)
    if head.get("form") != _LOGS_FORM:
        raise SystemExit(f"{path} is no file of token logs")
    return head, [json.loads(line) for line in lines]


class Vllm:
    """BF16, in this process."""

    dtype = "bfloat16"

    def __init__(self, folder: Path, n_longest: int, n_vocab: int, top_k: int | None, threads: int | None) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if threads:
            os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch  # noqa: PLC0415 - the environment is read at import
        import vllm  # noqa: PLC0415

        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        self._n_vocab, self._n_kept = n_vocab, top_k or n_vocab
        self._params = vllm.SamplingParams(
            temperature=0, max_tokens=1, prompt_logprobs=top_k or -1, logprobs=1, flat_logprobs=True, detokenize=False
        )
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        has_images = "vision_config" in config
        self._model = vllm.LLM(
            model=str(folder),
            dtype="bfloat16",
            max_model_len=n_longest + 1,
            max_num_seqs=1,
            enforce_eager=True,
            max_logprobs=-1,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            **({"limit_mm_per_prompt": {"image": 0, "video": 0}} if has_images else {}),
        )

    def fill(self, tokens: Sequence[int], put: Rows) -> None:
        """Give the logprobs of a log to `put`; of ids that are not kept, minus infinity."""
        if len(tokens) * self._n_kept > _MOST_ENTRIES:
            raise SystemExit(
                f"{self._n_kept} logprobs at each of {len(tokens)} tokens are too many for vLLM at once: keep fewer of "
                f"them, --top-k {_USUAL_K}"
            )
        (answer,) = self._model.generate([{"prompt_token_ids": list(tokens)}], self._params, use_tqdm=False)
        if list(answer.prompt_token_ids) != list(tokens):
            raise SystemExit("vLLM answered about other tokens than it was given")
        flat = answer.prompt_logprobs
        starts, ends = list(flat.start_indices), list(flat.end_indices)
        if len(starts) != len(tokens):
            raise SystemExit(f"vLLM answered about {len(starts)} positions, not {len(tokens)}")
        for start in range(1, len(tokens), _SLICE_ROWS):  # the first token has nothing before it
            end = min(start + _SLICE_ROWS, len(tokens))
            block = np.full((end - start, self._n_vocab), -np.inf, np.float32)
            for row, place in enumerate(range(start, end)):
                some = slice(starts[place], ends[place])
                block[row, np.asarray(flat.token_ids[some])] = np.asarray(flat.logprobs[some], np.float32)
            put(start - 1, end - 1, block)


class Transformers:
    """FP32, as plainly as it goes: what both others are rounded from."""

    dtype = "float32"

    def __init__(self, folder: Path, n_longest: int, n_vocab: int, top_k: int | None, threads: int | None) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch  # noqa: PLC0415 - an optional package
        import transformers  # noqa: PLC0415
        from safetensors import safe_open  # noqa: PLC0415

        del n_longest, n_vocab, top_k  # it computes all logprobs of a few positions at a time
        if threads:
            torch.set_num_threads(threads)
        self._torch = torch
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        config = transformers.AutoConfig.from_pretrained(folder)
        text_config = getattr(config, "text_config", config)
        self._model = transformers.AutoModelForCausalLM.from_config(text_config, dtype=torch.float32).eval()
        wanted = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        left = {name for name, _ in self._model.named_parameters()}  # tied ones are listed once
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for stored in file.keys():  # noqa: SIM118 - no dictionary
                    name = stored.replace("model.language_model.", "model.")
                    if name in wanted:
                        wanted[name].data.copy_(file.get_tensor(stored))
                        left.discard(name)
        if left:
            raise SystemExit(f"the checkpoint has no {min(left)!r}")
        self._model.tie_weights()

    def fill(self, tokens: Sequence[int], put: Rows) -> None:
        """Give the logprobs of a log to `put`."""
        with self._torch.inference_mode():
            states = self._model.model(input_ids=self._torch.tensor([list(tokens)[:-1]])).last_hidden_state[0]
            for start in range(0, len(states), _SLICE_ROWS):
                logits = self._model.lm_head(states[start : start + _SLICE_ROWS])
                put(start, start + len(logits), self._torch.log_softmax(logits, dim=-1).numpy())


def choose_top_k(wanted: str, n_vocab: int) -> int | None:
    """How many logprobs of each position are kept; None for all. `wanted` is `all`, `auto` or a number."""
    if wanted == "auto":
        return None if n_vocab <= _FULL_VOCAB else _USUAL_K
    return None if wanted == "all" else min(int(wanted), n_vocab)


ENGINES: dict[str, type[Vllm | Transformers]] = {"vllm": Vllm, "transformers": Transformers}


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compute reference outputs on token logs.")
    parser.add_argument("logs", type=Path)
    parser.add_argument("checkpoint", type=Path, help="a Hugging Face folder")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--engine", choices=list(ENGINES), default="vllm")
    parser.add_argument("--top-k", default="auto", help="how many logprobs of a position are kept; all, or auto")
    parser.add_argument("--tokens", type=int, help="take the first logs that have no more than this together")
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


def main() -> None:
    """Do what the command line says."""
    arguments = read_arguments()
    # Its own folder is no place to import from: a module there may be called as one of Python's own.
    sys.path[:] = [part for part in sys.path if Path(part or ".").resolve() != Path(__file__).resolve().parent]
    head, logs = read_logs(arguments.logs)
    if arguments.tokens:
        n_tokens = np.cumsum([len(log["tokens"]) for log in logs])
        logs = logs[: max(1, int((n_tokens <= arguments.tokens).sum()))]
    vocabulary = digest_vocabulary(arguments.checkpoint)
    if vocabulary != head["vocabulary_sha256"]:
        raise SystemExit(f"the logs were made with another vocabulary than that of {arguments.checkpoint}")
    top_k = choose_top_k(arguments.top_k, head["n_vocab"])
    print(f"{arguments.engine}: {len(logs)} logs, {sum(len(log['tokens']) for log in logs)} tokens", flush=True)  # noqa: T201
    kind = ENGINES[arguments.engine]
    reference: dict[str, Any] = {
        "form": FORM,
        "engine": arguments.engine,
        "dtype": kind.dtype,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "machine": {"cpu": _name_cpu(), "system": platform.platform()},
        "model": describe_checkpoint(arguments.checkpoint),
        "n_vocab": head["n_vocab"],
        "vocabulary_sha256": vocabulary,
        "top_k": top_k,
    }
    writer = ReferenceWriter(arguments.output, reference)
    left = [number for number, log in enumerate(logs) if not writer.has(number, log["tokens"])]
    if not left:
        return
    n_longest = max(len(log["tokens"]) for log in logs)
    engine = kind(arguments.checkpoint, n_longest, head["n_vocab"], top_k, arguments.threads)
    reference["versions"] |= engine.versions
    for number in left:
        start, tokens = time.perf_counter(), logs[number]["tokens"]
        writer.add(number, logs[number]["id"], tokens, functools.partial(engine.fill, tokens))
        took = time.perf_counter() - start
        print(f"{number + 1} of {len(logs)}: {len(tokens)} tokens, {took:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
