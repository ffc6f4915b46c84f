"""Whatever happens to the input or to the process: an error or a valid file, and nothing half-written."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint, verify_file
from sqale_edge.convert.checkpoint import Checkpoint
from sqale_edge.convert.conversion import estimate_bytes
from sqale_edge.convert.outputs import Output
from sqale_edge.convert.qwen35 import plan_tensors
from sqale_edge.convert.qwen35_config import Qwen35Config
from sqale_edge.convert.tokenizer import read_vocabulary
from sqale_edge.convert.workspace import PREFIX, check_disk_space, open_workspace, remove_stale

from sqale_edge.errors import ConversionError
from sqale_edge.llama.quantize import FILE_TYPES, UNQUANTIZED, quantize_file

AGENT_SOURCE = 'SYSTEM_PROMPT = "Use the tools."\nUSER_TEMPLATE = "{question}"\n'
ODD_VALUES = [None, True, 0, -1, 3, 1 << 31, 1 << 63, 0.5, 1e308, "", "x", "\x00", [], {}, [0], {"a": 0}]
JSON_FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("whole") / "m", n_shards=2, agent_source=AGENT_SOURCE)


def mutate_bytes(folder, rng):
    """Flip, cut, repeat or insert bytes anywhere in any file; headers, which are at the front, more often."""
    path = rng.choice(sorted(folder.iterdir()))
    content = bytearray(path.read_bytes())
    at = rng.randrange(min(len(content), rng.choice([16, 4096, len(content)])))
    kind = rng.randrange(4)
    if kind == 0:
        content[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        content[at:at] = content[at : at + rng.randrange(1, 64)]
    else:
        content[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(1, 8))
    path.write_bytes(content)


def mutate_value(value, rng):
    """A JSON value with one part of it, at any depth, replaced, removed or doubled."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.15:
            del value[key]
        elif rng.random() < 0.1 and isinstance(value, list):
            value.append(value[key])
        else:
            value[key] = mutate_value(value[key], rng)
        return value
    return rng.choice(ODD_VALUES)


def mutate_json(folder, rng):
    path = folder / rng.choice(JSON_FILES)
    path.write_text(json.dumps(mutate_value(json.loads(path.read_text(encoding="utf-8")), rng)), encoding="utf-8")


def mutate_header(folder, rng):
    path = rng.choice(sorted(folder.glob("*.safetensors")))
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    text = json.dumps(mutate_value(json.loads(content[8:start]), rng)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[start:])


def mutate_files(folder, rng):
    """Remove a file, or put another file's content in its place."""
    files = sorted(folder.iterdir())
    victim, other = rng.sample(files, 2)
    victim.unlink()
    if rng.random() < 0.6:
        shutil.copy(other, victim)


def find_error(folder, target):
    """The error that the conversion raises, None for a valid file; anything else comes out."""
    try:
        convert_checkpoint(folder, target, "BF16")
    except ConversionError as error:
        return error
    return None


@pytest.mark.parametrize("mutate", [mutate_bytes, mutate_json, mutate_header, mutate_files])
def test_a_mutated_checkpoint_is_an_error_or_a_valid_file(whole, tmp_path, mutate):
    """Thirty mutations of each kind: one line or a file that llama.cpp runs, never anything else, never a leftover."""
    n_errors = 0
    for seed in range(30):
        folder, out = tmp_path / f"{seed}", tmp_path / f"out{seed}"
        shutil.copytree(whole, folder)
        out.mkdir()
        mutate(folder, random.Random(seed))
        error = find_error(folder, out / "m.gguf")
        n_errors += error is not None
        assert "\n" not in str(error), seed
        assert [file.name for file in out.iterdir()] == ([] if error else ["m.gguf"]), seed
        shutil.rmtree(folder)
    assert n_errors >= 5


def start_conversion(checkpoint, target):
    command = [
        sys.executable,
        "-P",
        "-c",
        "from sqale_edge.cli import main; main()",
        "convert",
        checkpoint,
        "-o",
        target,
    ]
    return subprocess.Popen([*command, "-q", "Q4_K_M", "--overwrite"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def _hears_all():
    """Children hear these signals even where the tests run in the background, with some of them ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


if sys.platform == "win32":
    ENDS = []
else:
    ENDS = [[signal.SIGKILL], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGHUP] * 3, [signal.SIGINT]]
    ENDS += [[signal.SIGINT] * 2, [signal.SIGTERM, signal.SIGINT]]


@pytest.mark.usefixtures("_hears_all")
@pytest.mark.parametrize("how", ENDS, ids=lambda how: "-".join(number.name for number in how))
def test_a_conversion_that_is_ended_at_any_instant_leaves_nothing(whole, tmp_path, how):
    """The target is absent or whole. Signals leave nothing else; what a kill leaves, the next conversion removes."""
    rng, target = random.Random(int(how[0])), tmp_path / "m.gguf"
    started = time.perf_counter()
    assert start_conversion(whole, target).communicate()[1].decode().count("verified") == 1
    usual_s = time.perf_counter() - started
    for _ in range(8 if len(how) == 1 else 4):
        target.unlink(missing_ok=True)
        process = start_conversion(whole, target)
        time.sleep(rng.uniform(0.2, 1.0) * usual_s)
        for number in how:
            process.send_signal(number)
            time.sleep(rng.uniform(0, 0.05))
        _, said = process.communicate()
        if len(how) == 1 and process.returncode == 130:
            assert said == b"Cancelled.\n"
        left = {file.name for file in tmp_path.iterdir()}
        if target.name in left:
            verify_file(target)
        if how == [signal.SIGKILL]:
            assert all(name == target.name or name.startswith(PREFIX) for name in left)
        else:
            assert left <= {target.name}
    convert_checkpoint(whole, target, "Q4_K_M", overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are POSIX")
def test_links_and_pipes_with_the_name_of_a_workspace_do_no_harm(tmp_path):
    """What lies in a shared folder may be a trap: nothing is waited for, made or removed behind a link."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(precious)
    for name, make in (("pipe", os.mkfifo), ("elsewhere", lambda path: path.symlink_to(precious / "made"))):
        (tmp_path / f"{PREFIX}{name}").mkdir()
        make(tmp_path / f"{PREFIX}{name}" / "lock")
    remove_stale(tmp_path)
    assert not (precious / "made").exists()
    assert precious.is_dir()


def test_workspaces_of_running_conversions_are_left_alone(tmp_path):
    """Only a folder whose process is gone is removed."""
    with open_workspace(tmp_path) as running:
        with open_workspace(tmp_path) as other:
            assert running.is_dir()
            assert other != running
        assert running.is_dir()
        stale = tmp_path / f"{PREFIX}stale"
        stale.mkdir()
        (stale / "lock").touch()
        (stale / "half.gguf").touch()
        without_lock = tmp_path / f"{PREFIX}without-lock"
        without_lock.mkdir()
        (without_lock / "half.gguf").touch()
        (tmp_path / f"{PREFIX}file").touch()
        remove_stale(tmp_path)
        assert {entry.name for entry in tmp_path.iterdir()} == {running.name, f"{PREFIX}file"}
    assert not running.exists()


def test_workspaces_made_at_the_same_time_do_not_take_each_other_away(tmp_path):
    """Many conversions start and end in one folder: each keeps its own until it is done."""

    def work(_):
        for _ in range(30):
            with open_workspace(tmp_path) as workspace:
                (workspace / "file").write_text("x")
                assert (workspace / "file").read_text() == "x"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_space_is_known_beforehand(whole, tmp_path):
    """The message has what is free, what is needed, and for which files."""
    with pytest.raises(ConversionError, match=r"GB free, but needs 1000000000\.00 GB \(BF16 1000000000\.00 GB\)"):
        check_disk_space(tmp_path, [("BF16", 10**18)])
    check_disk_space(tmp_path, [("BF16", 1)])


def estimate(checkpoint, quant):
    """As the conversion estimates it, names and sampling defaults apart."""
    opened = Checkpoint.open(checkpoint)
    config = Qwen35Config.from_json(opened.config, checkpoint)
    fields = [*config.to_metadata(), *read_vocabulary(opened, config.n_vocab).to_metadata()]
    return estimate_bytes(fields, plan_tensors(config, opened.tensors, checkpoint)[0], Output(quant, quant))


@pytest.mark.parametrize("shape", [{}, {"layers": 8, "is_tied": False}, {"hidden": 96, "ffn": 80}])
def test_no_file_is_larger_than_estimated(tmp_path, shape):
    """For each type, also where widths do not suit it; unquantized files are within a hundredth."""
    checkpoint = write_checkpoint(tmp_path / "m", **shape)
    convert_checkpoint(checkpoint, tmp_path / "{quant}.gguf", list(UNQUANTIZED))
    for quant in FILE_TYPES:
        path, estimated = tmp_path / f"{quant}.gguf", estimate(checkpoint, quant)
        if quant not in UNQUANTIZED:
            quantize_file(tmp_path / "BF16.gguf", path, quant)
        assert path.stat().st_size <= estimated, quant
        if quant in UNQUANTIZED:
            assert estimated <= 1.01 * path.stat().st_size, quant


MOUNT = (
    ["unshare", "--mount"]
    if hasattr(os, "getuid") and os.getuid() == 0
    else ["unshare", "--user", "--map-root-user", "--mount"]
)


def convert_on_small_disk(checkpoint, folder, n_bytes):
    """Exit code and stderr of a conversion to BF16's place and Q8_0, on a disk of this size, and the files on it."""
    script = (
        f'mount -t tmpfs -o size={n_bytes} tmpfs "$2" && cd "$2" || exit 99; '
        '"$0" -P -c "from sqale_edge.cli import main; main()" convert "$1" -o m.gguf -q Q8_0 >&2; '
        "code=$?; ls -A; exit $code"
    )
    command = [*MOUNT, "sh", "-c", script, sys.executable, checkpoint, folder]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 99 or result.stderr.startswith("unshare"):
        pytest.skip(f"no disk can be mounted here: {result.stderr}")
    return result.returncode, result.stderr, result.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_disk_without_room_for_the_peak_is_refused_before_anything_is_written(whole, tmp_path):
    """The peak is the finished file beside the one that it is made of; a disk that holds both suffices."""
    peak = estimate(whole, "BF16") + estimate(whole, "Q8_0")
    code, err, files = convert_on_small_disk(whole, tmp_path, estimate(whole, "BF16") + 100_000)
    assert (code, files, err.count("\n")) == (1, [], 1)
    assert err.startswith("Error: the disk of '.' has 0.00 GB free, but needs 0.00 GB (BF16 0.00 GB, Q8_0 0.00 GB)")
    code, err, files = convert_on_small_disk(whole, tmp_path, peak + 20_000)
    assert (code, files) == (0, ["m.gguf"]), err


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize("limit", [1_000, 400_000, 3_100_000])
def test_a_file_that_cannot_grow_is_an_error_and_leaves_nothing(whole, tmp_path, limit):
    """A limit on file sizes ends writing as a full disk does: in the head, in the weights, in the quantizer."""
    script = (
        "import resource, sys; from sqale_edge.cli import main; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); main()"
    )
    arguments = ["convert", whole, "-o", tmp_path / "{quant}.gguf", "-q", "F32"]
    result = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def convert_in_mount(checkpoint, folder, mount, *arguments):
    """Exit code, stderr and all files after a conversion in a folder that `mount` has been done to."""
    script = (
        f'cd "$2" && {mount} && cd "$2" || exit 99; '
        '"$0" -P -c "$3" convert "$1" -q BF16 -o "$4"; code=$?; ls -A; exit $code'
    )
    main = "from sqale_edge.cli import main; main()"
    command = [*MOUNT, "sh", "-c", script, sys.executable, checkpoint, folder, main, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 99 or result.stderr.startswith("unshare"):
        pytest.skip(f"nothing can be mounted here: {result.stderr}")
    return result.returncode, result.stderr, result.stdout.split()


# (what is mounted on the folder, the target, the message)
BAD_PLACES = [
    ("mount -t tmpfs -o ro tmpfs .", "m.gguf", "Error: '.' cannot be written to: Read-only file system."),
    ("mount -t tmpfs -o ro tmpfs .", "new/", "Error: the folder 'new' cannot be made: Read-only file system."),
    ("mount -t tmpfs -o nr_inodes=1 tmpfs .", "m.gguf", "Error: '.' cannot be written to: No space left on device."),
    ("mount -t tmpfs -o nr_inodes=2 tmpfs .", "m.gguf", "Error: '.' cannot be written to: No space left on device."),
    ("mount -t tmpfs -o nr_inodes=3 tmpfs .", "m.gguf", "Error: m.gguf cannot be written: No space left on device."),
    ("mount -t tmpfs -o nr_inodes=2 tmpfs .", "new/", "Error: 'new' cannot be written to: No space left on device."),
]


@pytest.mark.skipif(sys.platform != "linux", reason="mounts file systems")
@pytest.mark.parametrize(("mount", "target", "message"), BAD_PLACES)
def test_a_place_that_cannot_take_files_is_one_line_and_nothing_is_left(whole, tmp_path, mount, target, message):
    """Read-only, or without room for a folder, for the lock in it, or for the file."""
    code, err, files = convert_in_mount(whole, tmp_path, mount, target)
    assert (code, files, err.count("\n")) == (1, [], 1), err
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing/m.gguf", "the output's folder '.*missing' does not exist"),
        ("missing/more/", "the output's folder '.*missing' does not exist"),
        ("file/m.gguf", "the output's folder '.*file' is not a folder"),
        ("folder.gguf", "'.*m-BF16.gguf' is a folder"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_in_the_wrong_place_is_one_line_and_nothing_is_made(whole, tmp_path, target, message, overwrite):
    """A missing parent, a file in its place, a folder in the place of the file."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder.gguf" / "m-BF16.gguf").mkdir(parents=True)
    with pytest.raises(ConversionError, match=message) as caught:
        convert_checkpoint(whole, tmp_path / target, "BF16", overwrite=overwrite)
    assert "\n" not in str(caught.value)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder.gguf", "m-BF16.gguf"]
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
def test_a_target_that_cannot_be_written_is_an_error(whole):
    """A place where no file can be made, for root neither, is refused by name."""
    with pytest.raises(ConversionError, match=r"^'/proc' cannot be written to: ") as caught:
        convert_checkpoint(whole, "/proc/m.gguf", "BF16")
    assert caught.value.hint == "choose another place for the output"
