"""Documents for a person: Markdown tables that name what they depend on, and a drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqale_edge.benchmarks.speed.plots import save_plot

from sqale_edge.errors import BenchmarkError

from . import measuring, parting
from .figures import QUANTILES
from .token_kinds import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_MIB = 1 << 20
_LEAST = 1e-9  # nats; where a drawing begins
_FIGURES = {
    "engine": "Engine: llama.cpp against vLLM, nothing quantized",
    "quantization": "Quantization: each file against the one that is not quantized",
    "end to end": "End to end: each file against vLLM",
    "exact": "Against FP32",
}


def write_markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """Tables of the newest document of each contender, and of the newest comparison of each pair of episodes.

    Documents of other logs or other bases are not mixed: those of the newest one's count.
    """
    chosen = _choose_drift(documents)
    parted = [one for one in documents if one.get("form") == parting.FORM]
    parts: list[str] = []
    if chosen:
        parts.append(_depends_on(chosen))
        for figure, title in _FIGURES.items():
            rows = [
                (document, label, against)
                for document in chosen
                for label, against in document["against"].items()
                if against["figure"] == figure and "written" in against
            ]
            if rows:
                parts += [f"**{title}**", _table_of_drift(rows), _table_of_kinds(rows)]
    if parted:
        pairs = _keep_newest(parted, lambda one: str([(model["model"], model["sha256"]) for model in one["models"]]))
        parts += ["**Where episodes part**", _table_of_partings(pairs), _recorded_on(pairs)]
    return "\n\n".join(parts) + "\n"


def _choose_drift(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the newest logs the last document of each contender."""
    drift = [one for one in documents if one.get("form") == measuring.FORM]
    chosen = [one for one in drift if one["logs"]["sha256"] == drift[-1]["logs"]["sha256"]]
    return _keep_newest(chosen, lambda one: str(one["contender"]["sha256"]))


def _keep_newest(
    documents: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str]
) -> list[Mapping[str, Any]]:
    """The last document of each key, in the order in which the keys came first."""
    return list({key(document): document for document in documents}.values())


def _depends_on(documents: Sequence[Mapping[str, Any]]) -> str:
    """Machine, versions, and the digests of everything that was compared."""
    last = documents[-1]
    machine, versions, logs = last["machine"], last["versions"], last["logs"]
    shapes = [one["shape"] for one in documents if "shape" in one]
    recorded = f"recorded with {logs['recorded_with']['model']} and seed {logs['recorded_with']['seed']}"
    size = f"{logs['n_logs']} episodes, {logs['n_tokens']:,} tokens, {logs['n_vocab']:,} ids"
    built = f"llama-cpp-python {versions['llama_cpp_python']} ({', '.join(versions['cpu_features'])})"
    ours = f"sqale-edge {versions['sqale_edge']}, commit {versions['commit'] or 'unknown'}"
    lines = [
        f"logs: {size}, SHA-256 {logs['sha256'][:16]}, {recorded}",
        f"machine: {machine['cpu']}, {machine['system']}",
        f"versions: {ours}, {built}, numpy {versions['numpy']}; measured {last['measured_at']}",
    ]
    if shapes:
        shape = shapes[-1]
        lines.append(
            f"llama.cpp evaluated {shape['n_batch']} positions at a time, with {shape['threads']} threads and a KV "
            f"cache in {shape['kv_cache']}; {shape['offload']}"
        )
    for document in documents:
        contender = document["contender"]
        if "file" in contender:
            size = f"{contender['file_bytes'] / _MIB:,.1f} MiB"
            lines.append(f"{contender['file']}: {contender['type']}, {size}, SHA-256 {contender['sha256'][:16]}")
    lines += _list_references(documents)
    return "\n".join(f"- {line}" for line in lines)


def _list_references(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each of the references that something was held against, once."""
    references = {
        label: against["about"]
        for document in documents
        for label, against in document["against"].items()
        if "engine" in against["about"]
    }
    for label, about in references.items():
        with_versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        kept = "all logprobs" if about["top_k"] is None else f"the {about['top_k']} largest logprobs"
        weights = [digest[:16] for name, digest in about["model"]["files"].items() if name != "config.json"]
        yield (
            f"{label}: {with_versions}; {about['machine']['cpu']}; {kept}; SHA-256 {about['sha256'][:16]}, of weights "
            f"{', '.join(weights)}"
        )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _name_contender(document: Mapping[str, Any]) -> str:
    """The file's name, or what a reference is called."""
    contender = document["contender"]
    return str(contender.get("file", contender["label"]))


_Rows = list[tuple["Mapping[str, Any]", str, "Mapping[str, Any]"]]


def _table_of_drift(rows: _Rows) -> str:
    """Of the tokens that the model writes."""
    head = [
        "contender",
        "against",
        "mean KL, nats (95 %)",
        "median",
        "99 %",
        "99.9 %",
        "same top token",
        "ties",
        "RMS Δp",
        "tokens",
    ]
    lines = []
    for document, label, against in rows:
        found, kl = against["written"], against["written"]["kl"]
        interval = f" ({_nats(kl['low'])} to {_nats(kl['high'])})" if "low" in kl else ""
        lines.append(
            [
                _name_contender(document),
                label,
                f"{_nats(kl['mean'])}{interval}",
                *(_nats(kl[name]) for name in ("median", "p99", "p999")),
                f"{found['top1_agreement']:.2%}",
                f"{found['tied']:.2%}",
                f"{found['rms_delta_p']:.3%}",
                f"{found['n_positions']:,}",
            ]
        )
    return _table(head, lines)


def _table_of_kinds(rows: _Rows) -> str:
    """Mean KL by what the token is, with its standard error."""
    kinds = (*WRITTEN, "result", "prompt")
    lines = []
    for document, label, against in rows:
        cells = []
        for kind in kinds:
            kl = against.get(kind, {}).get("kl")
            error = f" ± {_nats(kl['standard_error'])}" if kl and "standard_error" in kl else ""
            cells.append(f"{_nats(kl['mean'])}{error}" if kl else "")
        lines.append([_name_contender(document), label, *cells])
    return _table(["mean KL of", "against", *kinds], lines)


def _nats(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if value < 0.001 else f"{value:.4f}"


def _table_of_partings(documents: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for document in documents:
        other = document["other_result"]
        one, two = (f"{model['model']} ({model['sha256'][:8]})" for model in document["models"])
        rows.append(
            [
                f"{one} and {two}",
                str(document["n"]),
                str(document["n"] - document["n_parted"]),
                ", ".join(f"turn {turn}: {n}" for turn, n in document["by_turn"].items()),
                ", ".join(f"{kind}: {n}" for kind, n in document["by_kind"].items()),
                f"{document['n_other_result']} ({other['share']:.1%}; {other['low']:.1%} to {other['high']:.1%})",
            ]
        )
    head = ["models", "questions", "the same to the last token", "part in", "part at", "end with another result"]
    return _table(head, rows)


def _recorded_on(documents: Iterable[Mapping[str, Any]]) -> str:
    """Machines and versions that the episodes come from, each once."""
    lines: dict[str, None] = {}
    for document in documents:
        for model in document["models"]:
            versions = ", ".join(f"{name} {version}" for name, version in model["versions"].items())
            lines[f"- recorded on {model['machine']['cpu']}, {model['machine']['system']}; {versions}"] = None
    return "\n".join(lines)


def draw_plot(documents: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Draw how KL divergence is spread over the tokens that the model writes; False without matplotlib.

    One curve for each contender and opponent of the newest logs. A file of that name is replaced.

    Raises:
        BenchmarkError: There are no figures to draw.
        OSError: The file cannot be written.
    """
    chosen = _choose_drift(documents)
    if not chosen:
        raise BenchmarkError("there are no figures of drift to draw", path=path, hint="measure some first")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package
    except ImportError:
        return False
    plot = Figure(figsize=(9, 6), layout="constrained")
    axes = plot.subplots()
    styles = {"engine": ":", "quantization": "-", "end to end": "--", "exact": "-."}
    for document in chosen:
        for label, against in document["against"].items():
            if "written" in against:
                values = [max(value, _LEAST) for value in against["written"]["kl"]["quantiles"]]
                axes.plot(
                    values,
                    [100 * (1 - share) for share in QUANTILES],
                    styles[against["figure"]],
                    label=f"{_name_contender(document)} against {label}",
                )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("KL divergence, nats")
    axes.set_ylabel("tokens that the model writes with more than that, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    logs, machine = chosen[-1]["logs"], chosen[-1]["machine"]
    axes.set_title(f"{logs['n_logs']} episodes, {logs['n_tokens']:,} tokens; {machine['cpu']}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_plot(plot, path)
    return True
