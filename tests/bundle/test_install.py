"""A bundle is installed: whole, or not at all. The real installer and the real pip, with a program of 20 lines."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from small_bundles import write_small_bundle, write_wheel

from sqale_edge.bundle.collection import Wheel
from sqale_edge.bundle.creation import open_bundle
from sqale_edge.bundle.installer.contents import InstallError
from sqale_edge.bundle.installer.installation import install_bundle
from sqale_edge.bundle.installer.place import find_command, find_python, held

WAIT_S = 120
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")


def show(*_):
    pass


def start(bundle, *arguments, **options):
    """The bundle's own program."""
    command = [sys.executable, "-I", bundle / "install.py", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"} | options
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)


def run(bundle, *arguments, **options):
    """Exit code, stdout and stderr."""
    with start(bundle, *arguments, **options) as process:
        out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def runs(venv):
    """Whether the installed program does."""
    done = subprocess.run([find_command(venv)], capture_output=True, text=True, check=False)
    return (done.returncode, done.stdout) == (0, "the program runs\n")


def is_marked(venv):
    """Whether the folder says that it is complete."""
    try:
        return json.loads((venv / "sqale-edge-bundle.json").read_text())["is_complete"]
    except FileNotFoundError:
        return False


def test_install_py_installs(small, wheels, tmp_path, monkeypatch):
    """Into a folder with a long name that is not ASCII; settings of pip are not heard, and the bundle is as before.

    A second time nothing is done, and another bundle is not installed over it.
    """
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = sorted(small.rglob("*"))
    long = tmp_path / ("Größe und Länge " * 6).strip() / ("名" * 40)
    long.parent.mkdir()
    code, out, err = run(small, "--venv", long)
    assert (code, out) == (0, f"{find_command(long)}\n"), err
    assert err.splitlines()[0].startswith("The bundle is whole. Its digest is ")
    assert (runs(long), is_marked(long)) == (True, True)
    assert sorted(small.rglob("*")) == before
    assert not (long / ".wheels").exists()
    assert not (long / ".sqale-edge-install.lock").exists()
    stamp = find_python(long).lstat().st_ctime_ns
    assert run(small, "--venv", long)[0] == 0  # there already: nothing is done
    assert find_python(long).lstat().st_ctime_ns == stamp
    write_small_bundle(tmp_path / "other", wheels, made_at="later")
    code, _, err = run(tmp_path / "other", "--venv", long)
    assert (code, "holds the program of another bundle" in err) == (1, True)
    assert runs(long)


def test_verify_installs_nothing(small, tmp_path):
    """`install.py --verify` prints the digest, and compares it."""
    code, out, err = run(small, "--verify")
    assert (code, out) == (0, "")
    digest = err.split()[-1]
    assert run(small, "--verify", "--digest", digest)[0] == 0
    code, out, err = run(small, "--venv", tmp_path / "venv", "--digest", "0" * 64)
    assert (code, out, (tmp_path / "venv").exists()) == (1, "", False)
    assert err.startswith("Error: the digest of ")
    assert " Fix: this is another bundle" in err


def test_damage_is_found_before_anything_is_written(small, tmp_path):
    """One line, exit code 1, and no folder."""
    (small / "wheels" / "x.whl").touch()
    code, out, err = run(small, "--venv", tmp_path / "venv")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "is damaged: 'wheels/x.whl' does not belong to it. Fix: " in err
    assert not (tmp_path / "venv").exists()


def test_a_zip_is_installed(wheels, tmp_path):
    """Its wheels are taken out on the way."""
    digest = write_small_bundle(tmp_path / "a.zip", wheels)
    assert install_bundle(open_bundle(tmp_path / "a.zip"), tmp_path / "venv", show, digest=digest) == digest
    assert runs(tmp_path / "venv")
    assert not (tmp_path / "venv/.wheels").exists()


def test_pip_alone_installs_the_same(small, tmp_path):
    """As INSTALL.md says it, with the digests compared by pip."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    command = [find_python(tmp_path / "venv"), "-I", "-m", "pip", "install", "-q", "--no-index", "--require-hashes"]
    command += ["--find-links", "wheels", "-r", "requirements.txt"]
    environment = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}
    subprocess.run(command, cwd=small, check=True, env=environment)
    assert runs(tmp_path / "venv")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"platform": "windows-x86_64"}, "the bundle is for windows-x86_64 and CPython 3."),
        ({"python": "3.99"}, "and CPython 3.99, this is "),
        ({"glibc": "9.99"}, "the bundle was made with glibc 9.99, this is glibc "),
    ],
)
def test_a_bundle_for_another_machine(wheels, tmp_path, values, message):
    """System, Python, C library: it is said what the bundle is for, and what this is."""
    if "glibc" in values and not sys.platform.startswith("linux"):
        pytest.skip("no glibc here")
    write_small_bundle(tmp_path / "b", wheels, **values)
    code, _, err = run(tmp_path / "b", "--venv", tmp_path / "venv")
    assert code == 1
    assert message in err
    assert not (tmp_path / "venv").exists()


def test_another_version_of_python_says_so(small, tmp_path):
    """The file that a person starts can be read by every Python since 2.7; those before 3.11 are told what to do."""
    python = shutil.which("python2") or shutil.which("python3.8") or shutil.which("python3.10")
    text = (small / "install.py").read_text(encoding="ascii")
    compile(text, "install.py", "exec", dont_inherit=True)
    assert 'f"' not in text
    if python:
        done = subprocess.run([python, small / "install.py"], capture_output=True, text=True, check=False)
        if "not found" not in done.stderr:  # a name that stands for no installed Python
            assert done.returncode == 1
            assert done.stderr.startswith("Error: this is Python ")


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing", "no parent"])
def test_a_name_that_is_taken(small, tmp_path, kind):
    """Nobody's folder is touched."""
    venv = tmp_path / "venv"
    if kind == "file":
        venv.write_text("mine")
    elif kind == "folder":
        venv.mkdir()
        (venv / "mine").touch()
    elif kind == "link to nothing":
        venv.symlink_to(tmp_path / "nowhere")
    else:
        venv = tmp_path / "nowhere" / "venv"
    code, _, err = run(small, "--venv", venv)
    assert code == 1
    assert ("there is no folder" if kind == "no parent" else "exists already. Fix: choose another folder") in err
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name == "mine") == ["mine"] * (kind == "folder")


def test_an_empty_folder_may_be_given(small, tmp_path):
    """And stays, if nothing comes of it."""
    (tmp_path / "venv").mkdir()
    (small / "x").touch()
    assert run(small, "--venv", tmp_path / "venv")[0] == 1
    assert list((tmp_path / "venv").iterdir()) == []
    with held(tmp_path / "venv"):
        pass
    assert list((tmp_path / "venv").iterdir()) == []


def test_a_program_that_does_not_run_is_not_installed(wheels, tmp_path):
    """As when llama.cpp was compiled for a newer processor: what failed, and nothing stays."""
    files = {"sqale_edge/__init__.py": "", "sqale_edge/convert.py": "raise SystemExit('Illegal instruction')"}
    (tmp_path / "w").mkdir()
    broken = Wheel("sqale-edge", "0.1", write_wheel(tmp_path / "w", files), "given")
    write_small_bundle(tmp_path / "b", [wheels[0], broken])
    code, _, err = run(tmp_path / "b", "--venv", tmp_path / "venv")
    assert code == 1
    assert "the program does not run on this machine: Illegal instruction. Fix: " in err
    assert "GGML_NATIVE=OFF" in err
    assert not (tmp_path / "venv").exists()


def test_a_wheel_that_pip_refuses(wheels, tmp_path):
    """What pip says is in the line, and nothing stays."""
    (tmp_path / "w").mkdir()
    other = Wheel("sqale-edge", "0.1", write_wheel(tmp_path / "w", tag="cp27-cp27m-win32"), "given")
    write_small_bundle(tmp_path / "b", [wheels[0], other])
    code, _, err = run(tmp_path / "b", "--venv", tmp_path / "venv")
    assert code == 1
    assert "2 wheels could not be installed: " in err
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a mount namespace")
@pytest.mark.parametrize(
    ("options", "message"),
    [("ro", "cannot be written to: Read-only file system"), ("size=4m", " MB free, but ")],
)
def test_a_disk_that_cannot_take_it(small, tmp_path, options, message):
    """Read-only, or too small: one line, before anything is written."""
    (tmp_path / "disk").mkdir()
    mount = f'mount -t tmpfs -o {options} none "$1" || exit 77'
    script = f'{mount}; "$2" -I "$3/install.py" --venv "$1/venv"; echo $?; ls -A "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    try:
        done = subprocess.run(
            [*command, tmp_path / "disk", sys.executable, small], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.stdout == "1\n"
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_at_once(small, tmp_path):
    """The second is told, and disturbs nothing."""
    with held(tmp_path / "venv"), pytest.raises(InstallError, match="another process is installing into"):
        install_bundle(open_bundle(small), tmp_path / "venv", show)
    assert not (tmp_path / "venv").exists()


@needs_posix
@pytest.mark.parametrize("step", ["check", "make", "install", "try"])
def test_ctrl_c_leaves_nothing(small, tmp_path, step):
    """In every step: no folder, and no process that goes on in it."""

    def interrupt(now, *_):
        if now == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_bundle(open_bundle(small), tmp_path / "venv", interrupt)
    assert not (tmp_path / "venv").exists()


@needs_posix
def test_a_signal_ends_install_py(small, tmp_path):
    """Exit code 130 and one line; nothing stays."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(small, "--venv", tmp_path / "venv")
        while not (tmp_path / "venv/bin").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out, err) == (130, "", "Cancelled.\n")
        assert not (tmp_path / "venv").exists()


@needs_posix
def test_killed_at_any_instant_it_starts_again(small, tmp_path):
    """Six times, at random; the folder never says that it is complete when it is not, and the last run completes it."""
    venv, chance, n_killed = tmp_path / "venv", random.Random(9), 0
    for _ in range(6):
        process = start(small, "--venv", venv, start_new_session=True)
        try:
            process.wait(chance.uniform(0.05, 1.5))
        except subprocess.TimeoutExpired:
            process.kill()
            n_killed += 1
        process.communicate()
        if is_marked(venv):
            assert runs(venv)
            shutil.rmtree(venv)
    assert n_killed >= 2
    assert run(small, "--venv", venv)[0] == 0
    assert runs(venv)


@needs_posix
def test_a_killed_installer_takes_pip_with_it(small, tmp_path):
    """Or it would write into the folder that the next one makes."""
    process = start(small, "--venv", tmp_path / "venv")
    while not (tmp_path / "venv/.wheels/requirements.txt").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    for _ in range(200):
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if str(tmp_path / "venv") not in running:
            return
        time.sleep(0.05)
    pytest.fail(running)
