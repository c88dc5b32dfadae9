"""`python -m veilset` is the `veilset` command."""

from veilset.cli.main import run

run()
