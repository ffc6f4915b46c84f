"""Wheels out of what is installed, and which of them a machine needs."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from small_bundles import write_wheel

from sqale_edge.bundle.collection import _Index, _run_pip, collect_wheels
from sqale_edge.bundle.targets import find_target
from sqale_edge.bundle.wheels import read_tags, repack
from sqale_edge.errors import BundleError


def install(wheel, folder):
    """What pip makes of a wheel below a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([*command, "--no-warn-script-location", "--prefix", folder, wheel], check=True, capture_output=True)
    return find_installed(folder)


def find_installed(folder):
    """The one package there."""
    (packages,) = folder.rglob("site-packages")
    (distribution,) = importlib.metadata.distributions(path=[str(packages)])
    return distribution


@pytest.mark.parametrize("name", ["click", "markupsafe", "tqdm"])
def test_a_wheel_is_what_was_installed(name, tmp_path):
    """Pure and compiled ones: every file of the record with its digest, the same tags, the same bytes every time."""
    distribution = importlib.metadata.distribution(name)
    wheel = repack(distribution, tmp_path)
    assert parse_wheel_filename(wheel.name)[3] == read_tags(distribution)
    with zipfile.ZipFile(wheel) as archive:
        (record,) = [entry for entry in archive.namelist() if entry.endswith("/RECORD")]
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(archive.namelist()) == rows.keys()
    kept = {
        file.as_posix(): f"sha256={file.hash.value}"
        for file in distribution.files
        if file.hash and ".." not in file.parts and file.name not in {"INSTALLER", "REQUESTED", "direct_url.json"}
    }
    assert {entry: digest for entry, digest in rows.items() if digest} == kept
    (tmp_path / "again").mkdir()
    assert repack(distribution, tmp_path / "again").read_bytes() == wheel.read_bytes()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where a package with a command, a script and a data file is installed."""
    folder = tmp_path_factory.mktemp("tool")
    files = {
        "tool.py": "X = 1\n",
        "tool-1.data/scripts/run-tool": "#!python\nprint('it runs')\n",
        "tool-1.data/data/a/b.txt": "data",
    }
    install(write_wheel(folder, files, name="tool", version="1", commands=["tool=tool:main"]), folder / "site")
    return folder / "site"


@pytest.fixture
def tool(site, tmp_path):
    """A copy of it, that a test may change."""
    shutil.copytree(site, tmp_path / "site")
    return find_installed(tmp_path / "site")


def test_what_pip_adds_is_left_out(tool, tmp_path):
    """Compiled files and commands, which pip makes again; installed once more, it is the same."""
    (tmp_path / "new").mkdir()
    wheel = repack(tool, tmp_path / "new")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"tool.py", "tool-1.dist-info/METADATA", "tool-1.data/scripts/run-tool", "tool-1.data/data/a/b.txt"} <= names
    assert not [name for name in names if name.endswith((".pyc", "INSTALLER", "direct_url.json", "bin/tool"))]
    again = install(wheel, tmp_path / "again")
    assert {file.as_posix() for file in again.files} == {file.as_posix() for file in tool.files}
    (script,) = (tmp_path / "again").rglob("run-tool")
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "it runs\n"


def test_a_changed_file_is_not_carried_on(tool, tmp_path):
    """What somebody has edited since it was installed is an error with the fix."""
    path = Path(tool.locate_file("tool.py"))
    path.write_text("X = 2\n")
    with pytest.raises(BundleError, match=r"tool\.py' of tool: it is not as it was installed") as error:
        repack(tool, tmp_path)
    assert error.value.hint == "install it again: pip install --force-reinstall --no-deps tool"
    path.unlink()
    with pytest.raises(BundleError, match=r"tool\.py' of tool: No such file"):
        repack(tool, tmp_path)


@pytest.mark.parametrize("how", ["editable", "without a record"])
def test_what_is_not_installed_from_a_wheel(tool, tmp_path, how):
    """An editable package is only a pointer to a folder; one of the system may keep no list."""
    info = Path(tool.locate_file("tool-1.dist-info"))
    if how == "editable":
        (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    else:
        (info / "RECORD").unlink()
    with pytest.raises(BundleError, match="tool is not installed from a wheel") as error:
        repack(tool, tmp_path)
    assert "--wheel" in error.value.hint


def test_another_platform_says_all_that_cannot_be_had(tmp_path):
    """Each package by its name, how to get them, and that llama-cpp-python has to be compiled there."""
    with pytest.raises(BundleError) as error:
        collect_wheels(find_target("windows-x86_64", "3.12"), tmp_path, is_offline=True)
    for name in ("numpy", "pyyaml", "markupsafe", "hf-xet", "llama-cpp-python", "colorama"):
        assert name in str(error.value)
    assert "click" not in str(error.value)  # it is the same everywhere
    assert "no wheel for windows-x86_64 with Python 3.12" in str(error.value)
    assert "llama-cpp-python has to be compiled there: pip wheel --no-deps llama-cpp-python==0.3.36" in error.value.hint


def test_another_platform_with_all_wheels_given(tmp_path):
    """Out of a folder and single files, without a network; what only that system needs comes along."""
    links = tmp_path / "links"
    links.mkdir()
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "pyyaml", "markupsafe")}
    for name, version in versions.items():
        write_wheel(links, name=name, version=version, tag="cp312-cp312-win_amd64")
    for name in ("charset_normalizer", "hf_xet"):
        write_wheel(links, name=name, version=importlib.metadata.version(name), tag="cp38-abi3-win_amd64")
    write_wheel(links, name="colorama", version="0.4.6")
    llama = write_wheel(tmp_path, name="llama_cpp_python", version="0.3.36", tag="py3-none-win_amd64")
    (tmp_path / "out").mkdir()
    target = find_target("windows-x86_64", "3.12")
    wheels = collect_wheels(target, tmp_path / "out", given=[llama], find_links=[links], is_offline=True)
    origins = {wheel.name: wheel.origin for wheel in wheels}
    assert {name for name, origin in origins.items() if origin == "given"} == {"llama-cpp-python"}
    assert {name for name, origin in origins.items() if origin == "downloaded"} == {
        "numpy",
        "pyyaml",
        "markupsafe",
        "charset-normalizer",
        "hf-xet",
        "colorama",
    }
    assert {"sqale-edge", "pip", "click", "rich"} <= origins.keys()


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        ({"name": "llama_cpp_python", "version": "0.3.36", "tag": "py3-none-win_amd64"}, "is not for "),
        (
            {"name": "llama_cpp_python", "version": "0.3.35"},
            "llama-cpp-python 0.3.35 does not fit: ==0.3.36 is required",
        ),
        ({"name": "other"}, "is not needed"),
    ],
)
def test_a_wrong_wheel(tmp_path, wheel, message):
    """For another system, of another version, or one that nobody asks for."""
    given = write_wheel(tmp_path, **wheel)
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match=message):
        collect_wheels(find_target(), tmp_path / "out", given=[given], is_offline=True)


@pytest.mark.parametrize("damage", ["its bytes", "what it requires"])
def test_a_damaged_wheel(tmp_path, damage):
    """What somebody gives with --wheel is looked at before it is needed; one error says which it is."""
    path = write_wheel(tmp_path, name="llama_cpp_python", version="0.3.36", requires=["!!"])
    if damage == "its bytes":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("llama_cpp_python-0.3.36.dist-info/METADATA", bytes(range(200)))
        content = bytearray(path.read_bytes())
        start = content.index(b"METADATA") + len("METADATA")
        content[start : start + 8] = b"\xff" * 8
        path.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="is no wheel"):
        collect_wheels(find_target(), tmp_path / "out", given=[path], is_offline=True)


def test_offline_means_offline(tmp_path, monkeypatch):
    """Also where somebody's settings of pip name an address to look at beside the index."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/wheels"
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("PIP_FIND_LINKS", f"{address}/of-a-variable")
        (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {address}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        index = _Index(find_target("windows-arm64", "3.12"), (), is_offline=True)
        assert "No matching distribution" in _run_pip(["numpy==1.26"], index, tmp_path, lambda: None)
        server.shutdown()
    assert asked == []


def test_a_file_that_is_no_wheel(tmp_path):
    """By its name, or by its content."""
    (tmp_path / "pip.whl").write_bytes(b"x")
    with pytest.raises(BundleError, match="is no wheel"):
        collect_wheels(find_target(), tmp_path, given=[tmp_path / "pip.whl"])
    shutil.move(tmp_path / "pip.whl", tmp_path / "pip-1-py3-none-any.whl")
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="is no wheel"):
        collect_wheels(find_target(), tmp_path / "out", given=[tmp_path / "pip-1-py3-none-any.whl"])


@pytest.mark.parametrize(
    ("platform", "python", "message"),
    [
        ("beos-x86_64", None, "there is no platform 'beos-x86_64'"),
        ("linux-x86_64", "3.9", "Python '3.9' cannot run"),
        ("linux-x86_64", "2.7", "Python '2.7' cannot run"),
        ("linux-x86_64", "3.12.7", "'3.12.7' is no version in two numbers"),
    ],
)
def test_a_target_that_there_is_not(platform, python, message):
    """The error lists what there is."""
    with pytest.raises(BundleError, match=message) as error:
        find_target(platform, python)
    assert "choose" in error.value.hint


@pytest.mark.parametrize(
    ("platform", "wheel", "runs"),
    [
        ("linux-x86_64", "a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("linux-x86_64", "a-1-cp312-cp312-manylinux_2_34_x86_64.whl", False),  # a newer C library
        ("linux-x86_64", "a-1-cp313-cp313-manylinux_2_17_x86_64.whl", False),
        ("linux-x86_64", "a-1-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("linux-aarch64", "a-1-cp38-abi3-manylinux2014_aarch64.whl", True),
        ("macos-arm64", "a-1-cp312-cp312-macosx_11_0_arm64.whl", True),
        ("macos-arm64", "a-1-cp312-cp312-macosx_10_9_x86_64.whl", False),
        ("macos-x86_64", "a-1-cp312-cp312-macosx_10_13_x86_64.whl", True),
        ("windows-x86_64", "a-1-cp312-cp312-win_amd64.whl", True),
        ("windows-x86_64", "a-1-py3-none-any.whl", True),
        ("windows-arm64", "a-1-cp312-cp312-win_amd64.whl", False),
    ],
)
def test_which_wheels_run_where(platform, wheel, runs):
    """As the tags of wheels say it, for the oldest systems that are supported."""
    assert bool(parse_wheel_filename(wheel)[3] & find_target(platform, "3.12").tags) is runs
