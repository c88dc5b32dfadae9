"""Files beside the release: empty, foreign and of another release are refused, unknown keys are passed over."""

import pytest

from veilset.core.errors import InputError
from veilset.report.inputs import interval, number, read_inputs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"{", "is no evaluation file"),
        (b"[]", "is no evaluation file"),
        (b'{"other": 1}', "none of students, accuracy, paid"),
        (b"\xff\xfe", "is no evaluation file"),
        (b"[" * 100_000, "is no evaluation file"),
    ],
)
def test_unusable_files_are_named(tmp_path, content, message):
    path = tmp_path / "evaluation.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_inputs([path], [], [], "abc")


def test_missing_files_and_other_releases(tmp_path):
    for place, kind in enumerate(("evaluation", "attack", "audit")):
        files = [[], [], []]
        files[place] = [tmp_path / "missing.json"]
        with pytest.raises(InputError, match=f"no {kind} file at"):
            read_inputs(*files, "abc")
    path = tmp_path / "evaluation.json"
    path.write_text('{"accuracy": 0.5, "release": {"certificate_sha256": "def"}}')
    with pytest.raises(InputError, match="another release"):
        read_inputs([path], [], [], "abc")
    assert len(read_inputs([path], [], [], "def").evaluations) == 1


def test_odd_values_count_as_missing():
    content = {"a": "1", "b": True, "c": float("inf"), "d": 2, "e": [3, 1], "f": [1], "g": ["x", "y"]}
    assert [number(content, key) for key in "abcdz"] == [None, None, None, 2.0, None]
    assert number(content, "a", "d") == 2.0
    assert [interval(content, key) for key in "efgz"] == [(1.0, 3.0), None, None, None]
