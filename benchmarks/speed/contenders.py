"""Our engine and its peers, each in its own process, with the same methods; see `processes.py` for the other side.

How each is driven:

- `sqale-edge`: a real `Agent`, with instructions as long as trained ones.
- `llama-cpp-python`: its completion call as most programs would use it: the whole prompt as text each turn, as the chat
  template renders it, which leaves out the thoughts of earlier turns; its own sampler chain and grammar. The log's
  tokens are made certain by a logits processor, whose own time does not count. *Appending* is the best that can be done
  with it: thoughts stay, so that each prompt begins with the one before, as far as its tokens come out the same.
- `llama.cpp server`: token ids over HTTP on this machine, its prompt cache on. It cannot be held to a log's tokens, so
  it writes as many tokens of its own, and those are what the next turn's prompt holds. It does without a grammar, which
  spares it that work.
"""

from __future__ import annotations

import http.client
import importlib
import json
import os
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqale_edge.errors import ModelError
from sqale_edge.grammar import tool_call_grammar
from sqale_edge.settings import EngineSettings, EpisodeLimits, PrefixSettings
from sqale_edge.tools import TOOLS

from .first_prompts import lengthen_prompt
from .processes import MissingError
from .token_logs import TokenLog

_LOCAL = "127.0.0.1"
_WAIT_S = 3600
_CERTAIN = 1e4


def peak_memory_bytes() -> int | None:
    """The most memory that this process ever had resident; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    n_bytes: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return n_bytes if sys.platform == "darwin" else n_bytes * 1024


class Ours:
    """`sqale-edge` itself."""

    def prepare(self) -> None:
        """See that it is installed; the imports are no part of loading."""
        import sqale_edge.llama  # noqa: F401, PLC0415 - each contender's packages are loaded in its process alone

    def load(self, model: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Load; the seconds it took."""
        from sqale_edge.agent import Agent  # noqa: PLC0415
        from sqale_edge.llama import LlamaEngine  # noqa: PLC0415

        self.prepare()
        # One token is all that is asked for: what counts is how soon it comes.
        limits = EpisodeLimits(tool_turns=0, final_tokens=1)
        start = time.perf_counter()
        engine = Agent.load(model, settings=EngineSettings(**settings), limits=limits).engine
        seconds = time.perf_counter() - start
        assert isinstance(engine, LlamaEngine), "it is in this process"
        engine.info = lengthen_prompt(engine.info, engine.tokenize_pieces)
        self._agent = Agent(engine, limits=limits, prefixes=PrefixSettings.from_environment())
        return {"seconds": seconds}

    def ask(self, question: str, database: str, prompt: list[int]) -> dict[str, Any]:
        """The first token of an answer."""
        del prompt
        episode = self._agent.run(question, database)
        usage = episode.usage
        return {
            "seconds": episode.timing.ttft_s,
            "n_prompt": usage.n_prompt,
            "n_cached": usage.n_cached,
            "n_evaluated": usage.n_evaluated,
        }

    def keep(self) -> None:
        """Keep for the next start what can be kept: that is done by closing."""
        self._agent.close()

    def bring_back(self) -> None:
        """Take what was kept: that is done by asking."""

    def work(self, n_prefill: int, n_decode: int) -> dict[str, Any]:
        """Evaluate and decode something, as an episode does."""
        sequence = self._agent.engine.new_sequence(0)
        start = time.perf_counter()
        sequence.append(self._agent.engine.tokenize("a " * n_prefill, trusted=False)[:n_prefill])
        n_decoded = len(list(sequence.decode(None, n_decode, frozenset())))
        sequence.close()
        return {"seconds": time.perf_counter() - start, "n_decoded": n_decoded}


class LlamaCppPython:
    """llama-cpp-python's completion call."""

    def prepare(self) -> Any:
        """See that it is installed."""
        return _import("llama_cpp", "llama-cpp-python")

    def load(self, model: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Load; the seconds it took."""
        llama_cpp = self.prepare()
        own = EngineSettings(**settings)
        start = time.perf_counter()
        self._model = llama_cpp.Llama(
            model,
            n_ctx=own.n_ctx,
            n_batch=own.n_batch,
            n_threads=own.threads,
            n_threads_batch=own.threads_batch or own.threads,
            n_gpu_layers={"auto": -1, "off": 0}.get(str(own.gpu_layers), own.gpu_layers),
            verbose=False,
        )
        seconds = time.perf_counter() - start
        self._llama_cpp = llama_cpp
        return {"seconds": seconds, "version": llama_cpp.__version__}

    def episode(self, log: dict[str, Any], *, keeps_thoughts: bool) -> dict[str, Any]:
        """Replay a log: each turn is one completion of everything so far, as text."""
        grammars = [self._make_grammar(thinks=thinks) for thinks in (False, True)]
        history: list[int] = []
        forcing_s = 0.0
        n_decoded = n_given = 0
        turns = TokenLog.from_dict(log).turns
        before, n_turns = self._read_counters(), len(turns)
        start = time.perf_counter()
        for turn in turns:
            history += turn.prompt
            left = list(turn.decoded)
            first = len(left)

            def force(_tokens: Any, logits: Any, left: list[int] = left) -> Any:
                nonlocal forcing_s
                begun = time.perf_counter()
                if left:
                    logits[left.pop(0)] = _CERTAIN
                forcing_s += time.perf_counter() - begun
                return logits

            prompt = b"".join(self._model.detokenize([token], special=True) for token in history)
            answer = self._model.create_completion(
                prompt.decode("utf-8", "replace"),
                max_tokens=first,
                temperature=0.6,
                top_k=20,
                top_p=0.95,
                min_p=0.0,
                grammar=grammars[bool(turn.free)],
                logits_processor=self._llama_cpp.LogitsProcessorList([force]),
            )
            n_decoded += first - len(left)
            n_given += answer["usage"]["prompt_tokens"]
            history += turn.decoded if keeps_thoughts else turn.grammar
        seconds = time.perf_counter() - start - forcing_s
        n_evaluated, prompt_s, single_s = (now - then for now, then in zip(self._read_counters(), before, strict=True))
        return {
            "seconds": seconds,
            "n_decoded": n_decoded,
            "n_prompt_given": n_given,
            # Of the tokens that a turn writes the last is not evaluated; the others are, one by one.
            "n_prompt_evaluated": int(n_evaluated) - (n_decoded - n_turns),
            "prompts_s": prompt_s,
            "single_tokens_s": single_s,
        }

    def _read_counters(self) -> tuple[float, float, float]:
        """What llama.cpp says: tokens that it has evaluated, and the seconds for prompts and for single tokens."""
        counters = self._llama_cpp.llama_perf_context(self._model.ctx)
        return counters.n_p_eval + counters.n_eval, counters.t_p_eval_ms / 1e3, counters.t_eval_ms / 1e3

    def work(self, n_prefill: int, n_decode: int) -> dict[str, Any]:
        """Evaluate and decode something, as an episode does."""
        start = time.perf_counter()
        tokens = self._model.tokenize(b"a " * n_prefill, add_bos=False)[:n_prefill]
        made = zip(range(n_decode), self._model.generate(tokens), strict=False)
        n_decoded = len(list(made))
        return {"seconds": time.perf_counter() - start, "n_decoded": n_decoded}

    def _make_grammar(self, *, thinks: bool) -> Any:
        """The grammar of a whole turn: one that begins in a thought can only be constrained as a whole."""
        text = tool_call_grammar(TOOLS)
        if thinks:
            text = text.replace("root ::=", 'root ::= [^<]* "</think>" calls\ncalls ::=', 1)
        return self._llama_cpp.LlamaGrammar.from_string(text, verbose=False)


class Server:
    """llama.cpp's server, through `xllamacpp`."""

    def prepare(self) -> Any:
        """See that it is installed."""
        return _import("xllamacpp", "xllamacpp")

    def load(self, model: str, settings: dict[str, Any], folder: str = "") -> dict[str, Any]:
        """Load; the seconds it took. Slots are kept in `folder`."""
        xllamacpp = self.prepare()
        own = EngineSettings(**settings)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = model
        parameters.n_ctx = own.n_ctx * own.n_sequences
        parameters.n_parallel = own.n_sequences
        parameters.cache_prompt = True
        parameters.n_gpu_layers = {"auto": -1, "off": 0}.get(str(own.gpu_layers), own.gpu_layers)
        if folder:
            parameters.slot_save_path = os.path.join(folder, "")  # noqa: PTH118 - it must end with a separator
        if own.threads:
            parameters.cpuparams.n_threads = own.threads
        if own.threads_batch or own.threads:
            parameters.cpuparams_batch.n_threads = own.threads_batch or own.threads
        start = time.perf_counter()
        self._server = xllamacpp.Server(parameters)
        self._address = self._server.listening_address.removeprefix("http://").rstrip("/")
        build = str(getattr(xllamacpp, "BUILD_INFO", ""))
        system = str(xllamacpp.get_system_info())
        return {
            "seconds": time.perf_counter() - start,
            "version": xllamacpp.__version__,
            "build": build,
            "system": system,
        }

    def episode(self, log: dict[str, Any], slot: int = 0, variant: int = 0) -> dict[str, Any]:
        """As many tokens as the log has, turn by turn, in the same lengths.

        One token of each `variant` differs, behind the shared part of the prompt: no more than that is in the cache.
        """
        episode = TokenLog.from_dict(log)
        history: list[int] = []
        others = sorted({token for turn in episode.turns for token in turn.decoded})
        n_decoded = n_given = n_evaluated = 0
        start = time.perf_counter()
        for number, turn in enumerate(episode.turns):
            history += turn.prompt
            if number == 0:
                history[episode.n_shared] = others[variant % len(others)]
            n_given += len(history)
            answer = self._complete(history, len(turn.decoded), slot)
            history += answer["tokens"]
            n_decoded += len(answer["tokens"])
            n_evaluated += answer["timings"]["prompt_n"]
        return {
            "seconds": time.perf_counter() - start,
            "n_decoded": n_decoded,
            "n_prompt_given": n_given,
            "n_prompt_evaluated": n_evaluated,
        }

    def together(self, log: dict[str, Any], n: int, variant: int = 0) -> dict[str, Any]:
        """The log `n` times at a time, in as many slots: one question, another one for each `variant`."""
        start = time.perf_counter()
        with ThreadPoolExecutor(n) as pool:
            done = list(pool.map(lambda slot: self.episode(log, slot, variant), range(n)))
        return {
            "seconds": time.perf_counter() - start,
            **{key: sum(one[key] for one in done) for key in ("n_decoded", "n_prompt_given", "n_prompt_evaluated")},
        }

    def ask(self, question: str, database: str, prompt: list[int]) -> dict[str, Any]:
        """The first token of an answer."""
        del question, database
        start = time.perf_counter()
        answer = self._complete(prompt, 1, 0)
        seconds = time.perf_counter() - start
        n_evaluated = answer["timings"]["prompt_n"]
        return {
            "seconds": seconds,
            "n_prompt": len(prompt),
            "n_cached": len(prompt) - n_evaluated,
            "n_evaluated": n_evaluated,
        }

    def keep(self) -> None:
        """Save the slot."""
        self._post("/slots/0?action=save", {"filename": "slot.bin"})

    def bring_back(self) -> None:
        """Restore the slot."""
        self._post("/slots/0?action=restore", {"filename": "slot.bin"})

    def work(self, n_prefill: int, n_decode: int) -> dict[str, Any]:
        """Evaluate and decode something, as an episode does."""
        start = time.perf_counter()
        answer = self._complete([1] * n_prefill, n_decode, 0)
        return {"seconds": time.perf_counter() - start, "n_decoded": len(answer["tokens"])}

    def _complete(self, prompt: list[int], n_predict: int, slot: int) -> dict[str, Any]:
        answer: dict[str, Any] = self._post(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": n_predict,
                "cache_prompt": True,
                "return_tokens": True,
                "ignore_eos": True,
                "id_slot": slot,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0.0,
            },
        )
        if len(answer.get("tokens", ())) != n_predict:
            raise ModelError(f"the server wrote {len(answer.get('tokens', ()))} tokens, {n_predict} were asked for")
        return answer

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=_WAIT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ModelError(f"the server answered {response.status}: {text[:200].decode('utf-8', 'replace')}")
        return json.loads(text)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(f"{package} is not installed (pip install {package})") from error


OURS, LLAMA_CPP_PYTHON, SERVER = "sqale-edge", "llama-cpp-python", "llama.cpp server"
KINDS: dict[str, type] = {OURS: Ours, LLAMA_CPP_PYTHON: LlamaCppPython, SERVER: Server}


def _serve(contender: Any, lines: queue.SimpleQueue[str], answers: Any) -> None:
    """Answer one call after the other."""
    while True:
        method, arguments = json.loads(lines.get())
        try:
            result = peak_memory_bytes() if method == "peak" else getattr(contender, method)(**arguments)
            answer: dict[str, Any] = {"result": None if method == "prepare" else result}
        except MissingError as error:
            answer = {"missing": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is told to the parent
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """The child: a contender that answers lines of JSON, until its parent is gone."""
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(1)  # the parent's end of stdin closes when the parent ends

    threading.Thread(target=read, daemon=True).start()
    _serve(KINDS[sys.argv[1]](), lines, answers)


if __name__ == "__main__":
    main()
