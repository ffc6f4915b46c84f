"""A GGUF file loaded by llama.cpp: weights, vocabulary, metadata. Which layers go to a GPU is decided here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Self

import llama_cpp

from sqale_edge.engine import ModelInfo
from sqale_edge.errors import Cancelled, ModelLoadError, ModelNotFoundError, SettingsError
from sqale_edge.llama import bindings
from sqale_edge.llama.file_check import check_file
from sqale_edge.llama.memory import available_memory, check_fits
from sqale_edge.llama.vocabulary import Vocabulary
from sqale_edge.settings import EngineSettings, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ALL_LAYERS = -1
_POLL_S = 0.1  # a wait without a limit cannot be interrupted on Windows
_N_SAMPLES, _SAMPLE_BYTES = 64, 4096
_CONVERT_HINT = "a checkpoint's folder becomes one with: sqale-edge convert FOLDER -o FILE"
_OFFLOAD_HINT = "install llama-cpp-python with CUDA or Metal (see the README), or use --gpu-layers off"


class LlamaModel:
    """Weights and vocabulary. Close it, or use it in a `with` statement.

    Args:
        path: A GGUF file.
        settings: `gpu_layers` and `use_mmap` matter here.
        only_vocabulary: Leave the weights on disk: enough for metadata and tokens.
        on_progress: Called with the share that is loaded, in the thread that loads; where it returns False, loading
            stops and Cancelled is raised. What it raises stops loading, too, and is raised.

    Raises:
        ModelNotFoundError: There is no such file.
        ModelLoadError: llama.cpp cannot load it, or it does not fit into memory; the message says why in one line.
        SettingsError: Layers are to be offloaded, and this build cannot.
    """

    def __init__(
        self,
        path: Path,
        settings: EngineSettings,
        *,
        only_vocabulary: bool = False,
        on_progress: Callable[[float], bool] | None = None,
    ) -> None:
        bindings.initialise()
        check_gguf(path)
        header = check_file(path)
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = only_vocabulary
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP if settings.use_mmap else llama_cpp.LLAMA_LOAD_MODE_NONE
        params.n_gpu_layers, self.offload = choose_gpu_layers(
            settings, can_offload=bool(llama_cpp.llama_supports_gpu_offload())
        )
        is_on_cpu = not (llama_cpp.llama_supports_gpu_offload() and params.n_gpu_layers)
        if header and settings.check_memory and is_on_cpu and not (only_vocabulary or settings.use_mmap):
            check_fits(path, header, settings, available_memory())
        self.path = path
        self.pointer: Any = _load(path, params, on_progress)
        if not self.pointer:
            reason = bindings.last_error() or "llama.cpp gave no reason"
            raise ModelLoadError(
                f"{str(path)!r} cannot be loaded: {reason}",
                hint="download or convert the model again, or check that llama.cpp knows its kind",
            )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @classmethod
    def without_weights(cls, path: Path) -> Self:
        """Vocabulary and metadata alone. Raises as the class does."""
        return cls(path, EngineSettings(gpu_layers="off"), only_vocabulary=True)

    def _read(self) -> None:
        self.vocabulary_pointer = llama_cpp.llama_model_get_vocab(self.pointer)
        self.metadata = self._read_metadata()
        self.vocabulary = Vocabulary(self.vocabulary_pointer, is_nfc=uses_nfc(self.metadata))

    def _read_metadata(self) -> dict[str, str]:
        pairs = {}
        for index in range(llama_cpp.llama_model_meta_count(self.pointer)):
            key = bindings.read_text(llama_cpp.llama_model_meta_key_by_index, self.pointer, index)
            value = bindings.read_text(llama_cpp.llama_model_meta_val_str_by_index, self.pointer, index)
            if key is not None and value is not None:
                pairs[key] = value
        return pairs

    def describe(self, n_ctx: int, n_sequences: int = 1) -> ModelInfo:
        """What the engine's interface says about the model, for so many sequences of `n_ctx` tokens."""
        vocabulary, bos = self.vocabulary, llama_cpp.llama_vocab_bos(self.vocabulary_pointer)
        eos = llama_cpp.llama_vocab_eos(self.vocabulary_pointer)
        has_bos = bool(llama_cpp.llama_vocab_get_add_bos(self.vocabulary_pointer)) and bos >= 0
        return ModelInfo(
            name=self.metadata.get("general.name") or self.path.stem,
            n_ctx=n_ctx,
            n_vocab=vocabulary.n_tokens,
            metadata=self.metadata,
            chat_template=self.metadata.get("tokenizer.chat_template"),
            bos=bos if has_bos else None,
            eos_text=vocabulary.piece(eos).decode("utf-8", "replace") if eos >= 0 else "",
            end_tokens=vocabulary.end_tokens,
            think_open=vocabulary.markup.get("<think>"),
            think_close=vocabulary.markup.get("</think>"),
            offload=self.offload,
            sampling=read_sampling(self.metadata),
            n_parameters=llama_cpp.llama_model_n_params(self.pointer),
            n_sequences=n_sequences,
        )

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        if self.pointer:
            llama_cpp.llama_model_free(self.pointer)
            self.pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _load(path: Path, params: Any, on_progress: Callable[[float], bool] | None) -> Any:
    """llama.cpp's model, or a null pointer.

    The call has a thread of its own. So `on_progress` runs in the caller's, where its exceptions and Ctrl-C are raised
    as usual: an exception out of a callback would be lost in C.
    """
    shares: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    loaded: list[Any] = [None]
    is_stopped = False
    name = os.fsencode(path)

    def report(share: float, _user_data: Any) -> bool:
        shares.put(share)
        return not is_stopped

    def work() -> None:
        try:
            params.progress_callback = llama_cpp.llama_progress_callback(report)
            loaded[0] = llama_cpp.llama_model_load_from_file(name, params)
        finally:
            shares.put(None)

    bindings.forget_errors()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not is_stopped and (share := _wait_for(shares)) is not None:
            is_stopped = on_progress is not None and not on_progress(share)
    except BaseException:
        is_stopped = True
        raise
    finally:
        thread.join()
        if is_stopped and loaded[0]:
            llama_cpp.llama_model_free(loaded[0])
    if is_stopped:
        raise Cancelled("loading the model was cancelled")
    return loaded[0]


def _wait_for(shares: queue.SimpleQueue[float | None]) -> float | None:
    while True:
        with contextlib.suppress(queue.Empty):
            return shares.get(timeout=_POLL_S)


def check_gguf(path: Path) -> None:
    """Raise unless `path` is a file that begins as a GGUF does; says what it is instead, where that is plain."""
    if not path.exists():
        raise ModelNotFoundError(
            f"there is no model file {str(path)!r}", hint="check the path; --model takes a .gguf file"
        )
    if path.is_dir():
        raise ModelLoadError(f"{str(path)!r} is a folder, not a GGUF file", hint=_CONVERT_HINT)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelLoadError(
            f"{str(path)!r} cannot be read: {error.strerror}", hint="check what it is and its permissions"
        ) from None
    if head.startswith(b"GGUF"):
        return
    kinds = {
        b"version https://git-lfs": "a Git LFS pointer",
        b"PK": "a zip archive",
        b"<": "a web page",
        b"SQLite format 3": "a SQLite database",
    }
    kind = next(
        (name for start, name in kinds.items() if head.lstrip().startswith(start)),
        "something else" if head else "empty",
    )
    raise ModelLoadError(
        f"{str(path)!r} is not a GGUF file, but {kind}",
        hint=f"download it again if it should be one; {_CONVERT_HINT}",
    )


def choose_gpu_layers(settings: EngineSettings, *, can_offload: bool) -> tuple[int, str]:
    """How many layers to offload (-1 is all), and one sentence that says so.

    Raises SettingsError where it cannot be done.
    """
    wanted = settings.gpu_layers
    if wanted in {"off", 0}:
        return 0, "CPU only, as asked"
    if not can_offload:
        if wanted == "auto":
            return 0, "CPU only: this build of llama.cpp has no GPU support"
        raise SettingsError(
            f"gpu_layers is {wanted}, but this build of llama.cpp cannot offload to a GPU",
            field="gpu_layers",
            value=wanted,
            hint=_OFFLOAD_HINT,
        )
    if wanted == "auto":
        return _ALL_LAYERS, "all layers on the GPU"
    return int(wanted), f"up to {wanted} layers on the GPU"


def sample_digest(path: Path) -> str:
    """A digest of a file's size, its first bytes and evenly spaced samples: tells models apart in milliseconds.

    Not guaranteed: that a change between the samples is seen.
    """
    n_bytes = path.stat().st_size
    digest = hashlib.sha256(str(n_bytes).encode())
    with path.open("rb") as file:
        for index in range(_N_SAMPLES):
            file.seek(index * max(0, n_bytes - _SAMPLE_BYTES) // (_N_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def read_sampling(metadata: dict[str, str]) -> SamplingSettings:
    """The checkpoint's sampling settings, kept by the conversion.

    The reference's where there are none. Ignores values that make no sense.
    """
    defaults = SamplingSettings()
    try:
        return SamplingSettings(
            temperature=float(metadata.get("general.sampling.temp", defaults.temperature)),
            top_k=int(metadata.get("general.sampling.top_k", defaults.top_k)),
            top_p=float(metadata.get("general.sampling.top_p", defaults.top_p)),
        )
    except ValueError:
        return defaults


def uses_nfc(metadata: dict[str, str]) -> bool:
    """Whether the model's own tokenizer uses NFC: its conversion says so, or it is a Qwen, which all do."""
    if "sqale.tokenizer.normalizer" in metadata:
        return metadata["sqale.tokenizer.normalizer"] == "NFC"
    return metadata.get("tokenizer.ggml.pre") in {"qwen2", "qwen35"}


def read_model_info(path: Path) -> ModelInfo:
    """What a GGUF says about itself, its weights left on disk. Raises as `LlamaModel` does."""
    with LlamaModel.without_weights(path) as model:
        return model.describe(n_ctx=llama_cpp.llama_model_n_ctx_train(model.pointer))


def describe_build() -> dict[str, Any]:
    """Versions and abilities of the installed llama.cpp, for `doctor`."""
    bindings.initialise()
    features = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    pairs = (part.partition("=") for part in features.replace(":", "|").split("|"))
    return {
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp": (llama_cpp.llama_version() or b"").decode(),
        "can_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "cpu_features": sorted(name.strip() for name, _, value in pairs if value.strip() == "1"),
    }
