"""What `verify` finds in a bundle that is a folder, and what nobody can find."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil

import pytest
from small_bundles import write_small_bundle

from sqale_edge.bundle.creation import open_bundle
from sqale_edge.bundle.installer.contents import Folder, InstallError, check_bundle, find_damage, is_safe_name


def show(*_):
    pass


def look(path):
    """The digest and the problems."""
    contents, problems = find_damage(open_bundle(path), show)
    return contents.digest, problems


def test_a_whole_bundle(small):
    """Its digest is that of its list, which `sha256sum` can make, too."""
    assert look(small) == (hashlib.sha256((small / "SHA256SUMS").read_bytes()).hexdigest(), [])


def test_zip_and_folder_are_the_same_bundle(wheels, tmp_path):
    """The same digest, and what is unpacked is whole."""
    digests = {write_small_bundle(tmp_path / name, wheels) for name in ("a.zip", "b")}
    assert len(digests) == 1
    shutil.unpack_archive(tmp_path / "a.zip", tmp_path / "c")
    for name in ("a.zip", "b", "c"):
        assert look(tmp_path / name) == (next(iter(digests)), [])


def swap(folder):
    """Two files change their names."""
    first, second = folder / "sqale_edge_installer/place.py", folder / "sqale_edge_installer/machine.py"
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)


def change(name, content=b"x"):
    """Another byte at the end."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + content)


def link(folder):
    """The same content, by way of a link."""
    (folder / "install.py").rename(folder.parent / "elsewhere.py")
    (folder / "install.py").symlink_to(folder.parent / "elsewhere.py")


def add_line(line):
    """A line more in the list."""
    return change("SHA256SUMS", f"{line}\n".encode())


DAMAGE = {
    "missing": (lambda folder: (folder / "INSTALL.md").unlink(), "'INSTALL.md' is missing"),
    "changed": (change("install.py"), "'install.py' was changed or cut: its SHA-256 is "),
    "a wheel": (lambda folder: next((folder / "wheels").iterdir()).write_bytes(b""), "was changed or cut"),
    "cut": (lambda folder: os.truncate(folder / "bundle.json", 20), "'bundle.json' was changed or cut"),
    "too much": (lambda folder: (folder / "wheels/evil-1-py3-none-any.whl").touch(), "does not belong to it"),
    "hidden": (lambda folder: (folder / ".x").touch(), "'.x' does not belong to it"),
    "swapped": (swap, "'sqale_edge_installer/machine.py' was changed or cut"),
    "a link": (link, "'install.py' is a link, or no file"),
    "a linked folder": (lambda folder: (folder / "more").symlink_to(folder.parent), "'more' is a link, or no file"),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "'pipe' is a link, or no file"),
    "a way out in the list": (add_line(f"{'0' * 64}  ../x"), "SHA256SUMS has the line"),
    "twice in the list": (add_line(f"{'0' * 64}  Install.py"), "SHA256SUMS has the line"),
    "no list": (add_line("hello"), "SHA256SUMS has the line 'hello'"),
    "a list without end": (lambda folder: os.truncate(folder / "SHA256SUMS", 10**9), "is longer than"),
    "without its list": (lambda folder: (folder / "SHA256SUMS").unlink(), "is no bundle: there is no SHA256SUMS"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named(small, what):
    """Whatever is done to a file, the line says to which, and what to do."""
    do, expected = DAMAGE[what]
    do(small)
    with pytest.raises(InstallError) as error:
        check_bundle(open_bundle(small), show)
    assert expected in str(error.value)
    assert error.value.hint


def test_all_damage_is_listed(small):
    """`verify` goes on after the first."""
    change("install.py")(small)
    (small / "INSTALL.md").unlink()
    (small / "x").touch()
    assert [line.split("'")[1] for line in look(small)[1]] == ["INSTALL.md", "x", "install.py"]


def test_a_new_list_is_a_new_digest(small):
    """Whoever writes the list anew has a bundle that is whole; that it is another one only its digest tells."""
    before, _ = look(small)
    old = (small / "install.py").read_bytes()
    change("install.py", b"evil()")(small)
    text = (
        (small / "SHA256SUMS")
        .read_text()
        .replace(hashlib.sha256(old).hexdigest(), hashlib.sha256((small / "install.py").read_bytes()).hexdigest())
    )
    (small / "SHA256SUMS").write_text(text)
    after, problems = look(small)
    assert (problems, after == before) == ([], False)
    with pytest.raises(InstallError, match=f"is {after} instead of {before}"):
        check_bundle(open_bundle(small), show, before)
    assert check_bundle(open_bundle(small), show, after.upper()).digest == after


@pytest.mark.parametrize("about", [b"[]", b"{", json.dumps({"format": 2}).encode(), b'{"format": 1}', b"[" * 10**5])
def test_a_description_of_another_version(wheels, tmp_path, about):
    """One line that says how to go on."""
    write_small_bundle(tmp_path / "b", wheels)
    old = hashlib.sha256((tmp_path / "b/bundle.json").read_bytes()).hexdigest()
    (tmp_path / "b/bundle.json").write_bytes(about)
    text = (tmp_path / "b/SHA256SUMS").read_text().replace(old, hashlib.sha256(about).hexdigest())
    (tmp_path / "b/SHA256SUMS").write_text(text)
    with pytest.raises(InstallError, match="is not one that this version can read"):
        check_bundle(open_bundle(tmp_path / "b"), show).read_about()


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/..", "a\\b", "a b", "a:b", ".a", "a.", "é", "a\n"])
def test_names_that_no_bundle_has(name):
    """They would be another file on some system."""
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    "values",
    [
        {"glibc": "9" * 5000},
        {"glibc": [2]},
        {"platform": "linux\n\x1b[2J"},
        {"python": "3.11 "},
        {"models": ["../../x"]},
        {"first": "--index-url"},
    ],
)
def test_a_description_with_a_wrong_value(wheels, tmp_path, values):
    """Whole, but of somebody who wants something: no traceback, no way out, nothing for a terminal."""
    named = [dataclasses.replace(wheels[0], name=values.get("first", "pip")), wheels[1]]
    write_small_bundle(tmp_path / "b", named, **values)
    contents = check_bundle(open_bundle(tmp_path / "b"), show)
    with pytest.raises(InstallError, match="is not one that this version can read"):
        contents.read_about()


def test_a_bundle_without_a_description(small):
    """Its list knows of none either: the file is named."""
    (small / "bundle.json").unlink()
    lines = (small / "SHA256SUMS").read_text().splitlines(keepends=True)
    (small / "SHA256SUMS").write_text("".join(line for line in lines if "bundle.json" not in line))
    with pytest.raises(InstallError, match=r"is damaged: 'bundle\.json' is missing"):
        check_bundle(open_bundle(small), show).read_about()


def test_files_that_cannot_be_read_are_named(small):
    """As on a stick that fails; the others are looked at nevertheless."""

    class Failing(Folder):
        def open(self, name):
            if name in ("INSTALL.md", "bundle.json"):
                raise OSError(errno.EIO, "Input/output error")
            return super().open(name)

    change("install.py")(small)
    _, problems = find_damage(Failing(small), show)
    assert problems[:2] == [f"{name!r} cannot be read: Input/output error" for name in ("INSTALL.md", "bundle.json")]
    assert [line.split("'")[1] for line in problems[2:]] == ["install.py"]
