"""Sites that lie in every part of what they say: it costs them their place, and neither the server nor the release."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import KEYS, NAMES, agreed, make_site, play

from veilset.core.errors import BudgetError, InputError
from veilset.pipeline.federated.coordinator import Letter
from veilset.pipeline.federated.desk import Desk
from veilset.release.statements import load_site_key, message_of, signature_of
from veilset.release.verify import verify_release

Lie = Callable[[dict[str, Any]], Any]


def _cheaper(said: dict[str, Any]) -> dict[str, Any]:
    return said | {"events": [event | {"noise_multiplier": 1000.0} for event in said["events"]]}


LIES: dict[str, Lie] = {
    "nothing": lambda _: None,
    "a word": lambda _: "spent",
    "another form": lambda _: {"x": 1},
    "less": _cheaper,
    "of another site": lambda said: said | {"site": "north"},
    "a certificate that is none": lambda said: said | {"certificate": {"ledger": [[[]]]}},
}


@pytest.mark.parametrize("lie", list(LIES))
def test_a_false_statement_does_not_spoil_the_release(lie: str, tmp_path: Path) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.site != "east" or "statement" not in letter.facts:
            return [letter]
        said = LIES[lie](dict(letter.facts["statement"]))
        message = message_of(said) if isinstance(said, dict) else b""
        signature = signature_of(message, load_site_key(KEYS["east"][0]))
        return [Letter(site="east", facts={"statement": said, "signature": signature}, tensors={})]

    coordinator = play(agreed(), tmp_path, change)
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert sorted(coordinator.state.statements()) == ["north", "south"]
    assert "statement" in coordinator.state.banned["east"]
    assert any("east signed nothing" in note for note in found.notes)


def test_numbers_that_cannot_be_compared_cost_their_sender_the_place(tmp_path: Path) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.site != "east" or "answer" not in letter.tensors:
            return [letter]
        return [replace(letter, tensors={**letter.tensors, "probe": letter.tensors["probe"] > 0})]

    coordinator = play(agreed(), tmp_path, change)
    assert set(coordinator.state.banned) == {"east"}


def test_a_site_that_has_spent_its_plan_is_asked_to_sign_and_may_go(tmp_path: Path) -> None:
    """A kill in the middle of a sum costs the sum, so the last one is refused. Nobody told such a site of the end."""
    agreement = agreed()
    sites = {name: make_site(agreement, name, tmp_path) for name in NAMES}

    def lost(number: int) -> Any:
        raise BudgetError(f"the sum {number} is spent")

    sites["east"].answer = lost  # type: ignore[method-assign]
    coordinator = play(agreement, tmp_path, sites=sites)
    assert set(coordinator.state.counted(0)) == {"north", "south"}
    assert sorted(coordinator.state.statements()) == sorted(NAMES)


def test_what_a_site_says_is_one_line_of_the_log(tmp_path: Path) -> None:
    def change(letter: Letter) -> list[Letter]:
        rude = replace(letter, facts={"refused": "no\n2026-01-01 round 9 of 9: east\x1b[2J" + "x" * 999}, tensors={})
        return [rude if letter.site == "east" and "answer" in letter.tensors else letter]

    coordinator = play(agreed(), tmp_path, change)
    assert coordinator._refused["east"].isprintable()
    assert len(coordinator._refused["east"]) == 200


def test_an_answer_whose_note_was_lost_in_a_kill_counts_as_answered(tmp_path: Path) -> None:
    agreement = agreed()
    for start in range(2):
        site = make_site(agreement, "south", tmp_path)
        desk = Desk(site, lambda _: None, clock=None)
        desk.reply({"nonce": "1"}, {})
        assert "answer" in desk.reply({"first": 0, "ask": 0}, {})[1]
        assert site.answered == {0}, start
        site.close()
        (tmp_path / "south" / "answered.json").unlink()


def test_more_answers_than_a_certificate_holds_are_refused_before_anything_is_paid() -> None:
    agreed("sanitized_gan", steps="9000")
    with pytest.raises(InputError, match="certificate"):
        agreed("sanitized_gan", steps="90000")


def test_content_that_no_reader_can_hold_is_malformed() -> None:
    pytest.importorskip("flwr", reason="needs the extra `federated`")
    from veilset.pipeline.federated.messages import pack, unpack

    from flwr.app import Array, ArrayRecord, ConfigRecord  # isort: skip

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    for data in (header.getvalue(), b"", b"PK\x03\x04 no zip file", b"\x93NUMPY"):
        content = pack({})
        content["tensors"] = ArrayRecord({"answer": Array(dtype="f8", shape=(3,), stype="numpy.ndarray", data=data)})
        with pytest.raises(InputError, match="not of the form"):
            unpack(content)
    for text in ("[" * 100_000, json.dumps([1]), "{", '{"a": ' * 50_000):
        content = pack({})
        content["facts"] = ConfigRecord({"json": text})
        with pytest.raises(InputError, match="not of the form"):
            unpack(content)
