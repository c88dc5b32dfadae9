"""Random faults: kills, pauses, cuts, and messages that are corrupted, doubled or played again.

Whatever happens, no account is below what was answered, no round is answered twice with different numbers, nothing but
noised sums and public words leaves a site, and there is a release or a clean stop from which the run goes on.
"""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import EPSILONS, NAMES, UNITS, agreed, make_site

from veilset.core.errors import VeilsetError
from veilset.pipeline.federated.agreement import Agreement
from veilset.pipeline.federated.coordinator import Letter
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.local import LocalWire, run_locally
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.release.verify import verify_release

FAULTS = ("kill the server", "kill a site", "pause", "cut", "corrupt", "duplicate", "replay")
WORDS = {"name", "agreement", "taken", "signature", "round", "refused", "statement"}


class Weather(LocalWire):
    """A wire on which one kind of fault strikes, at moments that a seed chooses."""

    def __init__(self, desks: Mapping[str, Desk], agreement: Agreement, home: Path, chance: random.Random) -> None:
        super().__init__(desks)
        self._agreement, self._home, self._chance = agreement, home, chance
        self.fault = chance.choice(FAULTS)
        self._strikes = chance.randint(1, 3)
        self._held: list[Letter] = []
        self._old: list[Letter] = []
        self.answers: dict[tuple[str, int], set[bytes]] = {}

    def present(self) -> set[str]:
        if self._struck("kill a site", 0.2):
            name = self._chance.choice(NAMES)
            self.desks[name]._site.close()
            self.desks[name] = Desk(make_site(self._agreement, name, self._home), lambda _: None, clock=None)
            self._met.discard(name)  # as a wire does with a site that connects anew
        return super().present()

    def send(self, site: str, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        if self._struck("cut", 0.2):
            self._met.discard(site)  # the letter is lost, and the site comes back later
            return
        super().send(site, facts, tensors)

    def receive(self) -> list[Letter]:
        if self._struck("kill the server", 0.2):
            raise KeyboardInterrupt
        letters = super().receive()
        for letter in letters:
            self._look_at(letter)
        self._old += letters
        if self._struck("pause", 0.4):
            self._held += letters
            return []
        if self._struck("duplicate", 0.5):
            letters = [*letters, *letters]
        if self._old and self._struck("replay", 0.5):
            letters = [self._chance.choice(self._old), *letters]
        if letters and self._struck("corrupt", 0.3):
            letters[0] = self._corrupted(letters[0])
        held, self._held = self._held, []
        return held + letters

    def _struck(self, fault: str, chance: float) -> bool:
        if fault != self.fault or self._strikes == 0 or self._chance.random() > chance:
            return False
        self._strikes -= 1
        return True

    def _corrupted(self, letter: Letter) -> Letter:
        tensors = dict(letter.tensors)
        for name, tensor in tensors.items():
            changed = tensor.clone().flatten()
            changed[self._chance.randrange(len(changed))] = self._chance.choice([math.nan, math.inf, 1e30, -1.0])
            tensors[name] = changed.view(tensor.shape)
        facts = dict(letter.facts)
        if facts and not tensors:
            facts[self._chance.choice(sorted(facts))] = self._chance.choice([-1, "x", None, 10**9])
        return Letter(site=letter.site, facts=facts, tensors=tensors)

    def _look_at(self, letter: Letter) -> None:
        """Only words that are known and noised numbers leave; an answer stays the same however often it is sent."""
        assert set(letter.facts) <= WORDS
        assert set(letter.tensors) <= {"answer", "probe"}
        if "answer" in letter.tensors:
            key = (letter.site, letter.facts["round"])
            self.answers.setdefault(key, set()).add(letter.tensors["answer"].numpy().tobytes())


def survive(seed: int, home: Path) -> str:
    """One run in bad weather, and more in good weather where it stopped; the fault."""
    chance = random.Random(seed)
    agreement = agreed("sanitized_gan" if chance.random() < 0.3 else "merf")
    sent: dict[tuple[str, int], set[bytes]] = {}
    fault = ""
    for attempt in range(3):
        sites = {name: make_site(agreement, name, home) for name in NAMES}
        wires: list[Weather] = []

        def wire(desks: Mapping[str, Desk], made: list[Weather] = wires, attempt: int = attempt) -> Weather:
            made.append(Weather(desks, agreement, home, chance))
            if attempt:
                made[-1].fault = "none"
            return made[-1]

        try:
            release, _ = run_locally(sites, home, wire=wire)
            release.save(home / "release")
        except KeyboardInterrupt:
            pass
        except VeilsetError as error:
            if "Nothing is lost" not in str(error):
                raise
        finally:
            for desk in wires[0].desks.values():
                desk._site.close()
        fault = fault or wires[0].fault
        for key, found in wires[0].answers.items():
            sent.setdefault(key, set()).update(found)
        if (home / "release").exists():
            break
    assert all(len(found) == 1 for found in sent.values()), "a round was answered twice"
    found = verify_release(home / "release")
    assert found.ok, (fault, found.problems)
    for name in NAMES:
        lines = read_ledger(home / name / "ledger.jsonl")
        events = check_chain(lines)
        assert epsilon_of(events, 1e-3) <= EPSILONS[name] + 1e-6
        rounds = {number for site, number in sent if site == name}
        paid = sum(event.count for event in events)
        assert len(rounds) <= paid, f"{name} of {UNITS[name]} units answered more than it paid for"
        (reserved,) = Account(home / f"{name}.sqlite").reservations
        assert reserved.events
    return fault


@pytest.mark.parametrize("seed", range(10))
def test_a_run_survives_a_fault(seed: int, tmp_path: Path) -> None:
    survive(seed, tmp_path)


@pytest.mark.nightly
def test_a_hundred_faults(tmp_path: Path) -> None:
    seen = {survive(seed, tmp_path / str(seed)) for seed in range(100)}
    assert seen == set(FAULTS)
