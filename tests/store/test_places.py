"""Where a store may be: on another disk, with a long name that is not ASCII, and shared between users."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from sqale_edge.cli.models_text import list_models
from sqale_edge.errors import StoreError
from sqale_edge.installed import Manifest, list_names, read_installed, store_folder
from sqale_edge.models import find_model
from sqale_edge.store.add import add_model
from sqale_edge.store.care import find_damage, list_unfinished, remove_model
from sqale_edge.store.steps import Listener, hash_file
from sqale_edge.store.workplace import open_workplace

OTHERS = (54_321, 54_322)  # two users, who need not exist
GROUP = 54_300


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another disk than the temporary one."""
    disk = Path("/dev/shm")
    if not disk.is_dir() or disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk")
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        yield Path(folder)


def test_a_store_moved_to_another_disk(home, other_disk, qwen_gguf, monkeypatch):
    """Moved as a whole; found by the variable, or by a link where it was; and it can be changed there."""
    add_model(str(qwen_gguf), name="x")
    shutil.move(store_folder(), other_disk / "models")
    monkeypatch.setenv("SQALE_EDGE_HOME", str(other_disk))
    assert find_damage(read_installed("x")) == []
    monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
    assert list_names() == []
    (home / "models").symlink_to(other_disk / "models")
    assert find_damage(read_installed("x")) == []
    add_model(str(qwen_gguf), name="y")
    remove_model("x")
    assert list_names() == ["y"]
    assert (other_disk / "models/y/manifest.json").exists()


def test_a_store_with_a_long_name_that_is_not_ascii(tmp_path, qwen_gguf, monkeypatch):
    """Models are added, found, verified and removed; so is one whose own file has such a name."""
    home = tmp_path.joinpath(*["Größe und Länge 名前" * 4] * 3)
    monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
    source = tmp_path / ("Modell für Übungen" * 6 + ".gguf")
    shutil.copy(qwen_gguf, source)
    installed = add_model(str(source))
    assert len(str(installed.path).encode()) > 400
    assert find_damage(installed) == []
    assert find_model(installed.manifest.name).path == installed.path
    remove_model(installed.manifest.name)
    assert list_names() == []


def as_user(user, work):
    """What `work` returns in a process of that user and the group; an exception becomes its text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(0o002)
            result = work()
        except Exception as error:  # noqa: BLE001 - told to the parent
            result = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        result = json.loads(answer.read())
    os.waitpid(child, 0)
    return result


def place(name, text="GGUF"):
    """A model, put in place as `add` does it."""
    with open_workplace(name, Listener()) as work:
        path = work.version / "m.gguf"
        path.write_text(text)
        work.place(Manifest(name, "ready-made", hash_file(path, path.name, Listener()), None, source="x"))
    return find_damage(read_installed(name))


@pytest.fixture
def shared(monkeypatch):
    """The folder of a store that the group may write to."""
    if sys.platform == "win32" or os.geteuid() != 0:
        pytest.skip("needs to become other users")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "shared"
        home.mkdir()
        os.chown(home, OTHERS[0], GROUP)
        home.chmod(0o2775)
        monkeypatch.setenv("SQALE_EDGE_HOME", str(home))
        yield home


def test_users_of_a_group_share_a_store(shared):
    """Each can use, replace and remove what the other has stored."""
    first, second = OTHERS
    assert as_user(first, lambda: place("m")) == []
    assert as_user(second, lambda: find_damage(read_installed("m"))) == []
    assert as_user(second, lambda: place("m", "GGUF of the other")) == []
    assert as_user(first, lambda: [*list_names(), remove_model("m"), *list_names()]) == ["m", None]


def test_a_store_that_others_only_read(shared):
    """It is read; what would change it is one line with the fix."""
    first, second = OTHERS
    assert as_user(first, lambda: place("m")) == []
    for path in [shared, *shared.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o022)
    assert as_user(second, lambda: [*list_names(), *find_damage(read_installed("m"))]) == ["m"]
    assert as_user(second, lambda: str(find_model("m").path)) == str(read_installed("m").path)
    for work in (lambda: place("m"), lambda: place("new"), lambda: remove_model("m")):
        answer = as_user(second, work)
        assert answer.startswith(f"{StoreError.__name__}: ")
        assert "in the model store cannot be used: " in answer
    assert find_damage(read_installed("m")) == []


def test_a_model_that_others_may_not_look_at(shared):
    """One of a user with a umask of 077: the others are listed, and this one is said to be unreadable."""
    first, second = OTHERS
    assert as_user(first, lambda: [place("closed"), place("open")]) == [[], []]
    for path in (shared / "models" / "closed", shared / "models" / ".work"):
        path.chmod(0o700)
    assert as_user(second, lambda: [list_names(), list_unfinished()]) == [["closed", "open"], []]
    assert "cannot be read: Permission denied" in as_user(second, lambda: read_installed("closed"))
    answer = as_user(second, lambda: remove_model("closed"))
    assert answer.startswith(f"{StoreError.__name__}: ")
    assert "cannot be used: Permission denied" in answer


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_path_that_is_no_unicode(tmp_path, qwen_gguf, run, is_linked):
    """As an old archive leaves it: the model is stored, found and shown."""
    folder = tmp_path / os.fsdecode(b"gr\xfc\xdfe")
    folder.mkdir()
    shutil.copy(qwen_gguf, folder / "m.gguf")
    installed = add_model(str(folder / "m.gguf"), is_linked=is_linked)
    assert find_damage(read_installed("m")) == []
    assert installed.manifest.source == str(folder / "m.gguf")
    for command in (["list"], ["show", "m"], ["show", "m", "--json"], ["path", "m"]):
        assert run("models", *command)[0] == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not tell such names apart")
def test_a_folder_with_large_letters_is_no_model(home):
    """Nobody could ask for it; the list goes on without it."""
    place("m")
    (home / "models" / "m").rename(home / "models" / "M")
    assert list_names() == []
    assert "M" not in [one["name"] for one in list_models()]


@pytest.mark.parametrize("other", ["m-journal", "m.owner"])
def test_models_whose_names_are_alike_do_not_share_a_lock(other):
    """SQLite and this program keep other files beside a lock, with its name and more."""

    def give_up(step):
        raise KeyboardInterrupt(step.step)

    with open_workplace("m", Listener()):
        place(other)
    with open_workplace(other, Listener()):
        place("m")
        with pytest.raises(KeyboardInterrupt, match="wait"), open_workplace(other, Listener(give_up)):
            pass
