"""A federation in one process, on neighbouring datasets: one site's sums move, and no message does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilset.audit.neighbour_methods import NAMES, plain
from veilset.audit.neighbours import Neighbours, Recorder, differences, trace
from veilset.data.images import ImageSet
from veilset.data.selection import key_of, part_of_each
from veilset.pipeline.federated.coordinator import Coordinator
from veilset.pipeline.federated.site import Site
from veilset.privacy.account import Account
from veilset.privacy.noise import NoiseSource
from veilset.privacy.vault import Vault

SITES = 2
SETTINGS = {
    "steps": "3", "points": "4", "critics": "3", "warmup": "2", "critic_updates": "1", "critic_batch": "4",
    "pictures": "40", "code_size": "8", "width": "16", "latent_size": "8",
}  # fmt: skip


def test_every_message_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: Neighbours = plain(60)

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
        monkeypatch.setattr("veilset.pipeline.federated.site.NoiseSource", lambda *_, **__: noise)
        coordinator = Coordinator(SETTINGS, shape=records.shape, class_names=NAMES)
        owner = part_of_each(records, SITES, key_of(0, "sites"))
        wire: dict[str, bytes] = {}
        sites = {}
        for number in range(SITES):
            vault = Vault(records.subset(np.flatnonzero(owner == number)))
            vault.facts = replace(worlds.facts, units=500)
            home = workspace.parent / f"site-{number}"
            account = Account(home / "account.sqlite")
            sites[number] = Site(f"site-{number}", vault, epsilon=5.0, workspace=home / "work", account=account)
            reply = sites[number].join(coordinator.invitation())
            wire[f"reply of {number}"] = json.dumps(reply, sort_keys=True).encode()
            coordinator.welcome(number, reply)
        for step in range(3):
            queries = coordinator.queries(list(sites))
            answers = {number: site.answer(queries[number]) for number, site in sites.items()}
            wire |= {f"answer {step} of {number}": answer.numpy().tobytes() for number, answer in answers.items()}
            coordinator.take(answers)
        for site in sites.values():
            site.close()
        coordinator.release(10, workspace).save(workspace / "release")
        return wire

    first = Recorder()
    without = trace(play, worlds.records, first)
    for place in worlds.places:
        present = trace(play, worlds.records_of(place), Recorder(first, worlds.keen))
        assert differences(without, present) == []
        pairs = enumerate(zip(first.sums, present.recorder.sums, strict=True))
        moved = {number % SITES for number, (one, other) in pairs if one.movement(other) > 0}
        assert len(moved) == 1, "a unit is at one site, which asks its critics in every step"
