"""`pull`: what is downloaded, what becomes of it, and what happens when something is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants
from stand_in_hub import AGENT_SOURCE, SQALE, StandInHub

from sqale_edge.errors import ConversionError, ModelLoadError, SqaleEdgeError, StoreError
from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.llama import read_model_info
from sqale_edge.models import find_model
from sqale_edge.protocol import Protocol
from sqale_edge.store.care import find_damage, list_unfinished
from sqale_edge.store.pull import pull_model
from sqale_edge.store.steps import Listener
from sqale_edge.store.training_texts import PromptChoice

READY = "someone/sqale-GGUF"
READY_TEXT = f"hf:{READY}/files/ready-Q4.gguf"
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


@pytest.fixture
def ready(hub, qwen_gguf):
    """A repository with a finished file that lacks its training prompt; its content."""
    content = qwen_gguf.read_bytes()
    hub.add(READY, {"files/ready-Q4.gguf": content, "README.md": b"x"}, license="mit", base_model=[SQALE])
    return content


@pytest.fixture(scope="module")
def pulled(tmp_path_factory, checkpoint):
    """A store with `sqale` in it, made once; tests only look at it."""
    home = tmp_path_factory.mktemp("pulled")
    with pytest.MonkeyPatch.context() as patch, StandInHub() as hub:
        patch.setenv("SQALE_EDGE_HOME", str(home))
        patch.setenv("NO_PROXY", "*")
        patch.setattr(constants, "ENDPOINT", hub.url)
        hub.commit = hub.add(SQALE, checkpoint, license="apache-2.0")
        installed = pull_model("sqale", keep_source=True)
    close_session()
    return home, hub, installed


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


def always(status=None, **values):
    """A fault of every file that is sent."""

    def fault(path, answer):
        if path.startswith(("/cdn/", "/api/")) if values.pop("also_list", False) else path.startswith("/cdn/"):
            answer.status = status
            for name, value in values.items():
                setattr(answer, name, value)

    return fault


def flip(path, answer):
    if path.startswith("/cdn/"):
        answer.content = answer.content[:-1] + bytes([answer.content[-1] ^ 1])


def flip_small(path, answer):
    if path.endswith("config.json"):
        answer.content = answer.content.replace(b"}", b" ", 1)


def lengthen(path, answer):
    if path.startswith("/cdn/"):
        answer.content += b"more"


def shorten(path, answer):
    if path.startswith("/cdn/"):
        answer.content = answer.content[:-7]
        answer.ignore_range = True


def fail_listing(status, headers=None, content=b""):
    def fault(path, answer):
        if path.startswith("/api/"):
            answer.status, answer.headers, answer.content = status, headers or {}, content

    return fault


PAGE = b"<html>Please log in to the hotel's network</html>"
HTML = {"Content-Type": "text/html; charset=utf-8"}
FAULTS = [
    (READY_TEXT, fail_listing(429, {"Retry-After": "77"}), r"asks to wait \(429\)", "in 77 seconds"),
    (READY_TEXT, always(429, headers={"Retry-After": "5"}), r"asks to wait \(429\), at files/ready", "in 5 seconds"),
    (READY_TEXT, fail_listing(500), "answers 500, asked for someone/sqale-GGUF", "try again later"),
    (
        READY_TEXT,
        always(503),
        r"could not be downloaded: the server answers 503, 6 times",
        "run the same command again",
    ),
    (READY_TEXT, always(404), "there is no files/ready-Q4.gguf of someone/sqale-GGUF", "check how it is spelled"),
    (READY_TEXT, fail_listing(200, HTML, PAGE), "a web page instead of the list of files", "HF_ENDPOINT"),
    (READY_TEXT, always(200, headers=HTML, content=PAGE), "a web page instead of files/ready-Q4.gguf", "in the way"),
    (READY_TEXT, fail_listing(200, {}, b"[1]"), "does not answer as a Hugging Face hub", "HF_ENDPOINT"),
    (READY_TEXT, fail_listing(200, {}, b'{"sha": "../x", "siblings": []}'), "does not answer as", "HF_ENDPOINT"),
    (READY_TEXT, flip, "not what the hub promises: SHA-256 [0-9a-f]{64} instead of", "downloaded anew"),
    (SQALE, flip_small, "config.json is not what the hub promises: git's SHA-1", "downloaded anew"),
    (READY_TEXT, lengthen, "longer than the [0-9,]+ bytes", "a proxy"),
    (READY_TEXT, shorten, "could not be downloaded: it ended after", "run the same command again"),
    (READY_TEXT, always(cut_after=0), "could not be downloaded: .*6 times in a row", "goes on where it was"),
    ("someone/nothing", None, r"there is no someone/nothing on .* \(401\)", "spelled"),
    (f"{SQALE}@v9", None, f"there is no revision {SQALE}@v9", "leave the revision out"),
    (f"hf:{READY}/other.gguf", None, "there is no 'other.gguf' in someone/sqale-GGUF", "it has files/ready-Q4.gguf"),
    (READY, None, "holds no checkpoint that can be converted: there is no config.json", f"pull hf:{READY}/files/"),
    ("nonsense", None, "'nonsense' is no model that can be pulled", "sqale, bird, synsql, base, OWNER/REPOSITORY"),
    ("a/../b", None, "is no model that can be pulled", "OWNER/REPOSITORY"),
    ("hf:a/b/../../c.gguf", None, "is no model that can be pulled", "OWNER/REPOSITORY"),
    ("demo", None, "part of the package", "--model demo"),
]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case[2][:40])
def test_a_fault_is_one_line_with_the_fix(hub, ready, case):
    """Nothing is in the store afterwards, and the same command works when the fault is over."""
    text, fault, message, hint = case
    hub.fault = fault
    with pytest.raises(StoreError, match=message) as error:
        pull_model(text, prompt=PromptChoice(is_wanted=False))
    assert hint in error.value.hint
    assert "\n" not in f"{error.value}{error.value.hint}"
    assert list_names() == []
    hub.fault = None
    if text == READY_TEXT and fault in (flip, lengthen):
        assert pull_model(text, prompt=PromptChoice(is_wanted=False)).path.read_bytes() == ready


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_bad", 403)])
def test_a_gated_repository_says_how_to_get_in(hub, ready, monkeypatch, token, status):
    """Without a token, and with one that does not suffice."""
    hub.gated.add(READY)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(StoreError, match=rf"not open to everybody \({status}\)") as error:
        pull_model(READY_TEXT)
    assert "hf auth login" in error.value.hint


def test_a_finished_file_cannot_have_another_type(hub, ready):
    """--quant is for checkpoints."""
    with pytest.raises(StoreError, match="finished file, and Q8_0 cannot be made of it"):
        pull_model(READY_TEXT, quant="Q8_0")


def test_a_file_that_is_no_model_is_refused(hub):
    """As the hub has it, so its digest is right."""
    hub.add("a/b", {"x.gguf": b"not a model" * 10, "y.gguf": b"GGUF" + bytes(100)})
    with pytest.raises(ModelLoadError, match=r"is not a GGUF file"):
        pull_model("hf:a/b/x.gguf")
    with pytest.raises(SqaleEdgeError, match=r"y\.gguf"):
        pull_model("hf:a/b/y.gguf")
    assert list_names() == []


def test_another_architecture_is_refused_before_the_weights(hub, checkpoint):
    """Gigabytes are not downloaded in vain."""
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    config = json.loads(files["config.json"]) | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    hub.add("a/mamba", files | {"config.json": json.dumps(config).encode()})
    with pytest.raises(ConversionError, match="MambaForCausalLM"):
        pull_model("a/mamba")
    assert not [name for name in hub.list_downloads() if name.endswith(".safetensors")]


def test_the_disk_is_looked_at_first(hub):
    """For download, intermediate file and result together; no weights are asked for."""
    hub.claimed_bytes["model-00001-of-00002.safetensors"] = 10**16
    with pytest.raises(StoreError, match=r"GB free, but needs .*download .*BF16 .*Q4_K_M") as error:
        pull_model("sqale")
    assert "SQALE_EDGE_HOME" in error.value.hint
    assert not [name for name in hub.list_downloads() if name.endswith(".safetensors")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(hub, ready):
    """The operating system says it while the file grows; afterwards the same command goes on."""
    hub.fault = always(cut_after=1000)
    with pytest.raises(StoreError):
        stop_after(2000)
    part = store_folder() / ".work" / "ready-q4" / "source" / "ready-Q4.gguf.part"
    part.unlink()
    part.symlink_to("/dev/full")
    hub.fault = None
    with pytest.raises(StoreError, match="is full") as error:
        pull_model(READY_TEXT)
    assert "what is downloaded is kept" in error.value.hint
    part.unlink()
    assert pull_model(READY_TEXT).path.read_bytes() == ready


def stop_after(n_bytes):
    """A pull that is stopped when so many bytes are there."""

    def show(step):
        if step.step == "download" and step.n_done >= n_bytes:
            raise StoreError("stopped")

    pull_model(READY_TEXT, listener=Listener(show))


def test_a_name_belongs_to_one_repository(hub, ready):
    """The model of another one is not replaced, but can have another name."""
    pull_model(READY_TEXT, name="mine", prompt=PromptChoice(is_wanted=False))
    hub.add("other/repo", dict(hub.repositories[READY]))
    with pytest.raises(StoreError, match=f"a model 'mine' already, from '{READY}'") as error:
        pull_model("hf:other/repo/files/ready-Q4.gguf", name="mine")
    assert "--name" in error.value.hint


@pytest.mark.parametrize("name", ["", ".x", "a/b", "x.gguf", "é", "demo", "x" * 65, "..", "a b"])
def test_a_name_that_no_model_can_have(hub, name):
    """It would be taken for a path, or be none on some system."""
    with pytest.raises(StoreError, match="cannot be called"):
        pull_model("sqale", name=name or " ")


def test_offline_says_what_to_do_by_hand(hub, monkeypatch):
    """With --offline, HF_HUB_OFFLINE, and without a route: which files, from where, and what to run then."""
    reasons = []
    for is_offline, constant, value in (
        (True, "HF_HUB_OFFLINE", False),
        (False, "HF_HUB_OFFLINE", True),
        (False, "ENDPOINT", "http://127.0.0.1:9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(constants, constant, value)
            with pytest.raises(StoreError) as error:
                pull_model("sqale", is_offline=is_offline)
        reasons.append(str(error.value))
        for part in (f"{SQALE}/tree/main", "config.json", "tokenizer.json", "sqale_agent.py", ".safetensors"):
            assert part in error.value.hint
        assert error.value.hint.endswith("run sqale-edge models add FOLDER --name sqale")
    assert "--offline was given" in reasons[0]
    assert "HF_HUB_OFFLINE is set" in reasons[1]
    assert "cannot be reached: " in reasons[2]
    assert hub.requests == []
    with pytest.raises(StoreError) as error:
        pull_model(READY_TEXT, is_offline=True)
    assert f"{hub.url}/{READY}/resolve/main/files/ready-Q4.gguf" in error.value.hint


def test_offline_a_model_that_is_there_is_no_error(pulled, monkeypatch):
    """A script can pull again on a machine without a network."""
    home, _, installed = pulled
    monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
    notes = []
    found = pull_model("sqale", is_offline=True, listener=Listener(note=notes.append))
    assert found.path == installed.path
    assert "was not asked" in notes[0]


def test_a_damaged_download_of_a_killed_run_is_seen(hub, ready):
    """What lies there from before is compared, too."""
    hub.fault = always(cut_after=1000)
    with pytest.raises(StoreError, match="stopped"):
        stop_after(1)
    hub.fault = None
    part = store_folder() / ".work" / "ready-q4" / "source" / "ready-Q4.gguf.part"
    part.write_bytes(b"\0" * 5000)
    with pytest.raises(StoreError, match="not what the hub promises"):
        pull_model(READY_TEXT)
    assert pull_model(READY_TEXT).path.read_bytes() == ready


def test_a_damaged_model_is_replaced(hub, ready):
    """`pull` makes good a model whose file or manifest is wrong."""
    choice = PromptChoice(is_wanted=False)
    installed = pull_model(READY_TEXT, prompt=choice)
    installed.path.unlink()
    with pytest.raises(StoreError, match="is gone") as error:
        find_model("ready-q4")
    assert error.value.hint == f"get it again with sqale-edge models pull {READY_TEXT} --name ready-q4"
    assert pull_model(READY_TEXT, prompt=choice).path.read_bytes() == ready
    (installed.folder / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match="is no manifest"):
        read_installed("ready-q4")
    assert pull_model(READY_TEXT, prompt=choice).path.read_bytes() == ready
    assert find_damage(read_installed("ready-q4")) == []
