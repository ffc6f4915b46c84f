"""`convert_checkpoint`: from a folder to finished, verified GGUF files.

Everything that can be known beforehand is checked before anything is written: the checkpoint, the target, the disk.
Then one pass over the weights writes a BF16 file aside, llama.cpp quantizes that, each result is read back and run, and
only then they get their names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqale_edge.errors import ConversionError
from sqale_edge.llama.quantize import EMBEDDING, FILE_TYPES, HEAD, HEAD_BITS, TENSOR_TYPES

from .checkpoint import Checkpoint
from .general_fields import describe_model, read_sampling
from .imatrix import Imatrix
from .outputs import Output, check_target, choose_targets, complete_outputs, list_outputs
from .placing import move_into_place
from .provenance import find_provenance
from .quantizing import quantize
from .qwen35 import TensorPlan, plan_tensors
from .qwen35_config import Qwen35Config
from .tokenizer import read_vocabulary
from .training_prompt import TrainingPrompt, read_training_prompt
from .verify import Verification, verify_against, verify_file
from .workspace import check_disk_space, open_workspace
from .writer import ALIGNMENT, Field, check_strings, count_bytes, write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .recipe import Recipe

_BASE = "BF16"  # what quantized files are made of, as llama.cpp's own conversion does it
_BLOCK, _SMALL_BLOCK = 256, 32  # weights that the K-quants, and the older types, quantize together
_ENTRY_BYTES = 64  # more than an entry of either table takes beside its name and its value
_QUANTIZATION_VERSION = 2  # Source: GGML_QNT_VERSION in ggml.h


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far one step is, in bytes of the file that it makes; for quantized files both are estimates."""

    step: Literal["write", "quantize", "verify"]
    file: str
    n_done: int
    n_total: int


@dataclasses.dataclass(frozen=True)
class ConvertedFile:
    """One finished file.

    Attributes:
        quant: Its file type.
        recipe: The name of the recipe that it was made by, if it was.
        recipe_sha256, imatrix_sha256: Digests of that, and of the importance matrix that was used.
    """

    path: Path
    quant: str
    verification: Verification
    seconds: float
    recipe: str | None = None
    recipe_sha256: str | None = None
    imatrix_sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was made of a checkpoint.

    Attributes:
        n_dropped: Stored tensors that a text-to-SQL agent has no use for: vision tower, multi-token prediction.
        prompt: Which training texts were found.
        notes: What the person should know.
    """

    source: Path
    name: str
    repository: str | None
    revision: str | None
    files: tuple[ConvertedFile, ...]
    n_dropped: int
    prompt: TrainingPrompt
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        report = dataclasses.asdict(self)
        report["source"] = str(self.source)
        for entry in report["files"]:
            entry["path"] = str(entry["path"])
        return report


@dataclasses.dataclass(frozen=True)
class _Job:
    """Everything that is known before writing starts."""

    fields: list[Field]
    plans: list[TensorPlan]
    outputs: list[Output]
    targets: dict[str, Path]
    threads: int | None
    report: Callable[[Progress], None]


def estimate_bytes(fields: Sequence[Field], plans: Sequence[TensorPlan], output: Output) -> int:
    """An upper bound of the file's size: close for unquantized types, for the others as good as their mean widths."""
    return sum(map(_field_bytes, fields)) + sum(_tensor_bytes(plan, output) for plan in plans)


def _field_bytes(field: Field) -> int:
    key, kind, value = field
    values = value if kind.startswith("[") else [value]
    return len(key) + _ENTRY_BYTES + sum(8 + len(each.encode()) if isinstance(each, str) else 4 for each in values)


def _tensor_bytes(plan: TensorPlan, output: Output) -> int:
    """One tensor with its entry in the table."""
    n_bytes = len(plan.name) + _ENTRY_BYTES + ALIGNMENT
    if output.is_direct or plan.is_f32:
        return n_bytes + count_bytes(plan, output.file_type)
    is_head = plan.name in (EMBEDDING, HEAD)
    chosen = output.mix.output if is_head else output.mix.tensors.get(plan.name)
    bits = TENSOR_TYPES[chosen].bits_per_weight if chosen else FILE_TYPES[output.file_type].bits_per_weight
    if is_head:
        bits = max(bits, HEAD_BITS)
    # A width that the type's blocks do not fill falls back to Q8_0 at most, or to F16.
    if plan.shape[-1] % _BLOCK:
        bits = max(bits, 8.5 if plan.shape[-1] % _SMALL_BLOCK == 0 else 16)
    return n_bytes + math.ceil(math.prod(plan.shape) * bits / 8)


def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    quant: str | Sequence[str] | None = None,
    *,
    recipe: str | Path | Recipe | Sequence[str | Path | Recipe] | None = None,
    imatrix: str | Path | None = None,
    overwrite: bool = False,
    training_prompt: bool = True,
    name: str | None = None,
    repository: str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Conversion:
    """Convert the checkpoint in the folder `source`.

    Args:
        source: Holds `config.json`, the weights as safetensors, `tokenizer.json`; a `sqale_agent.py` is read for the
            training prompt.
        target: A file ending in `.gguf`; or a folder, which is made where it is missing, or a name with `{quant}` in
            it, as several file types need.
        quant: One or several of llama.cpp's file types, by name; None is Q4_K_M, or nothing beside a recipe.
        recipe: One or several recipes: names of this package's, or files that end in `.toml`.
        imatrix: An importance matrix of this model, used for all quantized files whose recipe allows it.
        overwrite: Replace files that exist.
        training_prompt: False leaves `sqale_agent.py` alone, for one that cannot be read.
        name: Of the model; None takes the name of the repository or the folder.
        repository: `owner/name` of the model's origin; None takes what the folder tells.
        revision: The commit there; None takes what the folder tells.
        threads: For quantizing; None takes as many as this process has CPUs.
        on_progress: Called often; what it raises stops the conversion.

    Raises:
        ConversionError: Something is wrong with the checkpoint, a recipe, the importance matrix or the target; nothing
            was written, or nothing is left of it.
    """
    start = time.perf_counter()
    source, target = Path(source), Path(target)
    outputs = list_outputs(quant, recipe)
    check_target(target, [output.label for output in outputs])
    matrix = Imatrix.read(Path(imatrix)) if imatrix is not None else None
    checkpoint = Checkpoint.open(source)
    config = Qwen35Config.from_json(checkpoint.config, source / "config.json")
    plans, dropped = plan_tensors(config, checkpoint.tensors, source)
    vocabulary = read_vocabulary(checkpoint, config.n_vocab)
    provenance = find_provenance(source, name=name, repository=repository, revision=revision)
    prompt = (
        read_training_prompt(source)
        if training_prompt
        else TrainingPrompt({}, {}, (), ("the training prompt was left out",))
    )
    fields = [
        *describe_model(plans),
        *provenance.to_metadata(),
        *read_sampling(checkpoint),
        *config.to_metadata(),
        *vocabulary.to_metadata(),
        *prompt.to_metadata(),
    ]
    check_strings(fields, source)
    outputs = complete_outputs(outputs, {plan.name: plan.shape for plan in plans}, matrix)
    labels = [output.label for output in outputs]
    targets = choose_targets(target, labels, provenance.name, overwrite=overwrite)
    job = _Job(fields, plans, outputs, targets, threads, on_progress or (lambda _: None))
    files = _run(job, overwrite=overwrite)
    notes = (
        *prompt.notes,
        *(["there is no chat template: the runtime uses ChatML"] if vocabulary.chat_template is None else []),
    )
    return Conversion(
        source,
        provenance.name,
        provenance.repository,
        provenance.revision,
        files,
        len(dropped),
        prompt,
        notes,
        time.perf_counter() - start,
    )


def _run(job: _Job, *, overwrite: bool) -> tuple[ConvertedFile, ...]:
    """Write, quantize, verify, and move everything into place at the end."""
    folder = next(iter(job.targets.values())).parent
    direct = [output for output in job.outputs if output.is_direct]
    if len(direct) < len(job.outputs) and _BASE not in job.targets:
        direct.append(Output(_BASE, _BASE))
    written = [*direct, *(output for output in job.outputs if not output.is_direct)]
    seconds = {}
    with _made(folder), open_workspace(folder) as workspace:
        sizes = [(output.label, estimate_bytes(job.fields, job.plans, output)) for output in written]
        check_disk_space(folder, sizes)
        # Targets end in .gguf, so none has the name of the file that only serves to make the others.
        paths = {
            output.label: workspace / (job.targets[output.label].name if output.label in job.targets else output.label)
            for output in written
        }
        for output in written:
            start = time.perf_counter()
            path = paths[output.label]
            if output.is_direct:
                _write(job, path, output.file_type)
            else:
                _quantize(job, paths[_BASE], path, output)
            verify_against(path, job.fields, job.plans, output)
            seconds[output.label] = time.perf_counter() - start
        files = []
        for output in job.outputs:
            start = time.perf_counter()
            verification = _verify(job, paths[output.label])
            took_s = seconds[output.label] + time.perf_counter() - start
            files.append(_describe(output, job.targets[output.label], verification, took_s))
        moves = [(paths[label], target) for label, target in job.targets.items()]
        move_into_place(moves, overwrite=overwrite)
    return tuple(files)


def _describe(output: Output, path: Path, verification: Verification, seconds: float) -> ConvertedFile:
    recipe = output.recipe
    return ConvertedFile(
        path,
        output.file_type,
        verification,
        seconds,
        recipe=recipe.name if recipe else None,
        recipe_sha256=recipe.digest if recipe else None,
        imatrix_sha256=output.imatrix_sha256,
    )


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """`folder` exists, also if the block ends well; one that was made for it is gone otherwise."""
    is_new = not os.path.lexists(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConversionError(f"the folder {str(folder)!r} cannot be made: {error.strerror}", path=folder) from error
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _write(job: _Job, path: Path, quant: str) -> None:
    """One unquantized file, straight from the checkpoint."""
    n_total = sum(count_bytes(plan, quant) for plan in job.plans)
    n_done = 0

    def report(n_bytes: int) -> None:
        nonlocal n_done
        n_done += n_bytes
        job.report(Progress("write", path.name, n_done, n_total))

    fields: list[Field] = [
        *job.fields,
        ("general.file_type", "u32", FILE_TYPES[quant].code),
        ("general.quantization_version", "u32", _QUANTIZATION_VERSION),
    ]
    write_gguf(path, fields, job.plans, quant, report)


def _quantize(job: _Job, source: Path, path: Path, output: Output) -> None:
    """One quantized file, out of the unquantized one."""
    n_total = estimate_bytes(job.fields, job.plans, output)

    def report() -> None:
        n_done = path.stat().st_size if path.exists() else 0
        job.report(Progress("quantize", path.name, min(n_done, n_total), n_total))

    quantize(source, path, output, threads=job.threads, on_wait=report)
    job.report(Progress("quantize", path.name, n_total, n_total))


def _verify(job: _Job, path: Path) -> Verification:
    """One finished file, run by llama.cpp; how far that is cannot be seen."""
    n_bytes = path.stat().st_size
    verification = verify_file(path, on_wait=lambda: job.report(Progress("verify", path.name, 0, n_bytes)))
    job.report(Progress("verify", path.name, n_bytes, n_bytes))
    return verification
