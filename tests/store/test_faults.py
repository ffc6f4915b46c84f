"""`pull` when something is wrong: the hub, the network, the disk, the model, the name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from stand_in_hub import READY, READY_TEXT, SQALE

from sqale_edge.errors import ConversionError, ModelLoadError, SqaleEdgeError, StoreError
from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.models import find_model
from sqale_edge.store.care import find_damage
from sqale_edge.store.pull import pull_model
from sqale_edge.store.steps import Listener
from sqale_edge.store.training_texts import PromptChoice


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
