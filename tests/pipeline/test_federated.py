"""Sites and server without a wire between them: what a site gives away, what it refuses, what the two certify."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.pipeline.federated.coordinator import Coordinator
from veilset.pipeline.federated.site import Site
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.privacy.vault import Vault
from veilset.release.verify import verify_release

SETTINGS = {
    "steps": "4", "points": "4", "critics": "3", "warmup": "2", "critic_updates": "1", "critic_batch": "4",
    "pictures": "40", "code_size": "8", "width": "16", "latent_size": "8",
}  # fmt: skip
NAMES = ("no", "yes")


def images(count: int = 40, seed: int = 0, size: int = 16) -> ImageSet:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count) % 2, class_names=NAMES)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(SETTINGS, shape=(16, 16, 1), class_names=NAMES, delta=1e-5)


@pytest.fixture
def make_site(tmp_path: Path) -> Any:
    opened: list[Site] = []

    def make(name: str = "north", epsilon: float = 5.0, records: ImageSet | None = None, **options: Any) -> Site:
        vault = Vault(images(seed=len(opened)) if records is None else records)
        account = Account(tmp_path / f"{name}.sqlite")
        opened.append(Site(name, vault, epsilon=epsilon, workspace=tmp_path / name, account=account, **options))
        return opened[-1]

    yield make
    for site in opened:
        site.close()


def test_sites_train_a_generator_and_every_ledger_agrees_with_its_plan(
    coordinator: Coordinator, make_site: Any, tmp_path: Path
) -> None:
    sites = {1: make_site("north", 5.0), 2: make_site("south", 2.0)}
    for node, site in sites.items():
        coordinator.welcome(node, site.join(coordinator.invitation()))
    for step in range(4):
        there = [1] if step == 2 else [1, 2]  # one is away for a step
        queries = coordinator.queries(there)
        coordinator.take({node: sites[node].answer(queries[node]) for node in there})
    coordinator.release(20, tmp_path).save(tmp_path / "release")
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(5.0, abs=0.01)  # the largest of the sites', not their sum
    for name, epsilon in (("north", 5.0), ("south", 2.0)):
        events = check_chain(read_ledger(tmp_path / name / "ledger.jsonl"))
        assert epsilon_of(events, 1e-5) == pytest.approx(epsilon, abs=0.01)
    certificate = sites[2].certificate()
    assert certificate.epsilon == pytest.approx(2.0, abs=0.01)
    assert sites[2].steps_left == 1


def test_a_plan_is_paid_before_a_record_is_read(coordinator: Coordinator, make_site: Any, tmp_path: Path) -> None:
    class Watched(ImageSet):
        def read(self, rows: Any) -> Any:
            seen.append([line["kind"] for line in read_ledger(tmp_path / "north" / "ledger.jsonl")])
            return super().read(rows)

    seen: list[list[str]] = []
    plain = images()
    site = make_site(records=Watched(plain.read(np.arange(40)), plain.labels, class_names=NAMES))
    site.join(coordinator.invitation())
    seen.clear()
    site.answer(coordinator.queries([1])[1])
    assert seen
    assert all(kinds == ["open", "spend", "lease"] for kinds in seen)


def test_a_site_that_has_spent_its_plan_answers_no_more(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site()
    coordinator.welcome(1, site.join(coordinator.invitation()))
    query = coordinator.queries([1])[1]
    for _ in range(4):
        site.answer(query)
    with pytest.raises(BudgetError, match="are taken"):
        site.answer(query)


def test_the_same_invitation_may_come_again_and_another_is_refused(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site()
    invitation = coordinator.invitation()
    assert site.join(invitation) == site.join(invitation)
    with pytest.raises(BudgetError, match="second plan"):
        site.join(invitation | {"settings": invitation["settings"] | {"steps": "9"}})


def test_a_site_that_comes_back_goes_on_after_its_leases(
    coordinator: Coordinator, make_site: Any, tmp_path: Path
) -> None:
    first = make_site("north")
    coordinator.welcome(1, first.join(coordinator.invitation()))
    first.answer(coordinator.queries([1])[1])
    first.close()
    again = Site("north", Vault(images(seed=0)), epsilon=5.0, workspace=tmp_path / "north")
    assert again.join(coordinator.invitation())["steps_left"] == 3
    again.close()


def test_new_critics_get_more_batches_to_learn_from(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site()
    coordinator.welcome(1, site.join(coordinator.invitation()))
    assert len(coordinator.queries([1])[1]["fakes"]) == 3
    coordinator.take({1: site.answer(coordinator.queries([1])[1])})
    coordinator.welcome(2, make_site("south").join(coordinator.invitation()))
    both = coordinator.queries([1, 2])
    assert [len(both[node]["fakes"]) for node in (1, 2)] == [1, 3]
    assert torch.equal(both[1]["points"], both[2]["points"])


def test_answers_are_noise_with_a_little_signal(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site(epsilon=1.0)
    reply = site.join(coordinator.invitation())
    answer = site.answer(coordinator.queries([1])[1])
    spread = 2 * 0.01 * float(reply["event"]["noise_multiplier"])
    assert float(answer.std()) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"shape": [32, 32, 1]}, "expects images of"), ({"class_names": ["a", "b"]}, "expects images of")],
)
def test_a_server_that_expects_other_images(
    change: dict[str, Any], message: str, coordinator: Coordinator, make_site: Any
) -> None:
    with pytest.raises(InputError, match=message):
        make_site().join(coordinator.invitation() | change)


def test_a_query_of_another_form_costs_nothing(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site()
    coordinator.welcome(1, site.join(coordinator.invitation()))
    query = coordinator.queries([1])[1]
    for wrong in (
        {"points": query["points"]},
        {**query, "points": query["points"][:2]},
        {**query, "more": torch.ones(1)},
        {**query, "labels": query["labels"] + 2},
    ):
        with pytest.raises(InputError, match="Nothing was read"):
            site.answer(wrong)
    assert site.steps_left == 4


def test_two_sites_of_one_name_or_of_other_units(coordinator: Coordinator, make_site: Any) -> None:
    reply = make_site().join(coordinator.invitation())
    coordinator.welcome(1, reply)
    with pytest.raises(InputError, match="two sites called north"):
        coordinator.welcome(2, reply)
    with pytest.raises(InputError, match="Agree on one"):
        coordinator.welcome(2, reply | {"name": "south", "unit": "group"})
    with pytest.raises(InputError, match="not of the form"):
        coordinator.welcome(2, {"name": "south"})
