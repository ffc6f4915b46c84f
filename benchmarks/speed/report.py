"""A document for a person: Markdown tables, with what they depend on in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .goals import list_goals
from .measuring import count_samples
from .results import describe_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MIB, _GB = 1 << 20, 1e9
_GOAL_HEAD = ("what", "measured", "interquartile range", "samples", "goal", "")


def write_markdown(document: dict[str, Any]) -> str:
    """The whole document, section by section."""
    parts = [
        f"## Speed of {document['model']['name']}, {document['model']['file']}",
        _head(document),
        *_bandwidth(document),
    ]
    for name, result in document["measurements"].items():
        if result["figures"]:
            parts += [f"### {name}", *_run(document, name), _figures(result["figures"])]
            ratios = _ratios(result["figures"])
            parts += [ratios] if ratios else []
        parts += _peers(result)
    for section in (_first_tokens, _drafts, _episodes, _loading, _goals):
        parts += section(document)
    if document["skipped"]:
        lines = [f"- {one['measurement']}, {one['what']}: {one['why']}" for one in document["skipped"]]
        parts.append("### Left out\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def write_goals(documents: Iterable[dict[str, Any]]) -> str:
    """One table of what is to be reached, for several models."""
    rows = [[document["model"]["file"], *row] for document in documents for row in _goal_rows(document)]
    return _table(["file", *_GOAL_HEAD], rows) + "\n"


def _head(document: dict[str, Any]) -> str:
    """What the figures depend on."""
    model, machine = document["model"], document["machine"]
    versions, settings = document["versions"], document["settings"]
    size = f"{model['n_parameters'] / 1e9:.3g} billion parameters, {model['file_bytes'] / _MIB:,.0f} MiB"
    threads = f"threads: {settings['threads']} to decode, {settings['threads_batch']} to prefill"
    build = f"llama-cpp-python {versions['llama_cpp_python']} ({', '.join(versions['cpu_features'])})"
    run = [] if "runs" in document else [_show_run(describe_run(document))]
    lines = (
        f"{model['file']}, {size}, SHA-256 {model['sha256'][:16]}",
        *run,
        f"{machine['cpu']}, cores: {machine['cores']}, {threads}; {settings['offload']}; {machine['system']}",
        f"sqale-edge {versions['sqale_edge']}, Python {versions['python']}, {build}",
    )
    return "\n".join(f"- {line}" for line in lines)


def _run(document: dict[str, Any], measurement: str) -> list[str]:
    """When a measurement was made, and with what, where several runs were combined."""
    return [f"{_show_run(document['runs'][measurement])}."] if "runs" in document else []


def _show_run(run: dict[str, Any]) -> str:
    load = _number(run["load_average_at_start"])
    return f"{run['measured_at']}, commit {run['commit'] or 'unknown'}, load average {load} at the start"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _figures(figures: Iterable[dict[str, Any]]) -> str:
    rows = [
        [
            figure["name"],
            name,
            f"{one['tok_per_s']:.4g}" if "tok_per_s" in one else "",
            _seconds(one["median_s"]),
            _seconds(one["iqr_s"]) if len(one["samples_s"]) > 1 else "",
            str(len(one["samples_s"])),
        ]
        for figure in figures
        for name, one in figure["contenders"].items()
    ]
    return _table(["what", "contender", "tok/s", "median", "interquartile range", "samples"], rows)


def _ratios(figures: Iterable[dict[str, Any]]) -> str:
    rows = [
        [figure["name"], name, f"{one['median']:.3f}", f"{one['iqr']:.3f}" if count_samples(figure) > 1 else ""]
        for figure in figures
        for name, one in figure["ratios"].items()
    ]
    return _table(["what", "ratio", "median", "interquartile range"], rows) if rows else ""


def _bandwidth(document: dict[str, Any]) -> list[str]:
    found = document["measurements"].get("bandwidth")
    if not found or "ceiling_tok_per_s" not in found:
        return []
    rates = ", ".join(
        f"{name} {found[f'{name}_bytes_per_s']['median'] / _GB:.3g}" for name in ("read", "copy", "triad")
    )
    note = "" if found["beyond_all_caches"] else " The arrays may fit into a cache: the ceiling is too high then."
    n_read = f"{document['model']['read_bytes_per_token'] / _MIB:,.0f} MiB"
    ceiling = f"at most **{found['ceiling_tok_per_s']:.4g} tok/s**"
    return [
        *_run(document, "bandwidth"),
        f"Memory bandwidth in GB/s, {found['threads']} at work: {rates}. {n_read} for a token allow {ceiling}.{note}",
    ]


def _peers(result: dict[str, Any]) -> list[str]:
    return [
        f"{name} {about['version']}" + (f", built with: {about['system']}" if about.get("system") else "") + "."
        for name, about in result.get("peers", {}).items()
    ]


def _first_tokens(document: dict[str, Any]) -> list[str]:
    found = document["measurements"].get("ttft", {})
    rows = [
        [name, *(str(counts[key]) for key in ("n_prompt", "n_cached", "n_evaluated"))]
        for name, counts in found.items()
        if isinstance(counts, dict)
    ]
    return [_table(["first token", "prompt tokens", "cached", "evaluated"], rows)] if rows else []


def _drafts(document: dict[str, Any]) -> list[str]:
    return [
        f"Of {figure['n_guessed']} drafted tokens {figure['n_guesses_right']} were right, "
        f"of {figure['log']['n_decoded']} that were written."
        for figure in document["measurements"].get("drafts", {}).get("figures", [])
    ]


def _episodes(document: dict[str, Any]) -> list[str]:
    found = document["measurements"].get("episodes", {})
    rows = []
    for figure in found.get("figures", []):
        log, ours = figure["log"], figure["ours"]
        published = f"{found['published_tflop']} published for a question in the reference's harness"
        rows.append(
            [
                figure["name"],
                str(log["n_turns"]),
                f"{log['n_prompt']} + {log['n_decoded']}",
                ", ".join(map(str, ours["n_evaluated_by_turn"])),
                "yes" if ours["only_new_tokens"] else "no",
                f"{figure['tflop']:.3g} ({published})",
            ]
        )
    head = ["episode", "turns", "tokens given + written", "evaluated by turn", "only new ones", "TFLOP"]
    peers = [
        f"{name} was given {counts['n_prompt_given']} prompt tokens in the {figure['name']}, and evaluated "
        f"{counts['n_prompt_evaluated']} of them.{_spent(counts)}"
        for figure in found.get("figures", [])
        for name, counts in figure["peers"].items()
    ]
    return [_table(head, rows), *peers] if rows else []


def _spent(counts: dict[str, Any]) -> str:
    """What a peer spent its time on, where it says so."""
    if "prompts_s" not in counts:
        return ""
    return f" It spent {counts['prompts_s']:.3g} s on them, and {counts['single_tokens_s']:.3g} s on single tokens."


def _loading(document: dict[str, Any]) -> list[str]:
    figures = document["measurements"].get("loading", {}).get("figures", [])
    rows = [
        [name, f"{peak['median'] / _MIB:,.0f} MiB"]
        for figure in figures
        for name, peak in figure["peak_memory_bytes"].items()
    ]
    rows += [["estimated before loading", f"{figure['estimated_bytes'] / _MIB:,.0f} MiB"] for figure in figures]
    return [_table(["contender", "peak memory"], rows)] if rows else []


def _goals(document: dict[str, Any]) -> list[str]:
    rows = list(_goal_rows(document))
    return ["### Goals", _table(_GOAL_HEAD, rows)] if rows else []


def _goal_rows(document: dict[str, Any]) -> Iterator[list[str]]:
    for goal in list_goals(document):
        yield [
            goal.name,
            f"{goal.value:.4g}",
            f"{goal.iqr:.2g}" if goal.n_samples > 1 else "",
            str(goal.n_samples),
            f"{goal.sign} {goal.limit:.3g}",
            "reached" if goal.is_met else "missed",
        ]
