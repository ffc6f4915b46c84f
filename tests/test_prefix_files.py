"""Files of snapshots: whatever happens to one, what is read is exactly what was written for the key, or nothing."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from sqale_edge.prefix_files import PrefixFiles, default_folder

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
SNAPSHOT = random.Random(0).randbytes(100_000)
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes and signals are those of POSIX")


@pytest.fixture
def files(home):
    return PrefixFiles(home / "prefixes", 10 * MIB)


def only_file(files) -> Path:
    (path,) = files.folder.iterdir()
    return path


def read_with_log(files, key, caplog) -> tuple[bytes | None, list[str]]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        found = files.read(key)
    return found, [record.getMessage() for record in caplog.records]


def test_what_is_written_is_read(files, caplog):
    """By another object, as after a restart; for another key there is nothing, and nothing is said about that."""
    files.write("key", SNAPSHOT)
    files.write("empty", b"")
    again = PrefixFiles(files.folder, files.limit_bytes)
    assert read_with_log(again, "key", caplog) == (SNAPSHOT, [])
    assert read_with_log(again, "empty", caplog) == (b"", [])
    assert read_with_log(again, "Key", caplog) == (None, [])
    assert again.measure()[0] == 2


def test_without_a_folder_there_is_nothing(tmp_path, caplog):
    """It is made by the first write, not by a look."""
    files = PrefixFiles(tmp_path / "a/b/prefixes", MIB)
    assert read_with_log(files, "key", caplog) == (None, [])
    assert files.measure() == (0, 0)
    files.clear()
    assert list(tmp_path.iterdir()) == []
    files.write("key", SNAPSHOT)
    assert files.read("key") == SNAPSHOT


@needs_posix
def test_only_this_user_can_look_in(files):
    """Folder 0700, also one that was there before; files 0600, whatever the umask."""
    files.folder.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        files.write("key", SNAPSHOT)
    finally:
        os.umask(before)
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert only_file(files).stat().st_mode & 0o777 == 0o600


def cut_lengths() -> list[int]:
    n_bytes = len(SNAPSHOT) + 83
    return [0, *(1 << power for power in range(n_bytes.bit_length())), 82, 83, 84, n_bytes - 1]


@pytest.mark.parametrize("n_bytes", cut_lengths())
def test_a_file_that_was_cut_is_not_used(files, caplog, n_bytes):
    """At any length: nothing is read, one line says so, and the file is gone."""
    files.write("key", SNAPSHOT)
    path = only_file(files)
    assert path.stat().st_size == len(SNAPSHOT) + 83
    os.truncate(path, n_bytes)
    found, log = read_with_log(files, "key", caplog)
    assert (found, len(log)) == (None, 1)
    assert str(path) in log[0]
    assert not path.exists()


def test_a_flipped_bit_is_seen_wherever_it_is(files, caplog):
    """In each byte of the head, and in a thousand places behind it; the file is gone, and can be written again."""
    files.write("key", SNAPSHOT)
    good = only_file(files).read_bytes()
    chosen = random.Random(1)
    for place in [*range(90), *chosen.sample(range(90, len(good)), 1000), len(good) - 1]:
        bad = bytearray(good)
        bad[place] ^= 1 << chosen.randrange(8)
        write_private(files, "key", bytes(bad))
        found, log = read_with_log(files, "key", caplog)
        assert (found, len(log)) == (None, 1), place
        assert list(files.folder.iterdir()) == []
    files.write("key", SNAPSHOT)
    assert files.read("key") == SNAPSHOT


def write_private(files, key, data) -> Path:
    """Put `data` where the snapshot of `key` is."""
    files.write(key, b"")
    path = next(path for path in files.folder.iterdir() if path.stat().st_size == 83)
    path.write_bytes(data)
    return path


CHANGES = {
    "a torn page": lambda good: good[:8192] + bytes(4096) + good[12288:],
    "a page of zeros at the end": lambda good: good[:-4096] + bytes(4096),
    "two pages swapped": lambda good: good[:4096] + good[8192:12288] + good[4096:8192] + good[12288:],
    "a byte too many": lambda good: good + b"\0",
    "another version": lambda good: good.replace(b"PREFIX-1", b"PREFIX-2"),
    "a snapshot without a head": lambda good: good[83:],
    "something else": lambda _: b"SQLite format 3\0" * 100,
    "more than the limit": lambda good: good * 110,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_other_contents_is_not_used(files, caplog, change):
    """One line says so; the file is gone."""
    files.write("key", SNAPSHOT)
    path = only_file(files)
    path.write_bytes(CHANGES[change](path.read_bytes()))
    found, log = read_with_log(files, "key", caplog)
    assert (found, len(log), path.exists()) == (None, 1, False)


def test_swapped_files_are_not_used(files, caplog):
    """Each is whole, but says whose it is."""
    files.write("one", SNAPSHOT)
    first = only_file(files)
    files.write("other", SNAPSHOT[::-1])
    (second,) = set(files.folder.iterdir()) - {first}
    first.rename(files.folder / "x")
    second.rename(first)
    (files.folder / "x").rename(second)
    for key in ("one", "other"):
        found, log = read_with_log(files, key, caplog)
        assert (found, len(log)) == (None, 1)
        assert "another model, build or setting" in log[0]


@needs_posix
@pytest.mark.parametrize("kind", ["symlink", "folder", "pipe", "everybody's"])
def test_what_is_not_ones_own_file_is_left_alone(files, caplog, kind):
    """It is not read, not waited for, and not deleted."""
    files.write("key", SNAPSHOT)
    path = only_file(files)
    good = path.read_bytes()
    path.unlink()
    if kind == "symlink":
        (files.folder / "elsewhere").write_bytes(good)
        path.symlink_to(files.folder / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(good)
        path.chmod(0o666)
    found, log = read_with_log(files, "key", caplog)
    assert (found, len(log)) == (None, 1)
    assert path.is_symlink() or path.exists()
    files.write("key", SNAPSHOT)
    assert files.read("key") == (None if kind == "folder" else SNAPSHOT)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_used(files, caplog):
    """Whatever it holds."""
    files.write("key", SNAPSHOT)
    only_file(files).chmod(0o644)
    os.chown(only_file(files), 1234, -1)
    found, log = read_with_log(files, "key", caplog)
    assert (found, len(log)) == (None, 1)
    assert "another user's" in log[0]


# The limit.


def test_what_was_used_longest_ago_goes_first(home):
    """A read counts as a use; what is written last always stays."""
    files = PrefixFiles(home / "prefixes", 3 * (1000 + 83))
    for number, key in enumerate("abc"):
        files.write(key, key.encode() * 1000)
        path = max(files.folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (number, number))
    assert files.read("a")
    files.write("d", b"d" * 1000)
    assert [key for key in "abcd" if files.read(key)] == ["a", "c", "d"]
    files.write("e", b"e" * 2000)
    assert files.measure() == (2, 2000 + 1000 + 2 * 83)
    assert files.read("e") == b"e" * 2000


def test_writing_again_deletes_nothing_else(home):
    """The file that is replaced makes room for the new one."""
    files = PrefixFiles(home / "prefixes", 2 * (1000 + 83))
    files.write("a", b"a" * 1000)
    files.write("b", b"b" * 1000)
    files.write("b", b"B" * 1000)
    assert (files.read("a"), files.read("b")) == (b"a" * 1000, b"B" * 1000)


def test_one_that_is_larger_than_the_limit_is_not_written(files, caplog):
    """And the others stay."""
    files.write("key", SNAPSHOT)
    with caplog.at_level(logging.INFO):
        files.write("huge", bytes(10 * MIB))
    assert len(caplog.records) == 1
    assert files.read("key") == SNAPSHOT
    assert files.read("huge") is None


def test_clearing_deletes_snapshots_and_nothing_else(files):
    """Unfinished ones too."""
    files.write("a", SNAPSHOT)
    files.write("b", SNAPSHOT)
    (files.folder / "x.prefix-tmp").write_bytes(b"unfinished")
    (files.folder / "notes.txt").write_text("mine")
    (files.folder / "folder.prefix").mkdir()
    assert files.measure() == (2, 2 * (len(SNAPSHOT) + 83))
    files.clear()
    assert sorted(path.name for path in files.folder.iterdir()) == ["folder.prefix", "notes.txt"]
    assert files.measure() == (0, 0)


# Other processes, and disks that fail.

WRITER = """
import sys
from pathlib import Path
from sqale_edge.prefix_files import PrefixFiles
folder, name, n_rounds, n_lines, limit = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
files = PrefixFiles(folder, limit)
print("ready", flush=True)
for number in range(n_rounds):
    key = f"key {number % 3}"
    files.write(key, f"{key}, {name} {number}\\n".encode() * n_lines)
"""


def start_writer(files, name, n_rounds, n_lines):
    """A process that writes snapshots of `n_lines` equal lines, each for one of three keys."""
    command = [sys.executable, "-P", "-c", WRITER, *map(str, (files.folder, name, n_rounds, n_lines))]
    writer = subprocess.Popen([*command, str(files.limit_bytes)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"ready\n"
    writer.stdout.close()
    return writer


def read_whole(files, n_lines) -> int:
    """How many of the keys have a snapshot, each of which must be as one process wrote it."""
    n_found = 0
    for key in (b"key 0", b"key 1", b"key 2"):
        found = files.read(key.decode())
        if found is not None:
            line = found[: found.index(b"\n") + 1]
            assert line.startswith(key + b", ")
            assert found == line * n_lines
            n_found += 1
    return n_found


def test_two_processes_write_at_once_and_a_third_reads(files):
    """The same keys, replaced again and again: each read finds one writer's whole snapshot."""
    writers = [start_writer(files, name, 150, 10_000) for name in ("one", "two")]
    n_found = 0
    while any(writer.poll() is None for writer in writers):
        n_found += read_whole(files, 10_000)
    assert n_found > 0
    assert [writer.wait() for writer in writers] == [0, 0]
    assert read_whole(files, 10_000) == 3
    assert len(list(files.folder.iterdir())) == 3


def test_processes_that_share_a_small_limit_do_not_fail(home):
    """They delete each other's files; none is surprised, and the next write puts the limit right."""
    files = PrefixFiles(home / "prefixes", 400_000)
    writers = [start_writer(files, name, 60, 10_000) for name in ("one", "two")]
    assert [writer.wait() for writer in writers] == [0, 0]
    files.write("last", b"x" * 1000)
    assert 0 < files.measure()[1] <= 400_000


@needs_posix
def test_a_process_that_is_killed_leaves_no_broken_snapshot(home):
    """Killed at random moments of writing: what is there is whole; what it left unfinished goes ten minutes later."""
    files = PrefixFiles(home / "prefixes", 1 << 30)
    chosen = random.Random(0)
    for _ in range(8):
        writer = start_writer(files, "killed", 10_000, 500_000)
        time.sleep(chosen.uniform(0.05, 0.2))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        n_files = files.measure()[0]
        assert read_whole(files, 500_000) == n_files
    assert n_files > 0
    old, new = (files.folder / f"{age}.prefix-tmp" for age in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    files.write("key", SNAPSHOT)
    assert (old.exists(), new.exists()) == (False, True)


SHORT_OF_SPACE = """
import logging, resource, signal, sys
from pathlib import Path
from sqale_edge.prefix_files import PrefixFiles
logging.basicConfig(stream=sys.stdout, format="%(message)s")
files = PrefixFiles(Path(sys.argv[1]), 10 << 20)
files.write("before", b"x" * 1000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
files.write("key", bytes(100_000))
assert files.read("key") is None
assert files.read("before") == b"x" * 1000
"""


@needs_posix
def test_a_disk_that_fills_up_is_one_line(files):
    """The write fails in the middle (here at a limit of the process): nothing of it stays, what was there does."""
    command = [sys.executable, "-P", "-c", SHORT_OF_SPACE, str(files.folder)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.count("\n") == 1
    assert "File too large" in done.stdout
    assert len(list(files.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, caplog):
    """Here a file is in its place."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file/prefixes"):
        files = PrefixFiles(folder, MIB)
        caplog.clear()
        files.write("key", SNAPSHOT)
        assert len(caplog.records) == 1
        assert files.measure() == (0, 0)


@needs_posix
def test_a_folder_that_cannot_be_written_can_still_be_read(files, caplog):
    """As from a disk that is mounted read-only: what is in it is used, what is damaged stays."""
    files.write("key", SNAPSHOT)
    files.folder.chmod(0o500)
    try:
        if os.access(files.folder, os.W_OK):
            pytest.skip("root may write anywhere")
        assert read_with_log(files, "key", caplog) == (SNAPSHOT, [])
        files.write("other", SNAPSHOT)
        assert [record.getMessage() for record in caplog.records if "could be written" in record.getMessage()]
        assert read_with_log(files, "other", caplog) == (None, [])
        os.truncate(only_file(files), 1000)
        found, log = read_with_log(files, "key", caplog)
        assert (found, len(log)) == (None, 1)
        assert only_file(files).exists()
    finally:
        files.folder.chmod(0o700)


# Where.


def test_the_folder_is_in_the_home_that_is_set(home, monkeypatch, tmp_path):
    """`SQALE_EDGE_HOME`, also a relative one or one with a `~`; without it this user's cache folder."""
    assert default_folder() == home / "prefixes"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for value in ("here", "~/here"):
        monkeypatch.setenv("SQALE_EDGE_HOME", value)
        assert default_folder() == tmp_path / "here/prefixes"
    monkeypatch.setenv("SQALE_EDGE_HOME", "~nobody-at-all/here")
    assert default_folder() is None
    monkeypatch.delenv("SQALE_EDGE_HOME")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert default_folder() == tmp_path / "cache/sqale-edge/prefixes"
    assert default_folder().parent.name == "sqale-edge"
