"""Kills processes that change the store, each at its own instant, and looks at the store afterwards.

Run as a script, because it forks: `killed.py replace|remove|pull`, or `killed.py bundle PATH`. The last line of its
output is a JSON document. An instant is the one before a file or folder of the store is opened, made, renamed or
deleted, or the one when progress is reported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sqale_edge.bundle.creation import open_bundle
from sqale_edge.bundle.installer.contents import check_bundle
from sqale_edge.bundle.models import place_models
from sqale_edge.installed import Manifest, list_names, read_installed, store_folder
from sqale_edge.store.care import find_damage, list_unfinished, remove_model
from sqale_edge.store.pull import pull_model
from sqale_edge.store.steps import Listener, hash_file
from sqale_edge.store.workplace import open_workplace

NAME = "m"
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "sqlite3.connect"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed(work) -> bool:
    """Whether the child that does `work` was killed; it may also end well, and nothing else."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the child must not go on as its parent
            sys.stderr.write(f"failed: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return False


def kill_before_change(number: int):
    """From now on this process dies before its change of that number."""
    n_left = number
    home = str(store_folder())

    def hook(event: str, arguments: tuple) -> None:
        nonlocal n_left
        if event in CHANGES and any(str(argument).startswith(home) for argument in arguments):
            n_left -= 1
            if n_left == 0:
                die()

    sys.addaudithook(hook)


def replace(tag: str) -> None:
    """The model's new version, as `pull` puts it in place."""
    with open_workplace(NAME, Listener()) as place:
        path = place.version / "m.gguf"
        path.write_text(tag * 1000, encoding="utf-8")
        file = hash_file(path, path.name, Listener())
        place.place(Manifest(NAME, "ready-made", file, None, source="x", licence=tag))


def look() -> str | None:
    """The tag of the model that is there, every byte of which is right; None where there is none."""
    if list_names() == []:
        assert read_installed(NAME) is None
        return None
    installed = read_installed(NAME)
    assert list_names() == [NAME]
    installed.check_present()
    assert find_damage(installed) == []
    assert installed.path.read_text(encoding="utf-8") == installed.manifest.licence * 1000
    return installed.manifest.licence


def kill_replacing() -> dict:
    seen = []
    before, number = None, 0
    while True:
        number += 1
        tag = f"v{number},"

        def work(number=number, tag=tag) -> None:
            kill_before_change(number)
            replace(tag)

        was_killed = is_killed(work)
        now = look()
        assert now in (before, tag), (before, tag, now)
        seen.append(now == tag)
        before = now
        if not was_killed:
            break
    left = sorted(str(path.relative_to(store_folder())) for path in store_folder().rglob("*") if path.is_file())
    return {"n_kills": number - 1, "n_new": sum(seen), "left": left}


def kill_removing() -> dict:
    number, n_gone = 0, 0
    while True:
        number += 1
        replace("here")

        def work(number=number) -> None:
            kill_before_change(number)
            remove_model(NAME)

        was_killed = is_killed(work)
        n_gone += look() is None
        if not was_killed:
            break
    return {"n_kills": number - 1, "n_gone": n_gone}


def kill_pulling() -> dict:
    """In the download after every so many bytes, and then in every step of the conversion."""
    instants = [("download", share / 12) for share in range(12)]
    instants += [("check", 0.0), ("write", 0.0), ("write", 1.0), ("quantize", 0.0), ("verify", 0.0), ("verify", 1.0)]
    n_kills = 0
    for step, share in instants:

        def work(step=step, share=share) -> None:
            def show(progress) -> None:
                if progress.step == step and progress.n_done >= share * progress.n_total and progress.n_total > 500_000:
                    die()

            pull_model("sqale", listener=Listener(show))

        n_kills += is_killed(work)
        assert list_names() == []
    unfinished = [one.name for one in list_unfinished()]
    installed = pull_model("sqale")
    assert find_damage(installed) == []
    left = [one.name for one in list_unfinished()] + [str(path) for path in (store_folder() / ".work").iterdir()]
    return {"n_kills": n_kills, "n_instants": len(instants), "unfinished": unfinished, "left": left}


def kill_placing() -> dict:
    """While the model of a bundle is put into an empty store."""
    contents = check_bundle(open_bundle(Path(sys.argv[2])), lambda *_: None)
    (name,) = names = contents.read_about()["models"]
    number, n_there = 0, 0
    while True:
        number += 1

        def work(number=number) -> None:
            kill_before_change(number)
            place_models(contents, names, Listener())

        was_killed = is_killed(work)
        installed = read_installed(name)
        if installed:
            assert find_damage(installed) == []
            n_there += 1
        if not was_killed:
            break
        if installed:
            remove_model(name)
    return {"n_kills": number - 1, "n_there": n_there}


if __name__ == "__main__":
    assert store_folder().is_relative_to(Path(os.environ["SQALE_EDGE_HOME"]))
    kinds = {"replace": kill_replacing, "remove": kill_removing, "pull": kill_pulling, "bundle": kill_placing}
    result = kinds[sys.argv[1]]()
    sys.stdout.write(json.dumps(result) + "\n")
