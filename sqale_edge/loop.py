"""One episode.

Think, call tools, read results, until there is an answer. See `turn.py` for how its generators are driven.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

from sqale_edge.episode import (
    Episode,
    Event,
    Finished,
    Noted,
    Prefilled,
    Timing,
    ToolCall,
    ToolCalled,
    ToolResult,
    ToolReturned,
    TurnEnded,
    Usage,
)
from sqale_edge.errors import Cancelled, ContextOverflowError, QueryError
from sqale_edge.protocol import clip_outputs
from sqale_edge.replies import MALFORMED, final_candidates, parse_calls
from sqale_edge.turn import OpenTurn, Steps

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from sqale_edge.database import Database, Table
    from sqale_edge.engine import Decoding, Engine, Grammar, TokenSequence
    from sqale_edge.episode import EndedBy
    from sqale_edge.prefixes import Prefixes
    from sqale_edge.protocol import Protocol
    from sqale_edge.settings import EpisodeLimits
    from sqale_edge.tools import Toolbox

_FORM = 'Write {"tool": "<name>", "args": {...}} and nothing else.'
_NO_CALL = ToolResult(MALFORMED, f"Error: the reply holds no tool call. {_FORM}", is_error=True)
_BAD_CALL = ToolResult(MALFORMED, f"Error: this is not a valid tool call. {_FORM}", is_error=True)
_SHORTEST_RESULT_CHARS = 200
_SHORTEST_ANSWER_TOKENS = 16


class CancelFlag:
    """Set from any thread: says that an episode is to stop, and why. The first reason counts."""

    def __init__(self) -> None:
        self.reason: EndedBy | None = None

    def set(self, reason: EndedBy) -> None:
        """Stop for `reason`."""
        self.reason = self.reason or reason

    def is_set(self) -> bool:
        """Whether the episode is to stop."""
        return self.reason is not None

    def check(self) -> None:
        """Raise Cancelled if it is set."""
        if self.is_set():
            raise Cancelled("the episode was cancelled")


class EpisodeLoop:
    """Runs one question on one sequence. `steps` is used once; its last event holds the episode.

    The sequence may hold the first prompt, or a part of it, from its start.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        sequence: TokenSequence,
        protocol: Protocol,
        grammar: Grammar,
        prefixes: Prefixes,
        database: Database,
        toolbox: Toolbox,
        limits: EpisodeLimits,
        flag: CancelFlag,
        question: str,
        evidence: str | None,
        seed: int,
        load_s: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        self._engine, self._sequence, self._protocol, self._grammar = engine, sequence, protocol, grammar
        self._database, self._toolbox, self._limits, self._flag = database, toolbox, limits, flag
        self._prefixes = prefixes
        self._question, self._evidence, self._seed, self._load_s = question, evidence, seed, load_s
        self._started = time.perf_counter()
        self._prefill_s = self._tool_s = 0.0
        self._turns: list[OpenTurn] = []
        self._notes = [*notes, *protocol.notes, *database.notes]
        self._answered: dict[str, ToolResult] = {}
        self._last_query: str | None = None
        self._n_failed_queries = 0
        self._sql: str | None = None
        self._table: Table | None = None
        self._n_tokens = min(limits.episode_tokens, engine.info.n_ctx)
        self._n_reserved = min(limits.final_tokens, self._n_tokens // 4)

    def steps(self) -> Steps:
        """The episode's events, `Finished` last, with a `Decoding` in between for every token."""
        for note in self._notes:
            yield Noted(1, note)
        ended_by: EndedBy
        try:
            self._flag.check()  # a cancel that came before the sequence existed
            ended_by = yield from self._explore_and_answer()
        except Cancelled:
            ended_by = self._flag.reason or "cancelled"
            self._sql = self._table = None
        if self._table is not None and self._table.has_timed_out:
            limit_s = self._limits.query_timeout_s
            yield self._note(f"the query was stopped after {limit_s:g} s: these are the rows found until then")
        episode = self._make_episode(ended_by)
        if ended_by != "cancelled":
            self._prefixes.save()
        yield Finished(len(self._turns), episode)

    def _explore_and_answer(self) -> Generator[Event | Decoding, int | None, EndedBy]:
        prompt = self._first_prompt()
        n_held = len(self._sequence.tokens)
        assert list(self._sequence.tokens) == prompt[:n_held], "what the sequence holds is the start of the prompt"
        prompt = prompt[n_held:]
        n_left = self._limits.tool_turns
        is_final = n_left == 0
        while not is_final:
            n_left -= 1
            turn = yield from self._write_turn(prompt, is_final=False)
            turn.calls = parse_calls(turn.text)
            yield from self._run_calls(turn)
            yield TurnEnded(turn.number, turn.usage)
            if turn.calls and turn.calls[len(turn.results) - 1].name == "submit_sql":
                return "submit_sql" if self._table is not None else self._fall_back()
            must_answer = n_left == 0 or self._n_failed_queries >= self._limits.failed_queries
            prompt, is_final = self._results_prompt(turn, n_left, is_final=must_answer)
            if is_final and not must_answer:
                yield self._note(f"the {self._n_tokens} tokens of an episode were nearly spent: it ended early")
            if len(self._sequence.tokens) + len(prompt) + _SHORTEST_ANSWER_TOKENS > self._n_tokens:
                return self._fall_back()
        turn = yield from self._write_turn(prompt, is_final=True)
        yield TurnEnded(turn.number, turn.usage)
        return (yield from self._take_final_answer(turn))

    # Prompts.

    def _first_prompt(self) -> list[int]:
        prompt = self._prefixes.tokenize(self._question, self._evidence)
        n_kept = self._n_reserved + self._limits.call_tokens
        if len(prompt) + n_kept > self._n_tokens:
            is_context = self._n_tokens < self._limits.episode_tokens
            limit = "n_ctx (SQALE_EDGE_N_CTX)" if is_context else "episode_tokens (SQALE_EDGE_EPISODE_TOKENS)"
            raise ContextOverflowError(
                f"question and instructions are {len(prompt)} tokens; with {n_kept} more for calls and answer they do "
                f"not fit into an episode of {self._n_tokens}",
                hint=f"ask a shorter question, or allow a larger {limit}",
            )
        return prompt

    def _results_prompt(self, turn: OpenTurn, n_left: int, *, is_final: bool) -> tuple[list[int], bool]:
        """The user turn with the results of `turn`, and whether it asks for the final answer.

        It does because it must (`is_final`), or because too few tokens are left for another tool turn. Results that are
        larger than all that is left do not end the exploration while much is left: they are cut to half of it.
        """
        self._flag.check()
        n_free = self._n_tokens - len(self._sequence.tokens) - self._n_reserved
        limit = self._protocol.limit_message(self._last_query, self._question)
        if not is_final:
            budget = self._protocol.budget_line(n_left)
            prompt = self._write_results(turn, budget)
            if len(prompt) + 2 * self._limits.call_tokens <= n_free:
                return prompt, False
            if len(prompt) > n_free >= 8 * self._limits.call_tokens:
                return self._fit_results(turn, budget, n_free // 2), False
        return self._fit_results(turn, limit, n_free), True

    def _fit_results(self, turn: OpenTurn, ending: str, n_max: int) -> list[int]:
        """The user turn in at most `n_max` tokens, if it can be: results are cut, and if need be left out."""
        max_chars = max(len(output) for output in _outputs(turn))
        n_shown = len(_outputs(turn))
        while len(prompt := self._write_results(turn, ending, max_chars, n_shown)) > n_max:
            if max_chars > _SHORTEST_RESULT_CHARS:
                max_chars = max(_SHORTEST_RESULT_CHARS, max_chars * max(n_max, 0) // len(prompt))
            elif n_shown > 1:
                n_shown //= 2
            else:
                break
        return prompt

    def _write_results(
        self, turn: OpenTurn, ending: str, max_chars: int | None = None, n_shown: int | None = None
    ) -> list[int]:
        """The user turn with the first `n_shown` results of `turn`, each cut to `max_chars`; None does neither."""
        end_token = None if turn.end_token is None else self._engine.detokenize([turn.end_token]).decode()
        clipped = clip_outputs(_outputs(turn), max_chars, n_shown)
        return self._engine.tokenize_pieces(self._protocol.results_turn(clipped, ending, end_token=end_token))

    # One turn.

    def _write_turn(
        self, prompt: Sequence[int], *, is_final: bool
    ) -> Generator[Event | Decoding, int | None, OpenTurn]:
        """Evaluate `prompt` and let the model write."""
        number = len(self._turns) + 1
        is_first = number == 1
        prefill = self._prefixes.append(self._sequence, prompt) if is_first else self._sequence.append(prompt)
        n_prompt = len(self._sequence.tokens)
        self._prefill_s += prefill.seconds
        yield Prefilled(number, n_prompt, prefill.n_cached, prefill.seconds)
        grammar = None if is_final else self._grammar
        turn = OpenTurn(
            self._engine,
            self._sequence,
            number,
            prefill,
            grammar=grammar,
            thinks=self._protocol.thinks,
            check=self._flag.check,
        )
        self._turns.append(turn)
        n_max = self._limits.final_tokens if is_final else self._limits.turn_tokens
        n_free = self._n_tokens - n_prompt - (0 if is_final else self._n_reserved)
        yield from turn.write(max(1, min(n_max, n_free)), self._limits.call_tokens)
        return turn

    def _run_calls(self, turn: OpenTurn) -> Iterator[Event]:
        """Run the calls in order, up to a `submit_sql`; an identical one is answered from memory."""
        for call in turn.calls:
            yield ToolCalled(turn.number, call)
            self._flag.check()
            key = json.dumps([call.name, call.args], sort_keys=True)
            is_repeat = key in self._answered
            if not is_repeat:
                with self._tool_time():
                    self._answered[key] = self._run_call(call)
            self._flag.check()
            result = self._answered[key]
            turn.results.append(result)
            yield ToolReturned(turn.number, result, is_repeat)
            if call.name == "submit_sql":
                return
            if call.name == "run_query":
                self._n_failed_queries = self._n_failed_queries + 1 if result.is_error else 0
                self._last_query = self._last_query if result.is_error else call.args["sql"]

    def _run_call(self, call: ToolCall) -> ToolResult:
        if call.name == MALFORMED:
            return _BAD_CALL
        result = self._toolbox.run(call.name, call.args)
        if call.name == "submit_sql" and not result.is_error:
            with contextlib.suppress(QueryError):  # it ran just now; a second run can still be too slow
                self._accept(call.args["sql"])
        return result

    # The answer.

    def _accept(self, sql: str) -> None:
        """Make `sql` the answer. Raises QueryError if it does not execute."""
        try:
            self._table = self._database.query(
                sql,
                max_rows=self._limits.max_rows,
                timeout_s=self._limits.query_timeout_s,
                keep_partial=True,
                should_stop=self._flag.is_set,
            )
        except QueryError:
            self._flag.check()
            raise
        self._sql = sql

    def _take_final_answer(self, turn: OpenTurn) -> Generator[Event, None, EndedBy]:
        for sql in final_candidates(turn.text):
            self._flag.check()
            try:
                with self._tool_time():
                    self._accept(sql)
            except QueryError as error:
                yield self._note(f"the final answer does not run: {error}")
            else:
                return "final_turn"
        return self._fall_back()

    def _fall_back(self) -> EndedBy:
        if self._last_query is None:
            return "no_answer"
        try:
            with self._tool_time():
                self._accept(self._last_query)
        except QueryError:
            return "no_answer"
        return "fallback_to_last_working_query"

    def _note(self, text: str) -> Noted:
        self._notes.append(text)
        return Noted(len(self._turns), text)

    @contextlib.contextmanager
    def _tool_time(self) -> Iterator[None]:
        """Count the block's time as the tools'."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._tool_s += time.perf_counter() - start

    def _make_episode(self, ended_by: EndedBy) -> Episode:
        turns = tuple(turn.freeze() for turn in self._turns)
        return Episode(
            question=self._question,
            evidence=self._evidence,
            sql=self._sql,
            columns=self._table.columns if self._table is not None else (),
            rows=self._table.rows if self._table is not None else (),
            truncated=self._table.truncated if self._table is not None else False,
            ended_by=ended_by,
            prompt=self._protocol.source,
            model=self._engine.info.name,
            seed=self._seed,
            turns=turns,
            notes=tuple(self._notes),
            usage=sum((turn.usage for turn in turns), Usage()),
            timing=Timing(
                load_s=self._load_s,
                ttft_s=self._turns[0].first_token_at - self._started
                if self._turns and self._turns[0].first_token_at
                else 0.0,
                prefill_s=self._prefill_s,
                decode_s=sum(turn.decode_s for turn in self._turns),
                tool_s=self._tool_s,
                total_s=time.perf_counter() - self._started,
            ),
        )


def _outputs(turn: OpenTurn) -> list[str]:
    """What the turn's results say; a turn without a call has one that says so."""
    return [result.output for result in turn.results or [_NO_CALL]]
