"""Settings: frozen values, checked when they are made.

Each field's default is the tested one. The environment can change any of them: `SQALE_EDGE_` and the field's name in
capitals, for example `SQALE_EDGE_N_CTX=8192` or `SQALE_EDGE_TEMPERATURE=0`. Explicit arguments win over the
environment, the environment over the defaults.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_type_hints

from sqale_edge.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

GpuLayers = int | Literal["auto", "off"]

_MAX_LAYERS = 10_000  # more than any model has
_N_DRAFT = 8  # more hardly save time, and each takes memory: benchmarks/LOG.md
MAX_SECONDS = 1_000_000.0
"""A longer wait is more than some platforms can."""
_KINDS = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "text"),
    type(None): (type(None), "None"),
}


def require(is_valid: bool, field: str, value: Any, allowed: str) -> None:
    """Raise SettingsError unless `value` is what `field` may be."""
    if not is_valid:
        raise SettingsError(f"{field} is {value!r}, but must be {allowed}", field=field, value=value)


def check_seed(seed: Any) -> int:
    """`seed` as an int. Raises SettingsError for what is no whole number from 0 to 2**64 - 1."""
    require(_is_of(int, seed) and 0 <= seed < 1 << 64, "seed", seed, "a whole number from 0 to 2**64 - 1")
    return int(seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """The settings with `given` over `SQALE_EDGE_*` over the defaults.

        A `given` value of None counts as not given.
        """
        return cls().with_environment(environment, **given)

    def with_environment(self, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """These settings with `SQALE_EDGE_*` over them, and `given` over both; see `from_environment`."""
        environment = os.environ if environment is None else environment
        values = {name: value for name, value in given.items() if value is not None}
        hints = get_type_hints(type(self))
        read_from: dict[str, str] = {}
        for field in dataclasses.fields(self):
            variable = f"SQALE_EDGE_{field.name.upper()}"
            if field.name not in values and environment.get(variable):
                values[field.name] = _parse(variable, environment[variable], hints[field.name])
                read_from[field.name] = variable
        try:
            return dataclasses.replace(self, **values)
        except SettingsError as error:
            if error.field in read_from:
                error.hint = f"unset {read_from[error.field]} or correct it"
            raise

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self)).items():
            kinds = get_args(hint) or (hint,)
            if all(kind in _KINDS for kind in kinds):  # words are checked with their ranges
                words = " or ".join(_KINDS[kind][1] for kind in kinds)
                value = getattr(self, field)
                self._require(field, any(_is_of(kind, value) for kind in kinds), words)
                object.__setattr__(self, field, _as_plain(value))

    def _require(self, field: str, is_valid: bool, allowed: str) -> None:
        require(is_valid, field, getattr(self, field), allowed)


def _as_plain(value: Any) -> Any:
    """NumPy's numbers and fractions as Python's own, which C structures and JSON take."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_of(kind: type, value: Any) -> bool:
    """Whether `value` is of the kind; True and False are no numbers."""
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))


def _parse(variable: str, text: str, hint: Any) -> Any:
    """`text` as the first of the hint's types that takes it: words first, then int, float, bool."""
    choices = {option for part in get_args(hint) for option in get_args(part)}
    if text in choices:
        return text
    types = get_args(hint) or (hint,)
    if str in types:
        return text
    if bool in types and text.lower() in {"0", "1", "false", "true", "no", "yes"}:
        return text.lower() in {"1", "true", "yes"}
    for kind in (int, float):
        if kind in types:
            try:
                return kind(text)
            except ValueError:
                continue
    raise SettingsError(
        f"{variable} is {text!r}, which cannot be read",
        field=variable,
        value=text,
        hint=f"unset {variable} or correct it",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings(_Settings):
    """How a model is loaded and run.

    Attributes:
        n_ctx: Tokens that one sequence can hold.
        n_batch: Tokens evaluated in one step while prefilling.
        n_sequences: Sequences that can exist at the same time. Each costs its recurrent state and shares the KV cache's
            cells.
        n_draft: Tokens that are guessed at a time, from the form of tool calls and where the log repeats itself, and
            evaluated in one step with the next; 0 guesses none, None takes 8 for a single sequence, and none for
            several, which fill a step themselves. Each takes one more recurrent state; for some recurrent models
            llama.cpp keeps none, and none are guessed. Answers are drawn as without; a step of another shape moves the
            logits a little.
        threads: CPU threads for decoding; None takes what `sqale-edge bench --tune` found here, else the cores that
            this process may use.
        threads_batch: The same for prefilling.
        gpu_layers: Layers to offload to a GPU: `auto` all where this build can, `off` none, or a count, which fails
            where it cannot be done.
        use_mmap: Map the file instead of reading it. Loads faster a second time, needs more memory (quantized weights
            are copied anyway).
        check_memory: Refuse to load what would not fit into the memory that is available now, by an estimate. Not
            looked at outside Linux, where layers go to a GPU, or where the file is mapped.
    """

    n_ctx: int = 16_384
    n_batch: int = 512
    n_sequences: int = 1
    n_draft: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    gpu_layers: GpuLayers = "auto"
    use_mmap: bool = False
    check_memory: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("n_ctx", 64 <= self.n_ctx <= 1 << 20, "from 64 to 1048576")
        self._require("n_batch", 1 <= self.n_batch <= 8192, "from 1 to 8192")
        self._require("n_sequences", 1 <= self.n_sequences <= 64, "from 1 to 64")
        self._require("n_draft", self.n_draft is None or 0 <= self.n_draft <= 63, "from 0 to 63")
        for field in ("threads", "threads_batch"):
            n_threads = getattr(self, field)
            self._require(field, n_threads is None or 1 <= n_threads <= 512, "from 1 to 512")
        is_word = self.gpu_layers in ("auto", "off")
        is_count = _is_of(int, self.gpu_layers) and 0 <= int(self.gpu_layers) <= _MAX_LAYERS
        self._require("gpu_layers", is_word or is_count, f"auto, off or a count from 0 to {_MAX_LAYERS}")
        if not is_word:
            object.__setattr__(self, "gpu_layers", int(self.gpu_layers))

    @property
    def n_guesses(self) -> int:
        """What `n_draft` comes to; llama.cpp ends the process where a step could not hold that and two tokens more."""
        wanted = (_N_DRAFT if self.n_sequences == 1 else 0) if self.n_draft is None else self.n_draft
        return min(wanted, max(0, self.n_batch - 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixSettings(_Settings):
    """What is kept of a prompt, so that it need not be evaluated again. Answers are the same either way.

    Attributes:
        prefix_cache: Keep the state behind the part of the first prompt that all questions share: in memory for the
            next question, in a file for the next start.
        prefix_cache_mib: MiB that these files may take together; what was used longest ago goes first. 0 writes none.
    """

    prefix_cache: bool = True
    prefix_cache_mib: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("prefix_cache_mib", 0 <= self.prefix_cache_mib <= 1 << 20, "from 0 to 1048576")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteSettings(_Settings):
    """How a vLLM server is asked, where the model is the address of one.

    Attributes:
        tokenizer: Where the vocabulary and the training texts of a vLLM server's model are read: a model in the store,
            a GGUF file, or a checkpoint's folder. None looks in the store for what the server says it serves, and on
            this machine where the server says it has it.
        served_model: Which of a vLLM server's models, where it serves several.
        api_key: The key that a vLLM server was started with; sent to it with each request, and to nobody else.
        answer_timeout_s: Seconds that a vLLM server may take before the next piece of an answer.
    """

    tokenizer: str | None = None
    served_model: str | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)
    answer_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("tokenizer", "served_model"):
            self._require(field, getattr(self, field) != "", "None, or not empty")
        is_sendable = self.api_key is None or (self.api_key.isascii() and self.api_key.isprintable())
        require(is_sendable and self.api_key != "", "api_key", "...", "printable ASCII characters")
        is_valid = 0 < self.answer_timeout_s <= MAX_SECONDS
        self._require("answer_timeout_s", is_valid, f"above 0 and at most {MAX_SECONDS:.0f}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings(_Settings):
    """How a token is drawn, in the reference's order: temperature, then top-k, then top-p.

    Source: `generation_config.json` of the trl-lab models (0.6, 20, 0.95).

    Attributes:
        temperature: 0 always takes the likeliest token.
        top_k: Keep this many candidates; 0 keeps all.
        top_p: Of those keep the likeliest until they hold this share of the probability.
    """

    temperature: float = 0.6
    top_k: int = 20
    top_p: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("temperature", 0 <= self.temperature <= 10, "from 0 to 10")
        self._require("top_k", 0 <= self.top_k <= 1 << 20, "0 (all) or a count")
        self._require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeLimits(_Settings):
    """What one question may cost. The defaults are those that the models were trained under.

    Attributes:
        tool_turns: Turns with tool calls before the final turn.
        failed_queries: Failing `run_query` calls in a row that end the exploration.
        turn_tokens: Tokens that a tool turn may decode.
        call_tokens: How many of them are kept for the calls: at the limit the thought is closed.
        final_tokens: Tokens that the final turn may decode.
        episode_tokens: Tokens of the whole episode: prompt, results and output.
        query_timeout_s: Seconds that one SQL statement may run.
        timeout_s: Seconds that the whole question may take, once model and database are open; None is no limit.
        max_rows: Rows of the answer that are kept for the person who asked.
    """

    tool_turns: int = 6
    failed_queries: int = 4
    turn_tokens: int = 2_048
    call_tokens: int = 512
    final_tokens: int = 3_072
    episode_tokens: int = 12_288
    query_timeout_s: float = 5.0
    timeout_s: float | None = None
    max_rows: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("tool_turns", 0 <= self.tool_turns <= 1000, "from 0 to 1000")
        for field in ("failed_queries", "turn_tokens", "call_tokens", "final_tokens", "episode_tokens", "max_rows"):
            self._require(field, getattr(self, field) >= 1, "at least 1")
        self._require("call_tokens", self.call_tokens < self.turn_tokens, f"below turn_tokens ({self.turn_tokens})")
        for field in ("query_timeout_s", "timeout_s"):
            seconds = getattr(self, field)
            is_valid = seconds is None or 0 < seconds <= MAX_SECONDS
            self._require(field, is_valid, f"above 0 and at most {MAX_SECONDS:.0f}")
