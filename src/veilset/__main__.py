"""`python -m veilset` is the `veilset` command."""

import sys

_INTERRUPTED = 130


def main() -> None:
    """The entry point. Ctrl-C while the command is still being loaded ends it with one line, too."""
    try:
        from veilset.cli.main import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
