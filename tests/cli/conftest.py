"""What every test of the command line needs."""

import signal
import sys

import pytest


@pytest.fixture(autouse=True)
def _hears_all():
    """Children hear these signals even where the tests run in the background, with some of them ignored."""
    if sys.platform == "win32":
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
