"""The zip of a bundle: one form, and no other byte."""

from __future__ import annotations

import hashlib
import io
import struct
import subprocess
import sys
import zipfile

import pytest

from sqale_edge.bundle.archive import Archive, ArchiveWriter, _directory, _Entry
from sqale_edge.bundle.installer.contents import InstallError, find_damage

FILES = {"a.txt": b"first", "models/m/b.bin": bytes(range(64)), "empty": b""}


def show(*_):
    pass


def write_archive(path, files=FILES):
    """A zip of a few hundred bytes."""
    writer = ArchiveWriter(path)
    lines = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))
    for name, content in {**files, "SHA256SUMS": lines.encode()}.items():
        writer.add(name, len(content), [content] if content else [])
    writer.close()
    return path


def is_whole(path):
    """Whether nothing is found to be wrong."""
    try:
        return find_damage(Archive(path), show)[1] == []
    except InstallError:
        return False


def test_other_programs_read_it(tmp_path):
    """Python's own reader finds every file whole, with plain permissions."""
    path = write_archive(tmp_path / "a.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist() if info.filename in FILES} == FILES
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
    subprocess.run([sys.executable, "-m", "zipfile", "-e", path, tmp_path / "out"], check=True)
    assert (tmp_path / "out/models/m/b.bin").read_bytes() == FILES["models/m/b.bin"]


def test_the_same_files_are_the_same_bytes(tmp_path):
    """No time, no order of a folder, nothing of the machine."""
    assert write_archive(tmp_path / "a.zip").read_bytes() == write_archive(tmp_path / "b.zip").read_bytes()


def test_any_changed_byte_is_found(tmp_path):
    """Contents, names, sizes, times, flags, checksums: each byte of the zip, with each of four changes."""
    path = write_archive(tmp_path / "a.zip")
    content = path.read_bytes()
    assert is_whole(path)
    unseen = []
    for place in range(len(content)):
        for bits in (0x01, 0x20, 0x80, 0xFF):
            path.write_bytes(content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :])
            if is_whole(path):
                unseen.append((place, bits))
    assert len(content) > 500
    # What is changed in the list itself, and still a list, is another digest; see `test_a_new_list_is_a_new_digest`.
    assert unseen == []


def test_any_other_length_is_found(tmp_path):
    """Cut anywhere, or with something before, behind or in the middle."""
    path = write_archive(tmp_path / "a.zip")
    content = path.read_bytes()
    others = [content[:n] for n in range(len(content))]
    others += [content + b"\0", b"\0" + content, content + content]
    others += [content[:n] + b"PK" + content[n:] for n in range(0, len(content), 7)]
    for other in others:
        path.write_bytes(other)
        assert not is_whole(path)


def pack(**options):
    """A zip of Python's, with one entry."""
    info = zipfile.ZipInfo(options.pop("name", "a.txt"), options.pop("date", (1980, 1, 1, 0, 0, 0)))
    info.external_attr = options.pop("mode", 0o100644) << 16
    info.compress_type = options.pop("method", zipfile.ZIP_STORED)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, options.pop("content", b"x"))
        archive.comment = options.pop("comment", b"")
    return buffer.getvalue()


FOREIGN = {
    "packed by another program, with a time": pack(date=(2026, 1, 2, 3, 4, 6)),
    "compressed, so that it may grow without end": pack(method=zipfile.ZIP_DEFLATED, content=bytes(10**6)),
    "a way out": pack(name="../../x"),
    "an absolute path": pack(name="/etc/x"),
    "a drive": pack(name="C:\\x"),
    "a link": pack(mode=0o120777, content=b"/etc/passwd"),
    "a comment": pack(comment=b"x"),
    "no zip": b"hello",
    "nothing": b"",
    "a directory that is said to be long": b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 9, 9, 0xFFFFFF0, 0, 0),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_other_zips_are_refused(tmp_path, what):
    """In one line with the fix, whatever is in them; nothing is unpacked."""
    (tmp_path / "a.zip").write_bytes(FOREIGN[what])
    with pytest.raises(InstallError, match="is damaged, or was not written by sqale-edge") as error:
        Archive(tmp_path / "a.zip")
    assert "give the folder" in error.value.hint


def test_an_empty_zip(tmp_path):
    """It is in the right form, but no bundle."""
    (tmp_path / "a.zip").write_bytes(b"PK\5\6" + bytes(18))
    with pytest.raises(InstallError, match="there is no SHA256SUMS in it"):
        find_damage(Archive(tmp_path / "a.zip"), show)


@pytest.mark.parametrize("names", [("../x",), ("/x",), ("a\\b",), ("x/../y",), ("a", "A"), ("con ",), (".x",)])
def test_names_that_lead_elsewhere_are_refused(tmp_path, names):
    """Also in our own form: a name that is no plain path below the bundle, or that is there twice on some system."""
    entries, content = [], b""
    for name in names:
        entries.append(_Entry(name, 0, 0, len(content)))
        content += entries[-1].local()
    (tmp_path / "a.zip").write_bytes(content + _directory(entries, len(content)))
    with pytest.raises(InstallError, match="it has a file"):
        Archive(tmp_path / "a.zip")


def test_files_of_more_than_four_gigabytes(tmp_path):
    """Sizes and places behind them are written as other programs read them. The content is a hole in the file."""
    n_bytes = 5 << 30
    entries = [_Entry("large.gguf", n_bytes, 0, 0)]
    second = len(entries[0].local()) + n_bytes
    entries.append(_Entry("behind", 3, 0x352441C2, second))  # the checksum of "abc"
    path = tmp_path / "large.zip"
    with path.open("wb") as file:
        file.write(entries[0].local())
        file.seek(second)
        file.write(entries[1].local() + b"abc")
        file.write(_directory(entries, file.tell()))
    with zipfile.ZipFile(path) as archive:
        assert [(info.filename, info.file_size) for info in archive.infolist()] == [
            ("large.gguf", n_bytes),
            ("behind", 3),
        ]
        assert archive.read("behind") == b"abc"
    found = Archive(path)
    assert found.open("behind").read() == b"abc"
    with found.open("large.gguf") as file:
        assert (file.seek(0, io.SEEK_END), file.seek(n_bytes - 2), file.read(9)) == (n_bytes, n_bytes - 2, b"\0\0")
