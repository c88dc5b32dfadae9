"""Errors name options as the reader spells them: flags on the command line, arguments in Python."""

import contextvars

import numpy as np
import pytest

import veilset as vs
from veilset.core.errors import InputError, flags_spoken, in_python_terms


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("Pass --size 32, for example.", "Pass size=32, for example."),
        ("Pass --delta 1e-06.", "Pass delta=1e-06."),
        ("Pass --channels 1 or 3.", "Pass channels=1 or 3."),
        ("Go on with --resume.", "Go on with resume=True."),
        ("Ask for fewer --samples.", "Ask for fewer samples."),
        ("for example --public builtin:photos.", 'for example public="builtin:photos".'),
        ("Declare --images-per-group M.", "Declare images_per_group M."),
        ("Pass --out FILE.", "Pass out=FILE."),
        ("A dash -- or a range 1--2 stays.", "A dash -- or a range 1--2 stays."),
    ],
)
def test_options_are_told_as_arguments(flags: str, arguments: str) -> None:
    assert in_python_terms(flags) == arguments


def in_plain_python(call):
    """As outside of the tests, which read errors as the command line shows them."""
    return contextvars.Context().run(call)


def test_python_reads_arguments_and_the_command_line_flags() -> None:
    error = InputError("Pass --size 32.")
    assert str(error) == "Pass --size 32."
    assert in_plain_python(lambda: str(error)) == "Pass size=32."
    with flags_spoken():
        assert str(error) == "Pass --size 32."


def test_a_real_call_speaks_python() -> None:
    pixels = np.zeros((20, 16, 16), np.uint8)

    def call() -> str:
        with pytest.raises(InputError) as found:
            vs.synthesize(vs.Vault.from_arrays(pixels, np.arange(20) % 2), method="merf", budget=vs.Budget(1.0, 0.2))
        return str(found.value)

    assert "--" not in in_plain_python(call)
    assert "delta=" in in_plain_python(call)
