"""Past episodes as token logs: what an importance matrix is computed from.

A file of JSON lines holds results of `eval`, episodes as `ask --format json` prints them, one a line, or token logs
`{"tokens": [...]}`. Any other file is text, and taken as it is.

An episode does not keep its tokens. Its log is written again from the model's own prompts and the texts that were
thought, called and answered: right for statistics, and not guaranteed to be the same to the last token.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqale_edge.engine import Piece
from sqale_edge.episode import Episode
from sqale_edge.errors import ModelError
from sqale_edge.protocol import Protocol
from sqale_edge.settings import EpisodeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.engine import ModelInfo

    Tokenize = Callable[[Sequence[Piece]], list[int]]

_MARKS = ("{", "[")
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what damaged JSON leads to


def read_transcripts(path: Path, info: ModelInfo, tokenize: Tokenize) -> Iterator[list[int]]:
    """The token logs in a file, in the tokens of a model.

    Args:
        path: Of a file of JSON lines, one JSON document, or text.
        info: Of the model.
        tokenize: `Engine.tokenize_pieces` of that model.

    Raises:
        ModelError: The file cannot be read, a line is broken, or a log has a token that the model does not know.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"the transcripts {str(path)!r} are not UTF-8", hint="check which file it is") from None
    except OSError as error:
        raise ModelError(
            f"the transcripts {str(path)!r} cannot be read: {error.strerror}", hint="check the path"
        ) from error
    if not text.lstrip().startswith(_MARKS):
        yield _with_start(info, tokenize([Piece(text, trusted=True)]))
        return
    for place, document in _parse(text, path):
        try:
            log = _make_log(document, info, tokenize)
        except _BROKEN as error:
            raise _broken(
                path, place, f"this is no episode and no token log ({type(error).__name__}: {error})"
            ) from None
        if log is None:
            continue
        if bad := [token for token in log if not 0 <= token < info.n_vocab]:
            raise _broken(path, place, f"the token {bad[0]} is not in the model's vocabulary of {info.n_vocab:,}")
        yield log


def _broken(path: Path, place: int, problem: str) -> ModelError:
    return ModelError(
        f"{str(path)!r}, line {place}: {problem}",
        hint="give results of sqale-edge eval --output, or episodes of ask --format json",
    )


def _parse(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Each document with the number of its line: one on each, or a single one on all of them."""
    try:
        yield 1, json.loads(text)
    except ValueError:
        pass
    else:
        return
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):  # torn by a kill; `eval` drops it, too
                return
            raise _broken(path, number, "this is no JSON") from None


def _make_log(document: Any, info: ModelInfo, tokenize: Tokenize) -> list[int] | None:
    """The log of one document; None where it has none: the first line of results, a question that was not answered."""
    if "form" in document:
        return None
    if "tokens" in document:
        tokens = document["tokens"]
        if not tokens or not all(type(token) is int for token in tokens):
            raise TypeError("tokens are whole numbers, at least one")
        return list(tokens)
    if "episode" in document and document["episode"] is None:
        return None
    episode = Episode.from_dict(document.get("episode", document))
    return _with_start(info, tokenize(write_episode(episode, Protocol(info)))) if episode.turns else None


def _with_start(info: ModelInfo, tokens: list[int]) -> list[int]:
    return tokens if info.bos is None or tokens[:1] == [info.bos] else [info.bos, *tokens]


def write_episode(episode: Episode, protocol: Protocol) -> list[Piece]:
    """The whole text of an episode, prompts and the model's turns, as it went through the model."""
    pieces = protocol.first_prompt(episode.question, episode.evidence)
    n_turns = EpisodeLimits().tool_turns
    last_query: str | None = None
    for number, turn in enumerate(episode.turns, 1):
        pieces.append(Piece(turn.thought, trusted=False))
        if protocol.thinks:
            pieces.append(Piece("</think>", trusted=True))
        pieces.append(Piece(turn.text, trusted=False))
        if number == len(episode.turns):
            break
        for call, result in zip(turn.calls, turn.results, strict=False):
            if call.name == "run_query" and not result.is_error:
                last_query = str(call.args.get("sql"))
        is_over = episode.turns[number].is_final
        n_left = max(1, n_turns - number)
        ending = protocol.limit_message(last_query, episode.question) if is_over else protocol.budget_line(n_left)
        pieces += protocol.results_turn([result.output for result in turn.results] or [""], ending, end_token=None)
    return pieces
