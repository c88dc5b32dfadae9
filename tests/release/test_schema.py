"""The JSON Schema of certificate.json and the strict reader come to the same verdicts."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from veilset.cli.main import app
from veilset.core.errors import VerificationError
from veilset.release.certificate import RELATION, Certificate
from veilset.release.schema import CertificateForm, certificate_schema

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/certificate.json"))
ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 1.5, 10**13, 1e305, "", "text", "group", "none", [], [1], ["a"], [True], [0, 1, 1],
    {}, {"a": 1}, {"a": "b"}, {"epsilon": 1, "delta": 0.5}, {"epsilon": "1", "delta": 0.5}, {"pld": 1, "rdp": None},
)  # fmt: skip


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With the checksum that fits, so that the form alone is judged."""
    plain = {key: value for key, value in content.items() if key != "content_sha256"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return plain | {"content_sha256": hashlib.sha256(text.encode()).hexdigest()}


def reader_takes(content: dict[str, Any]) -> bool:
    try:
        Certificate.from_json(content)
    except VerificationError:
        return False
    return True


def schema_takes(content: dict[str, Any]) -> bool:
    """By the declarations that the schema is printed from."""
    try:
        CertificateForm.model_validate(content)
    except ValidationError:
        return False
    return True


def altered(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One key gone, one too many, or one odd value, at the top and in what lies below it."""
    places: list[tuple[Any, ...]] = [(), ("declared_public",), ("accountant",), ("ledger", 0), ("ledger", 1)]
    places += [("budget",)] if content["budget"] else []
    for place in places:
        for key in [*_at(content, place), "unknown"]:
            if key in ("content_sha256", "format_version"):
                continue
            for value in ("gone", *ODD):
                changed = copy.deepcopy(content)
                inner = _at(changed, place)
                if value == "gone":
                    inner.pop(key, None)
                else:
                    inner[key] = value
                yield f"{place} {key}: {value!r}", sealed(changed)


def _at(content: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        content = content[step]
    return content


def test_reader_and_schema_have_the_same_keys() -> None:
    written = set(Certificate.__dataclass_fields__) | {"content_sha256"}
    assert set(CertificateForm.model_fields) == written
    schema = certificate_schema()
    assert set(schema["properties"]) == set(schema["required"]) == written
    assert schema["additionalProperties"] is False
    assert schema["properties"]["relation"]["const"] == RELATION


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_real_certificates_are_taken(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert reader_takes(content)
    assert schema_takes(content)


@pytest.mark.parametrize("how", [{}, {"noise": "seeded"}], ids=["dp", "none"])
def test_reader_and_schema_agree_on_odd_certificates(make: Any, how: dict[str, Any]) -> None:
    content = json.loads(make.certificate(warnings=["Small classes."], **how).to_bytes())
    assert reader_takes(content)
    assert schema_takes(content)
    refused = 0
    for what, changed in altered(content):
        taken = reader_takes(changed)
        if names_two_units(changed):
            assert not taken  # a schema cannot compare two places
            continue
        assert schema_takes(changed) == taken, what
        refused += not taken
    assert refused > 300


def names_two_units(content: dict[str, Any]) -> bool:
    facts = content.get("declared_public")
    return isinstance(facts, dict) and content.get("unit") != facts.get("unit")


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_format_is_refused_by_both(make: Any, version: Any) -> None:
    content = sealed(json.loads(make.certificate().to_bytes()) | {"format_version": version})
    assert not reader_takes(content)
    assert not schema_takes(content)


def test_the_command_prints_it() -> None:
    run: Callable[..., Any] = CliRunner().invoke
    done = run(app, ["verify", "--schema"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == certificate_schema()
    assert run(app, ["verify"]).exit_code == 2
    assert run(app, ["verify", "release", "--schema"]).exit_code == 2
