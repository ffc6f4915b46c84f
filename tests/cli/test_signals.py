"""Requests to end: what a command cleans up, and which signals it hears how often."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
WAIT_S = 60
WAITING = """
import time
from sqale_edge.cli.signals import end_requests_handled
with end_requests_handled(lambda: print("asked", flush=True)):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


def start(script, *arguments, **options):
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_any_request_cancels_a_question_and_its_private_copies(tmp_path, qwen_gguf, number):
    """Whether by Ctrl-C, by `kill` or by closing the terminal: exit code 130, and no copy of the data stays."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "customers.csv").write_text("name\nAda\nGrace\n", encoding="utf-8")
    arguments = ["ask", tmp_path / "customers.csv", "Who?", "-m", qwen_gguf, "--threads", "1", "--trace"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    script = "from sqale_edge.cli import main; main()"
    process = start(script, *arguments, stderr=subprocess.PIPE, env=environment)
    err = b""
    while b"new tokens evaluated" not in err:
        chunk = os.read(process.stderr.fileno(), 65536)
        assert chunk, err
        err += chunk
    assert list((tmp_path / "tmp").iterdir())
    process.send_signal(number)
    out, rest = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, b"")
    assert rest.endswith(b"\nCancelled.\n")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_request_ends_an_import(tmp_path, qwen_gguf):
    """While a large CSV file is read: exit code 130, one line, and no copy of the data stays."""
    (tmp_path / "tmp").mkdir()
    with (tmp_path / "large.csv").open("w", encoding="utf-8") as file:
        file.write("name,city\n")
        file.writelines(f"name {number},city {number % 97}\n" for number in range(1_500_000))
    arguments = ["ask", tmp_path / "large.csv", "Who?", "-m", qwen_gguf, "--threads", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = start("from sqale_edge.cli import main; main()", *arguments, stderr=subprocess.PIPE, env=environment)
    while not list((tmp_path / "tmp").iterdir()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, b"", b"Cancelled.\n")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_only_a_second_ctrl_c_ends_the_process():
    """The first request is handed on, whichever it is; others change nothing, until somebody presses Ctrl-C again."""
    process = start(WAITING)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == b"asked\n"
    for number in (signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert process.stdout.read() == b""
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_to_be_ignored_is_ignored(number):
    """As `nohup` asks for."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = start(WAITING)
    finally:
        signal.signal(number, before)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.kill()
    process.wait(WAIT_S)
    assert process.stdout.read() == b""
    process.stdout.close()


def test_handlers_are_as_before_afterwards():
    """Also in another thread, where none can be set."""
    import threading

    from sqale_edge.cli.signals import end_requests_handled

    def handle():
        with end_requests_handled(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    before, seen = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=handle)
    thread.start()
    thread.join()
    handle()
    assert seen[0] == before
    assert seen[1] != before
    assert signal.getsignal(signal.SIGTERM) == before
