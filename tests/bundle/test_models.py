"""Models of the store in a bundle, and models of a bundle in a store: small real ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_bundles import write_small_bundle

from sqale_edge.bundle.creation import open_bundle
from sqale_edge.bundle.installer.contents import InstallError, check_bundle
from sqale_edge.bundle.models import pack_model, place_models
from sqale_edge.errors import BundleError, ModelNotFoundError, StoreError
from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.models import find_model
from sqale_edge.store.add import add_model
from sqale_edge.store.care import find_damage, list_unfinished, remove_model
from sqale_edge.store.steps import Listener

LISTENER = Listener()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two bundles as folders: with the model `tiny`, and with another one of that name."""
    home = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQALE_EDGE_HOME", str(home / "home"))
        add_model(str(find_model("demo").path), name="tiny", is_offline=True)
        one = pack_model("tiny", home / "work", LISTENER)
        write_small_bundle(home / "one", [], [one], models=["tiny"])
        other = dataclasses.replace(one.manifest, licence="other")
        content = find_model("demo").path.read_bytes() + b"\0" * 32
        (home / "other.gguf").write_bytes(content)
        file = dataclasses.replace(one.manifest.file, n_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        other = dataclasses.replace(other, file=file)
        write_small_bundle(
            home / "two",
            [],
            [dataclasses.replace(one, manifest=other, sources={file.name: home / "other.gguf"})],
            models=["tiny"],
        )
    return home


def look(path):
    """What a bundle holds."""
    return check_bundle(open_bundle(path), lambda *_: None)


def place(path, listener=LISTENER):
    """Its models into the store."""
    contents = look(path)
    return place_models(contents, contents.read_about()["models"], listener)


def test_a_model_comes_through_whole(packed):
    """Every byte, and all that is known of it but where it lay; a second time it is there already."""
    assert place(packed / "one") == {"tiny": True}
    installed = read_installed("tiny")
    assert find_damage(installed) == []
    assert installed.path.read_bytes() == find_model("demo").path.read_bytes()
    assert place(packed / "one") == {"tiny": False}
    assert list_unfinished() == []


def test_a_damaged_model_is_replaced(packed):
    """It counts as there only if every byte is right; a manifest that cannot be read counts as none."""
    place(packed / "one")
    installed = read_installed("tiny")
    installed.path.write_bytes(b"GGUF" + bytes(installed.manifest.file.n_bytes - 4))
    assert place(packed / "one") == {"tiny": True}
    (installed.folder / "manifest.json").write_text("{")
    assert place(packed / "one") == {"tiny": True}
    assert find_damage(read_installed("tiny")) == []


def test_another_model_of_that_name_stays(packed):
    """The error says how to go on; nothing of the bundle is stored."""
    place(packed / "one")
    before = read_installed("tiny")
    with pytest.raises(StoreError, match="there is a model 'tiny' already") as error:
        place(packed / "two")
    assert "models rm tiny" in error.value.hint
    assert read_installed("tiny") == before


def test_no_path_of_this_machine_is_carried(tmp_path, qwen_gguf):
    """Neither of a linked file nor of a training prompt; the linked file itself is."""
    prompt = tmp_path / "private" / "sqale_agent.py"
    prompt.parent.mkdir()
    prompt.write_text('SYSTEM_PROMPT = "Be exact."\nUSER_TEMPLATE = "{question}"\n')
    from sqale_edge.store.training_texts import PromptChoice

    shutil.copy(qwen_gguf, tmp_path / "private" / "größer als.gguf")
    add_model(str(tmp_path / "private" / "größer als.gguf"), name="x", is_linked=True, prompt=PromptChoice(prompt))
    one = pack_model("x", tmp_path / "work", LISTENER)
    assert str(tmp_path) not in json.dumps(one.manifest.to_dict(), ensure_ascii=False)
    write_small_bundle(tmp_path / "b.zip", [], [one], models=["x"])
    remove_model("x")
    shutil.rmtree(tmp_path / "private")
    assert place(tmp_path / "b.zip") == {"x": True}
    assert read_installed("x").path.read_bytes() == qwen_gguf.read_bytes()
    assert "sqale.prompt.system" in read_installed("x").manifest.texts


def test_a_file_that_is_not_in_the_store(tmp_path, qwen_gguf):
    """By its path; it is verified as `models add` does it, and gets its name."""
    one = pack_model(str(qwen_gguf), tmp_path / "work", LISTENER)
    assert (one.manifest.name, one.manifest.source) == ("qwen", "qwen.gguf")
    write_small_bundle(tmp_path / "b", [], [one], models=["qwen"])
    assert place(tmp_path / "b") == {"qwen": True}
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(Exception, match="GGUF"):
        pack_model(str(tmp_path / "page.gguf"), tmp_path / "work2", LISTENER)


def test_models_that_cannot_be_packed(tmp_path):
    """One that is not there, a file that is not there, and the demo model, which every bundle has."""
    with pytest.raises(ModelNotFoundError, match="there is no model 'nothing' in the store"):
        pack_model("nothing", tmp_path / "a", LISTENER)
    with pytest.raises(StoreError, match="is neither a model in the store nor a file"):
        pack_model(str(tmp_path / "x.gguf"), tmp_path / "a", LISTENER)
    with pytest.raises(BundleError, match="part of every bundle"):
        pack_model("demo", tmp_path / "a", LISTENER)
    shutil.copy(find_model("demo").path, tmp_path / "demo.gguf")
    with pytest.raises(StoreError, match="cannot be called 'demo'") as error:
        pack_model(str(tmp_path / "demo.gguf"), tmp_path / "b", LISTENER)
    assert error.value.hint == "sqale-edge models add demo.gguf, and give its name to bundle create"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"file": {"name": "/etc/passwd", "n_bytes": 1, "sha256": "0" * 64}},
        {"file": {"name": "../../x", "n_bytes": 1, "sha256": "0" * 64}},
        {"format": 2},
        {"texts": 1},
        {"quant": 5},
        {"notes": [1]},
        {"versions": []},
        {"source_files": [{"name": "x", "n_bytes": "1", "sha256": "0"}]},
    ],
)
def test_a_manifest_cannot_lead_out_of_the_store(packed, tmp_path, change):
    """Of a bundle that somebody has made by hand, with the right digests."""
    shutil.copytree(packed / "one", tmp_path / "b")
    change_manifest(tmp_path / "b", change)
    with pytest.raises(BundleError, match="has no manifest that this version can read"):
        place(tmp_path / "b")
    assert list_names() == []


def change_manifest(folder, change):
    """A bundle in which `change` was made to the manifest, and the list written anew."""
    path = folder / "models/tiny/manifest.json"
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text((folder / "SHA256SUMS").read_text().replace(old, new))


def test_a_wrong_length_is_no_model(packed, tmp_path):
    """It would be in the store, and never be loaded."""
    shutil.copytree(packed / "one", tmp_path / "b")
    file = json.loads((tmp_path / "b/models/tiny/manifest.json").read_text())["file"]
    change_manifest(tmp_path / "b", {"file": file | {"n_bytes": file["n_bytes"] + 1}})
    with pytest.raises(InstallError, match="bytes, its manifest says"):
        place(tmp_path / "b")
    assert (list_names(), list_unfinished()) == ([], [])


def test_texts_that_are_no_unicode(packed, tmp_path):
    """Half a character, as JSON can say it: stored as it is, and shown without harm."""
    shutil.copytree(packed / "one", tmp_path / "b")
    change_manifest(tmp_path / "b", {"licence": "\ud800"})
    assert place(tmp_path / "b") == {"tiny": True}
    assert read_installed("tiny").manifest.licence == "\ud800"


def test_a_bundle_that_changes_meanwhile(packed, tmp_path):
    """Between the look at it and the copy: the digest is compared again."""
    shutil.copytree(packed / "one", tmp_path / "b")
    contents = look(tmp_path / "b")
    (path,) = (tmp_path / "b/models/tiny").glob("*.gguf")
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(InstallError, match="has changed since it was looked at"):
        place_models(contents, ["tiny"], LISTENER)
    assert (list_names(), list_unfinished()) == ([], [])


def test_ctrl_c_takes_back_what_was_stored(packed):
    """In the copy, and in what comes after it."""

    def interrupt(step):
        if step.step == "copy" and step.n_done == step.n_total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place(packed / "one", Listener(interrupt))
    assert (list_names(), list_unfinished()) == ([], [])


@pytest.mark.skipif(sys.platform == "win32", reason="kills and forks are those of POSIX")
def test_a_kill_while_a_model_is_stored_leaves_it_whole_or_not_there(packed):
    """Before each change of the store on the disk; the last run leaves nothing else."""
    script = Path(__file__).parents[1] / "store" / "killed.py"
    done = subprocess.run(
        [sys.executable, "-P", script, "bundle", packed / "one"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n_kills"] >= 12
    assert 2 <= result["n_there"] < result["n_kills"]
    assert find_damage(read_installed("tiny")) == []
    assert not (store_folder() / ".work").exists() or list((store_folder() / ".work").iterdir()) == []
