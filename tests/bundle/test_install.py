"""A bundle is installed: whole, or not at all. The real installer and the real pip, with a program of 20 lines."""

from __future__ import annotations

import json
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from small_bundles import write_small_bundle, write_wheel

from sqale_edge.bundle.collection import Wheel
from sqale_edge.bundle.creation import open_bundle
from sqale_edge.bundle.installer.contents import InstallError, check_bundle
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
    [
        ("ro", "cannot be written to: Read-only file system. Fix: choose another place"),
        ("size=4m", " MB free, but "),
        ("nr_inodes=7", "venv' is full. Fix: free some space"),
        ("nr_inodes=200", ". Fix: free some space, and run the same command again"),
    ],
)
def test_a_disk_that_cannot_take_it(small, tmp_path, options, message):
    """Read-only, too small, or full in the middle of it: one line, and nothing stays."""
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
@pytest.mark.parametrize("step", ["check", "make", "unpack", "install", "try"])
def test_ctrl_c_leaves_nothing(small, tmp_path, step):
    """In every step: no folder, and no process that goes on in it."""

    def interrupt(now, *_):
        if now == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_bundle(open_bundle(small), tmp_path / "venv", interrupt)
    assert not (tmp_path / "venv").exists()


def wait_for(path, process):
    """Until the running process has made it."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


@needs_posix
def test_a_signal_ends_install_py(small, tmp_path):
    """Exit code 130 and one line; nothing stays."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(small, "--venv", tmp_path / "venv")
        wait_for(tmp_path / "venv/bin", process)
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
    wait_for(tmp_path / "venv/.wheels/requirements.txt", process)
    process.kill()
    process.communicate()
    for _ in range(200):
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if str(tmp_path / "venv") not in running:
            return
        time.sleep(0.05)
    pytest.fail(running)


@needs_posix
def test_impatience_leaves_nothing(small, tmp_path):
    """Ctrl-C again and again: what cleans up is not interrupted."""
    process = start(small, "--venv", tmp_path / "venv")
    wait_for(tmp_path / "venv/.wheels/requirements.txt", process)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "Cancelled.\n")
    assert not (tmp_path / "venv").exists()


@needs_posix
def test_what_is_ignored_stays_ignored(small, tmp_path):
    """As with `nohup`: a closed terminal does not end it."""
    process = start(small, "--venv", tmp_path / "venv", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    while not (tmp_path / "venv").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.wait(WAIT_S) == 0
    assert runs(tmp_path / "venv")
    process.communicate()


def test_pip_is_not_swapped_after_the_check(small, wheels, tmp_path):
    """What runs is a copy that was compared on the way, and not what lies in the bundle by then."""
    proof = tmp_path / "proof"

    def swap(step, *_):
        if step == "make":
            with zipfile.ZipFile(small / "wheels" / wheels[0].path.name, "w") as archive:
                archive.writestr("pip/__init__.py", "")
                archive.writestr("pip/__main__.py", f"open({str(proof)!r}, 'w')")

    with pytest.raises(InstallError):
        install_bundle(open_bundle(small), tmp_path / "venv", swap)
    assert (proof.exists(), (tmp_path / "venv").exists()) == (False, False)


def compile_beside(folder, text):
    """A compiled file that Python would take for that of `program.py`, unlooked at."""
    (folder.parent / "evil.py").write_text(text)
    target = folder / "sqale_edge_installer" / "__pycache__" / f"program.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        folder.parent / "evil.py", target, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


ADDED = {
    "in the place of Python's own": lambda folder, text: (folder / "argparse.py").write_text(text),
    "looked for, but not there": lambda folder, text: (folder / "msvcrt.py").write_text(text),
    "compiled": compile_beside,
    "cut": lambda folder, _: (folder / "sqale_edge_installer/program.py").write_text(""),
    "missing": lambda folder, _: shutil.rmtree(folder / "sqale_edge_installer"),
}


@pytest.mark.parametrize("what", ADDED)
def test_nothing_that_was_added_is_run(small, tmp_path, what):
    """Who has compared SHA256SUMS and what it lists may start `install.py`: other files in the folder do nothing.

    Also where the folder is known by a link, which Python takes for what it points to.
    """
    proof = tmp_path / "proof"
    ADDED[what](small, f"open({str(proof)!r}, 'w').close()\n")
    (tmp_path / "link").symlink_to(small)
    command = [sys.executable, tmp_path / "link" / "install.py", "--verify"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "is damaged: " in done.stderr
    assert " Fix: " in done.stderr
    assert not proof.exists()


@pytest.mark.parametrize(
    ("venv", "message"),
    [
        ("~nobody-of-this-name/x", "there is no home for '~nobody-of-this-name/x'"),
        ("{tmp}/a" + os.pathsep + "b", "no program can be installed into "),
        ("{tmp}/small/venv", "is in the bundle itself"),
        ("{tmp}/small", "is in the bundle itself"),
        ("{tmp}/" + "/".join(["n" * 240] * 3), "cannot be written to: "),
    ],
)
def test_places_that_cannot_be(small, tmp_path, venv, message):
    """One line with the fix; nothing is made, and the bundle is as before."""
    venv = venv.format(tmp=tmp_path)
    if "n" * 240 in venv:
        Path(venv).parent.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(small, "--venv", venv)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert " Fix: " in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_the_output_cannot_have(small, tmp_path):
    """Where stdout is not UTF-8 by its own: it was installed, and that is what the exit code says."""
    command = [sys.executable, small / "install.py", "--venv", tmp_path / "名前"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, f"{find_command(tmp_path / '名前')}\n"), done.stderr


@needs_posix
def test_the_page_can_be_followed(small, tmp_path):
    """With pip: every command of INSTALL.md works in the folder of the bundle, which stays whole."""
    page = (small / "INSTALL.md").read_text(encoding="utf-8").partition("With pip")[2]
    lines = re.findall(r"^    (\S.*)$", page, re.MULTILINE)
    assert len(lines) == 4
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"PATH": os.pathsep.join(places), "HOME": str(tmp_path / "home"), "PIP_CONFIG_FILE": os.devnull}
    (tmp_path / "home").mkdir()
    subprocess.run(["sh", "-c", "\n".join(["set -e", *lines])], cwd=small, check=True, env=environment)
    assert check_bundle(open_bundle(small), show)
