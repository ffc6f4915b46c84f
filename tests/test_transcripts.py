"""Past episodes as token logs."""

import json

import pytest
from sqale_edge.benchmarks import ResultsFile, Run
from sqale_edge.benchmarks.results_file import Answer

from sqale_edge import Agent, EngineSettings
from sqale_edge.errors import ModelError
from sqale_edge.llama import LlamaEngine
from sqale_edge.models import find_model
from sqale_edge.transcripts import read_transcripts

QUESTIONS = ("How many customers are there?", "How many orders are there?")


class WatchedEngine(LlamaEngine):
    """Remembers its sequences' logs when they are closed."""

    def __init__(self, *args, **kwargs):
        self.logs = []
        super().__init__(*args, **kwargs)

    def release(self, sequence):
        self.logs.append(list(sequence.tokens))
        super().release(sequence)


@pytest.fixture(scope="module")
def engine():
    engine = WatchedEngine(find_model("demo").path, EngineSettings(n_ctx=4096, threads=1))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def asked(engine, tmp_path_factory):
    """Real episodes of the demo model, each with the log that it was."""
    from sqale_edge.testing import make_shop

    shop = make_shop(tmp_path_factory.mktemp("shop") / "shop.sqlite")
    agent = Agent(engine)  # the engine is closed by its own fixture
    episodes = [agent.run(question, shop) for question in QUESTIONS]
    return episodes, engine.logs[-len(episodes) :]


def read(path, engine):
    return list(read_transcripts(path, engine.info, engine.tokenize_pieces))


def write_results(path, episodes):
    run = Run("demo", "0" * 64, 0, "training", {}, 0, "0" * 64, "0", "3")
    with ResultsFile(path, run) as results:
        for number, episode in enumerate(episodes):
            results.add(Answer(str(number), episode.sql, episode))
        results.add(Answer("not asked", None, error="too long"))
    return path


def test_an_episode_has_nearly_the_log_that_it_was(asked, engine, tmp_path):
    """Results of `eval` give its text back, but for the last end token; a question that was not asked has none."""
    episodes, logs = asked
    found = read(write_results(tmp_path / "results.jsonl", episodes), engine)
    assert len(found) == len(logs)
    for log, whole in zip(found, logs, strict=True):
        assert len(log) > 100
        assert len(log) == pytest.approx(len(whole), rel=0.02)
        rest = engine.detokenize(whole).removeprefix(engine.detokenize(log))
        assert rest in (b"", engine.detokenize(whole[-1:]))


def test_every_form_gives_the_same(asked, engine, tmp_path):
    """One document as `ask --format json` prints it, several as lines, and logs of tokens."""
    (episode, other), _ = asked
    (tmp_path / "one.json").write_text(json.dumps(episode.to_dict(), indent=2))
    (one,) = read(tmp_path / "one.json", engine)
    lines = [json.dumps(each.to_dict()) for each in (episode, other)]
    (tmp_path / "two.jsonl").write_text("\n".join(lines) + "\n\n")
    assert read(tmp_path / "two.jsonl", engine)[0] == one
    (tmp_path / "log.jsonl").write_text(json.dumps({"tokens": one, "more": 1}) + "\n" + json.dumps({"tokens": [5]}))
    assert read(tmp_path / "log.jsonl", engine) == [one, [5]]


def test_text_is_taken_as_it_is(engine, tmp_path):
    """Its control tokens, too: a transcript that somebody kept as text has them as literals."""
    text = "<|im_start|>user\nHow many customers are there?<|im_end|>\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert read(tmp_path / "text.txt", engine) == [engine.tokenize(text, trusted=True)]


def test_a_torn_last_line_is_dropped(asked, engine, tmp_path):
    """A kill while a line was written loses that line alone."""
    path = write_results(tmp_path / "results.jsonl", asked[0])
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:2]) + content[2][:200])
    assert len(read(path, engine)) == 1


# (content, a part of the message)
BROKEN = [
    (b'{"tokens": [1, 2]}\n{"tokens"\n{"tokens": [3]}\n', "line 2: this is no JSON"),
    (b'{"tokens": [1, 99999999]}', "line 1: the token 99999999 is not in the model's vocabulary"),
    (b'{"tokens": [1, -1]}', "line 1: the token -1 is not in the model's vocabulary"),
    (b'{"tokens": [1, true]}', "line 1: this is no episode and no token log"),
    (b'{"tokens": []}', "line 1: this is no episode and no token log"),
    (b'{"tokens": 5}', "line 1: this is no episode and no token log"),
    (b'{"question": "Who?"}', "line 1: this is no episode and no token log"),
    (b'{"episode": {"turns": 5}}', "line 1: this is no episode and no token log"),
    (b'[{"tokens": [1]}]', "line 1: this is no episode and no token log"),
    (b"\xff\xfe", "are not UTF-8"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_what_is_wrong_is_said_with_its_line(engine, tmp_path, content, message):
    """In one line, with what to do."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read(path, engine)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_is_an_error(engine, tmp_path):
    """With its name."""
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            read(path, engine)
