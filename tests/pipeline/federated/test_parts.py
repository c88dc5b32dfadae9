"""A simulated federation: parts of one dataset by each unit's own hash, one account, and the neighbour run over all."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import CLASSES, images

from veilset.audit.neighbours import Neighbours, neighbour_run, trace
from veilset.audit.recorder import Recorder
from veilset.core.errors import BudgetError
from veilset.data.images import ImageSet
from veilset.pipeline.federated.admission import KEY, make_request
from veilset.pipeline.federated.agreement import Agreement, Rule
from veilset.pipeline.federated.local import run_locally
from veilset.pipeline.federated.parts import declared_units, part_of
from veilset.pipeline.federated.server import draw_agreement
from veilset.pipeline.federated.simulation import covered_by, plan_simulation, reserve_simulation
from veilset.pipeline.federated.site import Site
from veilset.pipeline.job import Job
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.noise import NoiseSource
from veilset.privacy.vault import PublicFacts, Vault

SITES = 3


class Streamed:
    """Records that are no ImageSet, as a folder's are not."""

    def __init__(self, inner: ImageSet) -> None:
        self.shape, self.labels, self.groups, self.class_names = (
            inner.shape, inner.labels, inner.groups, inner.class_names,
        )  # fmt: skip
        self.read, self.digests = inner.read, inner.digests


@pytest.mark.parametrize("place", [0, 17, 39])
@pytest.mark.parametrize("grouped", [False, True])
def test_one_unit_less_changes_one_part(place: int, grouped: bool) -> None:
    plain = images(40, 0)
    groups = np.arange(40) // 4 if grouped else None
    all_rows = np.arange(40)
    full = ImageSet(plain.images, plain.labels, CLASSES, groups)
    left = np.flatnonzero(groups != groups[place]) if groups is not None else np.delete(all_rows, place)
    parts = [[part_of(Streamed(records), number, 3) for number in (1, 2, 3)] for records in (full, full.subset(left))]
    rows = [[part.read(np.arange(len(part.labels))).tobytes() for part in world] for world in parts]
    digests = [[part.digests().tobytes() for part in world] for world in parts]
    assert sum(one != other for one, other in zip(*rows, strict=True)) == 1
    assert [a == b for a, b in zip(*rows, strict=True)] == [a == b for a, b in zip(*digests, strict=True)]
    assert sum(len(part.labels) for part in parts[0]) == 40
    if grouped:
        owners = [set(map(int, part.groups)) for part in parts[0] if part.groups is not None]
        assert sum(map(len, owners)) == len(set().union(*owners)) == 10


def agreement_of(homes: Path, whole: PublicFacts, method: str, epsilon: float = 5.0) -> Agreement:
    """Keys in `homes`, and an agreement of sites that share out one dataset."""
    requests = []
    for number in range(1, SITES + 1):
        facts = replace(whole, units=declared_units(whole.units, number, SITES))
        requests.append(
            make_request(homes / str(number), facts, name=f"site-{number}", epsilon=epsilon, delta=default_delta(60))
        )
    rule = Rule(min_sites=SITES, step_seconds=0.0, sum_seconds=0.0, patience=0.0)
    return draw_agreement(requests, Job(method=method, epsilon=1.0, preset="smoke", samples=20), rule, None)


def federation_of_parts(worlds: Neighbours, method: str, homes: Path) -> Any:
    """Sites of one dataset and their server, in one process; all that leaves a site, but its ledger."""
    agreement = agreement_of(homes, worlds.facts, method)

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> dict[str, bytes]:
        leaves: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory() as folder:  # ledgers name their run by chance
            sites = {}
            for number in range(1, SITES + 1):
                vault = Vault(part_of(records, number, SITES), unit=worlds.facts.unit)
                home = Path(folder) / str(number)
                key = (homes / str(number) / KEY).read_bytes()
                name = f"site-{number}"
                account = Account(home / "account")
                sites[name] = Site(name, agreement, vault, key=key, workspace=home, account=account, noise=noise)
            release, coordinator = run_locally(sites, Path(folder))
            for number in range(coordinator.rounds):
                result = coordinator.state.result(number)
                assert result is not None
                leaves[f"result {number}"] = result.numpy().tobytes()
            leaves["release"] = release.images.tobytes() + repr(release.certificate.warnings).encode()
            leaves["bytes"] = repr([coordinator.bytes_sent, coordinator.bytes_received]).encode()
            leaves["places"] = repr([coordinator.state.banned, coordinator.state.counted(0)]).encode()
        return leaves

    return play


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("method", ["merf", pytest.param("sanitized_gan", marks=pytest.mark.slow)])
def test_a_federation_of_parts_passes_the_neighbour_run(method: str, grouped: bool, tmp_path: Path) -> None:
    plain, more = images(60, 0), images(4, 9)
    worlds = Neighbours(
        records=ImageSet(plain.images, plain.labels, CLASSES, np.arange(60) // 2 if grouped else None),
        unit=ImageSet(more.images, more.labels, CLASSES, np.full(4, 77)) if grouped else more.subset(np.array([0])),
        declared=60,
    )
    assert neighbour_run(federation_of_parts(worlds, method, tmp_path), worlds) == []


@pytest.mark.parametrize("by_number", [False, True])
def test_one_record_more_moves_the_sums_of_one_site(
    by_number: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_number:  # as it must not be: a record at the beginning moves all others
        monkeypatch.setattr(
            "veilset.pipeline.federated.parts.part_of_each",
            lambda records, count, key: np.arange(len(records.labels)) % count,
        )
    worlds = Neighbours(records=images(60, 0), unit=images(2, 9).subset(np.array([0])), declared=60)
    play, first = federation_of_parts(worlds, "merf", tmp_path), Recorder()
    second = Recorder(first, worlds.keen)
    trace(play, worlds.records_of(None), first)
    trace(play, worlds.records_of("first"), second)
    movements = [one.movement(other) for one, other in zip(first.sums, second.sums, strict=True)]
    moved = {place % SITES for place, movement in enumerate(movements) if movement}
    assert len(moved) == (SITES if by_number else 1)
    assert by_number or max(movements) <= 1


def test_a_simulation_charges_the_account_of_the_dataset_once(tmp_path: Path) -> None:
    whole, account = Vault(images(60, 0)), Account(tmp_path / "dataset.sqlite")
    account.set_limit(Budget(4.0, 1e-3))
    agreement = agreement_of(tmp_path / "homes", whole.facts, "merf", epsilon=3.0)
    dearer = agreement_of(tmp_path / "dearer", whole.facts, "merf", epsilon=3.1)
    plan = plan_simulation(agreement)
    assert {event.shard for event in plan.events} == {0, 1, 2}
    run = reserve_simulation(account, agreement, whole)
    assert account.spent(plan.budget.delta) == pytest.approx(3.0, abs=0.01)  # shards of one partition
    with pytest.raises(BudgetError, match="overdraw"):
        reserve_simulation(account, agreement, whole)

    def site(number: int, place: str, agreed: Agreement = agreement, data: Vault = whole, shard: int = 0) -> Site:
        homes = tmp_path / ("homes" if agreed is agreement else "dearer")
        return Site(
            f"site-{number}",
            agreed,
            Vault(part_of(images(60, 0), number, SITES)),
            key=(homes / str(number) / KEY).read_bytes(),
            workspace=tmp_path / place,
            account=account,
            covered=covered_by(account, run, shard or number, data),
        )

    for number in (1, 2, 3):
        own = site(number, f"work-{number}")
        own.join()
        own.close()
    assert account.spent(plan.budget.delta) == pytest.approx(3.0, abs=0.01)  # sites add nothing to it
    for wrong in (
        site(1, "dearer", agreed=dearer),
        site(1, "fourth", shard=4),
        site(1, "of other data", data=Vault(images(60, 7))),
    ):
        with pytest.raises(BudgetError, match="no reservation"):
            wrong.join()
    with pytest.raises(BudgetError, match="has reserved its share"):
        site(1, "once more").join()
    account.end(run)
    with pytest.raises(BudgetError, match="no reservation"):
        site(2, "too late").join()
