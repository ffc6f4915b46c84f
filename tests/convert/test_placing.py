"""Finished files get their names: all or none, and never somebody else's."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint, verify_file
from sqale_edge.convert.placing import move_into_place

from sqale_edge.errors import ConversionError

QUANTS = ["BF16", "Q8_0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("source") / "m")


def at_last_step(do):
    """A progress callback that does something when everything but the moves is done."""
    return lambda progress: do() if (progress.step, progress.file) == ("verify", "Q8_0.gguf") else None


def prepare_moves(folder):
    """Two new files in a folder of their own, and where they go."""
    (folder / "work").mkdir()
    moves = [(folder / "work" / name, folder / name) for name in ("a", "b")]
    for source, _ in moves:
        source.write_text(f"new {source.name}")
    return moves


def read_all(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_a_target_that_appears_meanwhile_is_left_alone(checkpoint, tmp_path):
    """What another program writes there during the conversion stays, and none of the new files does."""
    target = tmp_path / "Q8_0.gguf"
    with pytest.raises(ConversionError, match="exists already") as caught:
        convert_checkpoint(
            checkpoint,
            tmp_path / "{quant}.gguf",
            QUANTS,
            on_progress=at_last_step(lambda: target.write_text("precious")),
        )
    assert "--overwrite" in caught.value.hint
    assert read_all(tmp_path) == {"Q8_0.gguf": "precious"}


def test_of_two_conversions_into_one_target_one_wins(checkpoint, tmp_path):
    """The other one is told; the file is whole, and nothing else is left."""

    together = threading.Barrier(3)

    def convert(number):
        steps = set()

        def meet(progress):
            if progress.step not in steps:
                steps.add(progress.step)
                together.wait(60)

        try:
            convert_checkpoint(checkpoint, tmp_path / "m.gguf", "BF16", name=f"number {number}", on_progress=meet)
        except ConversionError as error:
            return str(error)
        return "converted"

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(convert, range(3)))
    assert results.count("converted") == 1
    assert sum("exists already" in result for result in results) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    verify_file(tmp_path / "m.gguf")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: (path.mkdir(), (path / "x").touch())])
def test_what_was_replaced_is_back_when_a_later_file_fails(checkpoint, tmp_path, make):
    """With `overwrite` as without: a folder that appears at the second place stops both files."""
    (tmp_path / "BF16.gguf").write_text("old")
    with pytest.raises(ConversionError, match="cannot be put in place"):
        convert_checkpoint(
            checkpoint,
            tmp_path / "{quant}.gguf",
            QUANTS,
            overwrite=True,
            on_progress=at_last_step(lambda: (tmp_path / "Q8_0.gguf").exists() or make(tmp_path / "Q8_0.gguf")),
        )
    assert read_all(tmp_path) == {"BF16.gguf": "old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["BF16.gguf", "Q8_0.gguf"]


def test_a_link_that_was_replaced_is_back(tmp_path):
    """As a link, to the same place, whether there is anything or not."""
    moves = prepare_moves(tmp_path)
    (tmp_path / "a").symlink_to("nowhere")
    (tmp_path / "b").mkdir()
    with pytest.raises(ConversionError, match="cannot be put in place"):
        move_into_place(moves, overwrite=True)
    assert (tmp_path / "a").readlink().name == "nowhere"


def test_a_file_that_another_program_put_over_a_moved_one_stays(tmp_path):
    """Undoing takes away what was moved, and nothing that has come since."""
    moves = prepare_moves(tmp_path)

    class Names(list):
        """The second name is read after the first file has been moved."""

        def __iter__(self):
            yield self[0]
            (tmp_path / "other").write_text("precious")
            (tmp_path / "other").replace(tmp_path / "a")
            yield self[1]

    (tmp_path / "b").touch()
    with pytest.raises(ConversionError, match="exists already"):
        move_into_place(Names(moves), overwrite=False)
    assert read_all(tmp_path) == {"a": "precious", "b": ""}


def test_a_missing_source_undoes_the_others(tmp_path):
    """Any failure does."""
    moves = prepare_moves(tmp_path)
    moves[1][0].unlink()
    with pytest.raises(ConversionError, match=r"'.*b' cannot be put in place: No such file"):
        move_into_place(moves, overwrite=False)
    assert read_all(tmp_path) == {}


# Linux refuses a hard link to a set-uid file of somebody else, and still lets it be renamed: as a file system without
# hard links does it.
WITHOUT_LINKS = """
import os, sys
from pathlib import Path
from sqale_edge.convert.placing import move_into_place
from sqale_edge.errors import ConversionError
folder, overwrite = Path(sys.argv[1]), sys.argv[2] == "overwrite"
os.setuid(65534)
try:
    os.link(folder / "work" / "a", folder / "work" / "link")
except PermissionError:
    pass
else:
    sys.exit("linked")
try:
    move_into_place([(folder / "work" / name, folder / name) for name in "ab"], overwrite=overwrite)
except ConversionError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="takes another user's files")
@pytest.mark.parametrize(
    ("there", "how", "result", "message"),
    [
        ({}, "new", {"a": "new a", "b": "new b"}, ""),
        ({"a": "old"}, "new", {"a": "old"}, "exists already"),
        ({"b": "old"}, "new", {"b": "old"}, "exists already"),
        ({"a": "old", "b": "old"}, "overwrite", {"a": "new a", "b": "new b"}, ""),
    ],
)
def test_without_hard_links_nothing_is_replaced_either(tmp_path, there, how, result, message):
    """The name is taken with an empty file first, which is gone again if the move fails."""
    for source, _ in prepare_moves(tmp_path):
        source.chmod(0o4666)
    for name, content in there.items():
        (tmp_path / name).write_text(content)
    for folder in (tmp_path, tmp_path / "work"):
        folder.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    command = [sys.executable, "-P", "-c", WITHOUT_LINKS, tmp_path, how]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.stderr.strip() == "linked":
        pytest.skip("hard links to other users' files are allowed here")
    assert (run.returncode, run.stderr) == (0, "")
    assert message in run.stdout
    assert read_all(tmp_path) == result
