"""EHRSQL's own preparation of SQL before it runs: its clock, its ranges, its date formats.

Source: `post_process_sql` in evaluate.py of glee4810/EHRSQL, commit 1588e586 (2023), and in
scoring_program/postprocessing.py of glee4810/ehrsql-2024, commit 7f199f58. Done here on tokens. Not taken over: 2023's
lower case for the whole text, its literals included, and its replacement of `''` by `'`.
"""

from __future__ import annotations

from sqale_edge.sql_text import tokens

_CLOCKS = {"ehrsql": "'2105-12-31 23:59:00'", "ehrsql2024": "'2100-12-31 23:59:00'"}
_RANGES = {
    "temperature": ("35.5", "38.1"),
    "sao2": ("95.0", "100.0"),
    "heart_rate": ("60.0", "100.0"),
    "respiration": ("12.0", "18.0"),
    "systolic_bp": ("90.0", "120.0"),
    "diastolic_bp": ("60.0", "90.0"),
    "mean_bp": ("60.0", "110.0"),
}
_LIMITS = {
    f"{name}_{end}": value
    for name, ends in _RANGES.items()
    for end, value in zip(("lower", "upper"), ends, strict=True)
}


def prepare_sql(form: str, sql: str) -> str:
    """`sql` as it runs for a question of that form; other forms' SQL is unchanged."""
    if form not in _CLOCKS:
        return sql
    pieces: list[str] = []
    for kind, text in tokens(sql):
        if text == "=" and len(pieces) > 1 and pieces[-1].isspace() and pieces[-2] in ("<", ">", "!"):
            pieces.pop()  # `< =`
        pieces.append(_prepare(form, kind, text))
    return "".join(pieces)


def _prepare(form: str, kind: str, text: str) -> str:
    if kind == "quoted":
        return text.replace("%y", "%Y").replace("%j", "%J")
    if kind != "word":
        return text
    return _CLOCKS[form] if text.lower() == "current_time" else _LIMITS.get(text.lower(), text)
