"""A federation of noisy sums within one process: results, faults, hostile answers, ledgers and certificates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import EPSILONS, KEYS, NAMES, agreed, images, make_site, play

from veilset.core.errors import InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.pipeline.federated.agreement import METHODS, Agreement, agree
from veilset.pipeline.federated.combining import combined
from veilset.pipeline.federated.coordinator import Letter
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.schedule import Clock
from veilset.pipeline.federated.site import Site, check_data
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import default_delta
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.privacy.vault import Vault
from veilset.release.statements import unknown_signers
from veilset.release.verify import verify_release


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "merf" else pytest.mark.slow) for name in METHODS]
)
def test_a_federation_is_certified_by_what_its_sites_signed(method: str, tmp_path: Path) -> None:
    agreement = agreed(method)
    play(agreement, tmp_path)
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(5.0, abs=0.01)  # the largest of the sites', not their sum
    assert sum("signed its events" in note for note in found.notes) == 3
    assert found.certificate is not None
    assert unknown_signers(found.certificate.header, [KEYS[name][1] for name in NAMES]) == []
    assert len(unknown_signers(found.certificate.header, [KEYS["north"][1]])) == 2
    for name in NAMES:
        events = check_chain(read_ledger(tmp_path / name / "ledger.jsonl"))
        assert epsilon_of(events, 1e-3) == pytest.approx(EPSILONS[name], abs=0.01)
        assert len(Account(tmp_path / f"{name}.sqlite").reservations) == 1


def test_a_killed_server_and_a_killed_site_go_on_without_paying_twice(tmp_path: Path) -> None:
    agreement = agreed("sanitized_gan")

    def die(letter: Letter) -> list[Letter]:
        if letter.facts.get("round") == 1:
            raise KeyboardInterrupt
        return [letter]

    with pytest.raises(KeyboardInterrupt):
        play(agreement, tmp_path, die)
    before = {name: read_ledger(tmp_path / name / "ledger.jsonl") for name in NAMES}
    play(agreement, tmp_path)  # other processes: nothing but what is on disk is left
    assert verify_release(tmp_path / "release").ok
    for name in NAMES:
        lines = read_ledger(tmp_path / name / "ledger.jsonl")
        assert lines[: len(before[name])] == before[name]
        assert sum(line["body"]["steps"] for line in lines if line["kind"] == "lease") == 3
        assert len(Account(tmp_path / f"{name}.sqlite").reservations) == 1


def _longer(letter: Letter) -> dict[str, torch.Tensor]:
    return {**letter.tensors, "answer": letter.tensors["answer"] * 1e6}


def _broken(letter: Letter) -> dict[str, torch.Tensor]:
    return {**letter.tensors, "answer": letter.tensors["answer"] * torch.nan}


@pytest.mark.parametrize("tensors", [_longer, _broken])
def test_a_changed_answer_costs_its_sender_the_place_and_not_the_run(tensors: Any, tmp_path: Path) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.site != "east" or "answer" not in letter.tensors:
            return [letter]
        return [Letter(site="east", facts=letter.facts, tensors=tensors(letter))]

    coordinator = play(agreed(), tmp_path, change)
    assert set(coordinator.state.banned) == {"east"}
    assert set(coordinator.state.counted(0)) == {"north", "south"}
    assert verify_release(tmp_path / "release").ok


def test_an_answer_too_long_is_refused_though_it_is_signed(tmp_path: Path) -> None:
    agreement = agreed()
    sites = {name: make_site(agreement, name, tmp_path) for name in NAMES}
    honest = sites["east"].answer
    sites["east"].answer = lambda number: honest(number) * 1e6  # type: ignore[method-assign]
    coordinator = play(agreement, tmp_path, sites=sites)
    assert "longer" in coordinator.state.banned["east"]


def test_a_repeated_letter_counts_once_and_too_few_sites_stop_cleanly(tmp_path: Path) -> None:
    coordinator = play(agreed(), tmp_path, lambda letter: [letter, letter])
    assert coordinator.state.counted(0) == dict.fromkeys(NAMES, 1)

    def silent(letter: Letter) -> list[Letter]:
        return [] if letter.site != "north" else [letter]

    with pytest.raises(VeilsetError, match="Nothing is lost"):
        play(agreed(), tmp_path / "again", silent)


def test_answers_count_by_their_noise() -> None:
    agreement = agreed()
    pairs = [(member, torch.full((3,), float(member.units))) for member in agreement.members]
    assert combined(agreement, pairs).tolist() == pytest.approx([140.0] * 3)  # a count stays a count
    assert combined(agreement, pairs[:1]).tolist() == pytest.approx([140.0] * 3)
    north, south, _ = (agreement.weight(member) / member.units for member in agreement.members)
    assert north / south > 3  # epsilon 5 beside 2


def test_a_site_refuses_what_it_has_not_agreed_to(tmp_path: Path) -> None:
    agreement = agreed()
    small = ImageSet(np.zeros((40, 18, 18, 1), np.uint8), np.arange(40) % 2, class_names=("no", "yes"))
    with pytest.raises(InputError, match="shape"):
        Site("south", agreement, Vault(small), key=KEYS["south"][0], workspace=tmp_path / "x")
    site = make_site(agreement, "south", tmp_path)
    desk = Desk(site, lambda _: None, clock=None)
    desk.reply({"nonce": "1"}, {})
    for letter in ({"first": 0, "ask": 1}, {"first": 0, "ask": 99}, {"first": "0", "ask": 0}, {"settings": {}}):
        assert "refused" in desk.reply(letter, {})[0]
    assert "refused" in desk.reply({"first": 0, "ask": None}, {"0": torch.zeros(3)})[0]
    assert [line["kind"] for line in read_ledger(tmp_path / "south" / "ledger.jsonl")] == ["open"]
    site.close()


@pytest.mark.parametrize(("method", "settings"), [("pate", {}), ("dfd", {"variant": "B"})])
def test_methods_that_are_no_sums_are_refused_before_anything_is_paid(method: str, settings: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"federated|shards"):
        agreed(method, **settings)


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.mark.parametrize(("work", "left"), [(0.0, 2.0), (0.3, 2.0), (1.99, 2.0), (2.1, 4.0), (7.0, 8.0)])
def test_an_answer_waits_for_the_end_of_its_slot(work: float, left: float) -> None:
    fake = FakeClock()
    overruns: list[int] = []
    with Clock(fake.now, fake.sleep).slot(2.0, overruns.append):
        fake.time += work
    assert fake.time - 100.0 == pytest.approx(left)
    assert overruns == ([] if left == 2.0 else [int(left / 2)])


def test_a_failure_waits_as_well() -> None:
    fake = FakeClock()
    with pytest.raises(ValueError, match="words"), Clock(fake.now, fake.sleep).slot(2.0, print):
        raise ValueError("words")
    assert fake.time == 102.0


def test_a_desk_answers_at_the_tick_and_in_fixed_words(tmp_path: Path) -> None:
    class Slow(ImageSet):
        """One image more or less takes its time, or fails with words of its own."""

        def read(self, rows: Any) -> Any:
            fake.time += 0.01 * len(rows)
            if broken:
                raise RuntimeError("the scan of Mrs Miller is damaged")
            return super().read(rows)

    at_home: list[str] = []
    seen: list[list[tuple[float, str]]] = []
    agreement = agreed()
    for count, broken in ((40, False), (39, False), (40, True)):
        fake = FakeClock()
        plain, home = images(count, 1), tmp_path / f"{count}-{broken}"
        vault = Vault(Slow(plain.images, plain.labels, ("no", "yes")))
        site = Site("south", agreement, vault, key=KEYS["south"][0], workspace=home, account=Account(home / "account"))
        desk = Desk(site, at_home.append, answer_every=1.0, clock=Clock(fake.now, fake.sleep))
        replies = []
        for letter in ({"nonce": "1"}, {"first": 0, "ask": 0}):
            began = fake.time
            said, _ = desk.reply(letter, {})
            replies.append((round(fake.time - began, 6), str(said.get("refused", ""))))
        seen.append(replies)
        site.close()
    assert seen[0] == seen[1] == [(2.0, ""), (1.0, "")]
    assert seen[2] == [(2.0, ""), (1.0, "south does not answer: see its log.")]
    assert any("Miller" in line for line in at_home)


def test_a_site_that_was_away_is_told_and_pays_nothing_for_it(tmp_path: Path) -> None:
    agreement = agreed("sanitized_gan")
    told: list[str] = []
    site = make_site(agreement, "south", tmp_path)
    desk = Desk(site, told.append, clock=None)
    desk.reply({"nonce": "1"}, {})
    shape = site.question(0)[0].shape
    assert desk.reply({"first": 2, "ask": 2}, {}) == ({"taken": 0}, {})  # it was started anew and has no results yet
    said, _ = desk.reply({"first": 0, "ask": None}, {"0": torch.zeros(shape), "1": torch.zeros(shape)})
    assert said == {"taken": 2}
    assert "2 rounds" in told[-1]
    assert not [line for line in read_ledger(tmp_path / "south" / "ledger.jsonl") if line["kind"] == "lease"]
    site.close()


def test_a_farewell_before_the_end_buys_the_server_no_answer(tmp_path: Path) -> None:
    """It wrote the training down as spent; the first answer did so again, and a site that came back had both."""
    agreement = agreed("sanitized_gan", steps="6")
    said: set[bytes] = set()
    for start in range(4):
        site = make_site(agreement, "south", tmp_path)
        desk = Desk(site, lambda _: None, clock=None)
        desk.reply({"nonce": "1"}, {})
        for _ in range(2 if start == 0 else 0):
            assert "statement" in desk.reply({"farewell": True}, {})[0]
        for number in range(site.rounds):
            shape = site.question(number)[0].shape
            answer = desk.reply({"first": number, "ask": number}, {})[1].get("answer")
            said |= set() if answer is None else {answer.numpy().tobytes()}
            desk.reply({"first": number, "ask": None}, {"0": torch.full(shape, float(start))})
        site.close()
    lines = read_ledger(tmp_path / "south" / "ledger.jsonl")
    assert sum(line["kind"] == "spend" for line in lines) == 1
    assert sum(line["body"]["steps"] for line in lines if line["kind"] == "lease") == len(said) == 6


@pytest.mark.parametrize(("method", "counts"), [("sanitized_gan", False), ("dfd", True)])
def test_a_late_answer_counts_where_the_algorithm_allows_it(method: str, counts: bool, tmp_path: Path) -> None:
    held: list[Letter] = []

    def slow(letter: Letter) -> list[Letter]:
        """East's answer to the second round, which is a step, travels for one round."""
        is_answer = "answer" in letter.tensors and letter.facts["round"] == 1
        if letter.site == "east" and is_answer and not held:
            held.append(letter)
            return []
        if held and letter.site == "south" and letter.facts.get("round", 0) > held[0].facts["round"]:
            late = held[0]
            held[0] = Letter(site="east", facts={"round": 10**6}, tensors={})
            return [late, letter] if "answer" in late.tensors else [letter]
        return [letter]

    coordinator = play(agreed(method), tmp_path, slow)
    assert coordinator.state.banned == {}
    places = [place for number in range(coordinator.rounds) for place in coordinator.state.counted(number)]
    assert any(place.startswith("east@") for place in places) == counts
    assert coordinator.rounds - 2 <= places.count("east") <= coordinator.rounds - 1
    assert verify_release(tmp_path / "release").ok


def test_many_small_sites_have_a_joint_delta_below_one_over_all_units(tmp_path: Path) -> None:
    plain = agreed()
    members = tuple(replace(member, delta=0.01) for member in plain.members)
    agreement = agree(replace(plain, members=members))
    play(agreement, tmp_path)
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.delta == default_delta(140)
    assert found.epsilon is not None
    assert found.epsilon > 5.0


def test_findings_are_refused_where_the_agreement_is_about_classes(tmp_path: Path) -> None:
    """And the other way round, should an agreement ever be about findings. The names are the same in both."""
    agreement, plain = agreed(), images(60, 0)
    findings = ImageSet(plain.images, np.eye(2, dtype=np.int64)[plain.labels], plain.class_names)
    assert Vault(findings).facts.class_names == agreement.class_names
    account = Account(tmp_path / "account.sqlite")
    with pytest.raises(InputError, match="about one class for each image, and this site has several findings"):
        Site("north", agreement, Vault(findings), key=KEYS["north"][0], workspace=tmp_path / "run", account=account)
    assert not account.reservations
    assert not (tmp_path / "run").exists()


def test_classes_are_refused_where_the_agreement_is_about_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = agreed()
    facts = replace(agreement.facts, findings=True)
    monkeypatch.setattr(Agreement, "facts", property(lambda _: facts))
    with pytest.raises(InputError, match="about several findings for each image, and this site has one class"):
        check_data(agreement, Vault(images(60, 0)), None)
