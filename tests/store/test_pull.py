"""`pull`: what is downloaded, and what becomes of it."""

from __future__ import annotations

import hashlib
import shutil

import pytest
from stand_in_hub import AGENT_SOURCE, READY, READY_TEXT, SQALE

from sqale_edge.errors import StoreError
from sqale_edge.installed import list_names
from sqale_edge.llama import read_model_info
from sqale_edge.models import find_model
from sqale_edge.protocol import Protocol
from sqale_edge.store.care import find_damage, list_unfinished
from sqale_edge.store.pull import pull_model
from sqale_edge.store.steps import Listener
from sqale_edge.store.training_texts import PromptChoice

NEEDED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "sqale_agent.py",
    "LICENSE",
}


def test_only_what_a_conversion_needs_is_downloaded(pulled, checkpoint):
    """Each file once; no README, optimizer or pickled weights."""
    _, hub, _ = pulled
    assert sorted(hub.list_downloads()) == sorted(name for name in NEEDED if (checkpoint / name).exists())


def test_the_manifest_says_what_the_model_is(pulled, checkpoint):
    """Repository, commit, digests, recipe, versions, licence; they are those of the files."""
    _, hub, installed = pulled
    manifest = installed.manifest
    assert (manifest.name, manifest.origin, manifest.quant) == ("sqale", "converted", "Q4_K_M")
    assert (manifest.repository, manifest.revision, manifest.licence) == (SQALE, hub.commit, "apache-2.0")
    assert manifest.file.sha256 == hashlib.sha256(installed.path.read_bytes()).hexdigest()
    for file in manifest.source_files:
        content = (checkpoint / file.name).read_bytes()
        assert (file.n_bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest.versions.keys() >= {"sqale_edge", "llama-cpp-python", "huggingface_hub"}
    assert "SYSTEM_PROMPT" in manifest.prompt_source
    assert manifest.made_at.startswith("20")


def test_a_model_is_found_by_its_name(pulled, monkeypatch):
    """In small and large letters, with its own training prompt; a `Path` of that name stays a path."""
    home, _, installed = pulled
    monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
    for name in ("sqale", "Sqale"):
        assert find_model(name).path == installed.path
    info = read_model_info(installed.path)
    assert Protocol(info).source == "training"
    assert info.metadata["sqale.source.repository"] == SQALE


def test_source_and_licence_are_kept_where_asked(pulled):
    """With --keep-source everything lies beside the model, and `verify` looks at it."""
    _, _, installed = pulled
    names = {file.name.partition("/")[2] for file in installed.manifest.files}
    assert names >= {"LICENSE", "source/config.json", "source/model-00001-of-00002.safetensors"}
    assert find_damage(installed) == []
    assert list(installed.folder.iterdir()) != []


def test_a_moved_store_works(pulled, tmp_path, monkeypatch):
    """As a whole, to another folder with a long name that is not ASCII."""
    home, _, _ = pulled
    target = tmp_path / "Größe 日本" / ("lang" * 40) / ("länger" * 20)
    target.parent.mkdir(parents=True)
    shutil.copytree(home, target)
    monkeypatch.setenv("SQALE_EDGE_HOME", str(target))
    path = find_model("sqale").path
    assert path.is_relative_to(target)
    assert read_model_info(path).name == "qwen3.5-2b-grpo-sqale"


def test_a_second_pull_downloads_nothing(hub, pulled, monkeypatch):
    """It asks which commit is the newest, and no more."""
    home, _, installed = pulled
    monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
    assert pull_model("sqale").path == installed.path
    assert (len(hub.requests), hub.list_downloads()) == (1, [])


def test_a_newer_commit_replaces_the_model(hub, checkpoint):
    """The old files are gone, and so is the source of the new ones."""
    first = pull_model("sqale", quant="BF16", name="sqale")
    files = dict(hub.repositories[SQALE]) | {"LICENSE": b"Another one."}
    commit = hub.add(SQALE, files)
    second = pull_model("sqale", quant="BF16", name="sqale")
    assert (first.manifest.name, second.manifest.revision) == ("sqale", commit)
    assert not first.path.exists()
    assert sorted(entry.name for entry in second.folder.iterdir()) == sorted([second.path.parent.name, "manifest.json"])
    assert list_unfinished() == []
    assert find_damage(second) == []


def test_a_ready_made_file_runs_as_trained(ready, hub):
    """Its texts come from the original repository's sqale_agent.py, which is kept beside it."""
    installed = pull_model(READY_TEXT)
    manifest = installed.manifest
    assert (manifest.name, manifest.origin, manifest.licence) == ("ready-q4", "ready-made", "mit")
    assert installed.path.read_bytes() == ready
    assert (installed.path.parent / "sqale_agent.py").read_text(encoding="utf-8") == AGENT_SOURCE
    assert manifest.prompt_source.startswith(f"sqale_agent.py of {SQALE}@")
    model = find_model("ready-q4")
    protocol = Protocol(model.complete(read_model_info(model.path)))
    assert protocol.source == "training"
    assert "Use the tools." in protocol.first_prompt("how many?")[0].text
    assert Protocol(read_model_info(model.path)).source == "own"


def test_a_training_prompt_can_be_given(ready, hub, tmp_path):
    """Then the original repository is not asked; and it can be done without."""
    source = tmp_path / "mine.py"
    source.write_text(AGENT_SOURCE.replace("Use", "Take"), encoding="utf-8")
    given = pull_model(READY_TEXT, name="given", prompt=PromptChoice(source))
    assert given.manifest.texts["sqale.prompt.system"] == "Take the tools."
    without = pull_model(READY_TEXT, name="without", prompt=PromptChoice(is_wanted=False))
    assert (without.manifest.texts, without.manifest.prompt_source) == ({}, None)
    assert not [path for _, path, _ in hub.requests if SQALE in path]


def test_a_prompt_that_was_left_out_comes_with_the_next_pull(hub, ready):
    """A model that was pulled with --no-training-prompt does not count as there for a pull that wants it."""
    notes = []
    for source in ("sqale", READY_TEXT):
        first = pull_model(source, prompt=PromptChoice(is_wanted=False)).manifest
        assert first.prompt_source is None
        again = pull_model(source, prompt=PromptChoice(is_wanted=False)).manifest
        assert again.made_at == first.made_at
        second = pull_model(source, listener=Listener(note=notes.append)).manifest
        assert "sqale_agent.py" in second.prompt_source
        n_requests = len(hub.list_downloads())
        pull_model(source)
        assert len(hub.list_downloads()) == n_requests
    assert [note for note in notes if "anew" in note] == [
        f"{name} is in the store without its training prompt, so it is made anew" for name in ("sqale", "ready-q4")
    ]
    assert pull_model("sqale", prompt=PromptChoice(is_wanted=False)).manifest.prompt_source is None


def test_a_base_that_nobody_knows_is_no_error(ready, hub):
    """A note says that the model gets the package's own instructions."""
    hub.cards[READY] = {"base_model": "someone/unknown"}
    hub.repositories = {READY.replace("sqale", "x"): hub.repositories[READY]}
    hub.cards = {READY.replace("sqale", "x"): {"base_model": "someone/unknown"}}
    notes = []
    installed = pull_model(READY_TEXT.replace("sqale", "x"), listener=Listener(note=notes.append))
    assert "this package's own instructions" in installed.manifest.notes[0]
    assert any("someone/unknown" in note and "going on without it" in note for note in notes)


def test_a_known_model_without_its_texts_is_an_error(ready, hub):
    """It would answer worse than it can; the message says how to go on, and the download is kept."""
    del hub.repositories[SQALE]
    with pytest.raises(StoreError, match=f"training prompt of {SQALE}") as error:
        pull_model(READY_TEXT)
    assert "--training-prompt FILE" in error.value.hint
    assert "--no-training-prompt" in error.value.hint
    assert list_names() == []
    n_requests = len(hub.requests)
    pull_model(READY_TEXT, prompt=PromptChoice(is_wanted=False))
    assert len(hub.requests) == n_requests + 1


def test_a_renamed_repository_is_followed(hub, ready):
    """The redirect of the hub is said, and the new name recorded."""
    hub.renamed["someone/old"] = READY
    notes = []
    installed = pull_model(
        "hf:someone/old/files/ready-Q4.gguf", prompt=PromptChoice(is_wanted=False), listener=Listener(note=notes.append)
    )
    assert installed.manifest.repository == READY
    assert notes == [f"someone/old is called {READY} now"]


def test_a_token_goes_to_the_hub_alone(hub, ready, monkeypatch):
    """A gated repository opens with it; where the hub sends the client to another host, it stays behind."""
    hub.gated.add(READY)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    pull_model(READY_TEXT, prompt=PromptChoice(is_wanted=False))
    assert hub.authorizations == {("127.0.0.1", "Bearer hf_good")}


def test_cut_connections_are_taken_up_where_they_broke(hub, ready):
    """Each try brings a part; none is downloaded twice."""

    def cut(path, answer):
        if path.startswith("/cdn/"):
            answer.cut_after = len(ready) // 3

    hub.fault = cut
    hub.chunk_bytes = 4096
    installed = pull_model(READY_TEXT, prompt=PromptChoice(is_wanted=False))
    assert installed.path.read_bytes() == ready
    ranges = [asked for _, path, asked in hub.requests if path.startswith("/cdn/")]
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) for asked in ranges[1:]]
    assert ranges[0] is None
    assert len(starts) >= 3
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("answer_to_range", ["ignored", "416", "wrong"])
def test_a_server_without_ranges_sends_it_anew(hub, ready, answer_to_range):
    """Whatever it answers, the file is right in the end."""
    n_cut = 0

    def fault(path, answer):
        nonlocal n_cut
        if not path.startswith("/cdn/"):
            return
        n_cut += 1
        if n_cut == 1:
            answer.cut_after = 10_000
        elif answer_to_range == "ignored":
            answer.ignore_range = True
        elif n_cut == 2 and answer_to_range == "416":
            answer.status = 416
        elif n_cut == 2:
            answer.status, answer.headers, answer.content = 206, {"Content-Range": "bytes 7-9/10"}, b"abc"

    hub.fault = fault
    assert pull_model(READY_TEXT, prompt=PromptChoice(is_wanted=False)).path.read_bytes() == ready
