"""The command `sqale-edge`. Beside the package, whose import takes a while in which Ctrl-C is heard, too."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from sqale_edge.cli import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("Cancelled.\n")
        sys.exit(130)  # as sqale_edge.cli ends
