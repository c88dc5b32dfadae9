"""Sites and server without a wire between them: what a site gives away, what it refuses, what the two certify."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.audit.neighbours import Neighbours, Recorder, neighbour_run, trace
from veilset.core.errors import BudgetError, InputError
from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.pipeline.federated.coordinator import Coordinator
from veilset.pipeline.federated.parts import declared_units, part_of
from veilset.pipeline.federated.proposal import Bounds
from veilset.pipeline.federated.schedule import Clock, Rehearsal, Schedule
from veilset.pipeline.federated.simulation import covered_by, plan_simulation, reserve_simulation
from veilset.pipeline.federated.site import Site
from veilset.pipeline.job import Job
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.privacy.noise import NoiseSource
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
    return Coordinator(SETTINGS, shape=(16, 16, 1), class_names=NAMES)


@pytest.fixture
def make_site(tmp_path: Path) -> Any:
    opened: list[Site] = []

    def make(
        name: str = "north",
        epsilon: float = 5.0,
        records: Records | None = None,
        declared: int | None = None,
        **options: Any,
    ) -> Site:
        vault = Vault(images(seed=len(opened)) if records is None else records)
        if declared is not None:
            vault.facts = replace(vault.facts, units=declared)
        options.setdefault("account", Account(tmp_path / f"{name}.sqlite"))
        opened.append(Site(name, vault, epsilon=epsilon, workspace=tmp_path / name, **options))
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
        assert epsilon_of(events, default_delta(40)) == pytest.approx(epsilon, abs=0.01)
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
        {**query, "fake_labels": query["fake_labels"] - 1},
        {**query, "points": query["points"] * float("nan")},
        {**query, "fakes": query["fakes"] / 0},
        {**query, "fakes": query["fakes"].double()},
        {**query, "labels": query["labels"].int()},
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


def test_the_plan_fixes_the_size_of_a_question(coordinator: Coordinator, make_site: Any, tmp_path: Path) -> None:
    site = make_site()
    coordinator.welcome(1, site.join(coordinator.invitation()))
    query = dict(coordinator.queries([1])[1])
    for batches in (0, 1, 2, 4, 4000):  # the plan has 1 update for warm critics and 3 for cold ones
        fakes, labels = (
            query[name][:1].repeat(batches, *(1,) * (query[name].ndim - 1)) for name in ("fakes", "fake_labels")
        )
        wrong = {**query, "fakes": fakes, "fake_labels": labels}
        if batches == 1:
            assert site.check(wrong) == 1
            continue
        with pytest.raises(InputError, match="Nothing was read"):
            site.answer(wrong)
    for size in (1, 3, 8):  # of 4 rows in each batch
        with pytest.raises(InputError, match="Nothing was read"):
            site.answer({**query, "fakes": query["fakes"][:, :1].repeat(1, size, 1)})
    assert [line["kind"] for line in read_ledger(tmp_path / "north" / "ledger.jsonl")] == ["open", "spend"]


def test_delta_is_the_sites_own(coordinator: Coordinator, make_site: Any) -> None:
    with pytest.raises(InputError, match="alone"):
        make_site("south").join(coordinator.invitation() | {"delta": 0.9})
    reply = make_site("north").join(coordinator.invitation())
    assert reply["delta"] == default_delta(40)
    assert make_site("east", delta=1e-7).join(coordinator.invitation())["delta"] == 1e-7


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1}, {"seed": "0"}, {"seed": True}, {"shape": "16x16x1"}, {"settings": []},
        {"settings": {"steps": 4}}, {"settings": {"steps": "4" * 100}}, {"units": 3}, {"epsilon": 100.0},
    ],
)  # fmt: skip
def test_an_invitation_of_another_form(change: dict[str, Any], coordinator: Coordinator, make_site: Any) -> None:
    with pytest.raises(InputError, match="Expected an invitation"):
        make_site().join(coordinator.invitation() | change)


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", "5001"), ("critic_batch", "100000"), ("warmup", "1000"), ("clip_norm", "1e-43"), ("clip_norm", "inf"),
     ("brightness", "nan"), ("points", "100000"), ("pictures", "10000000"), ("teacher_share", "0.3")],
)  # fmt: skip
def test_settings_outside_the_bounds_of_the_site(
    name: str, value: str, coordinator: Coordinator, make_site: Any, tmp_path: Path
) -> None:
    invitation = coordinator.invitation()
    with pytest.raises(InputError, match=name):
        make_site().join(invitation | {"settings": invitation["settings"] | {name: value}})
    assert not (tmp_path / "north" / "ledger.jsonl").exists()
    assert not Account(tmp_path / "north.sqlite").reservations


def test_a_custodian_may_move_the_bounds(coordinator: Coordinator, make_site: Any) -> None:
    with pytest.raises(InputError, match="--allow steps=4"):
        make_site(bounds=Bounds(most={"steps": 3})).join(coordinator.invitation())
    with pytest.raises(InputError, match="Unknown setting"):
        Bounds(most={"epsilon": 3})


def test_what_a_site_declares_is_what_its_custodian_declares(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site(records=images(43), declared=40)
    assert site.join(coordinator.invitation())["units"] == 40


class FakeClock:
    def __init__(self) -> None:
        self.time, self.slept = 100.0, [0.0]

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
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


def test_slots_are_public_and_fit_the_question(coordinator: Coordinator, make_site: Any) -> None:
    site = make_site()
    site.join(coordinator.invitation())
    found = site.rehearse()
    assert found.answer > 0
    assert site.steps_left == 4
    assert not site.has_read
    schedule = Schedule.of(Rehearsal(reading=1.01, answer=0.42), site.questions, None)
    assert (schedule.warm, schedule.cold) == (pytest.approx(0.9), pytest.approx(2.7))
    assert schedule.longest == pytest.approx(2.7 + 2.1)
    assert Schedule.of(found, site.questions, 5.0).warm == 5.0


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
    plain = images()
    groups = np.arange(40) // 4 if grouped else None
    all_rows = np.arange(40)
    full = ImageSet(plain.images, plain.labels, NAMES, groups)
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


def federation_of_parts(worlds: Neighbours) -> Any:
    """Sites of one dataset and their server, in one process; all that leaves a site, but its ledger."""

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> dict[str, bytes]:
        server = Coordinator(SETTINGS, shape=(16, 16, 1), class_names=NAMES)
        leaves: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory() as folder:  # ledgers name their run by chance
            sites = {}
            for number in (1, 2, 3):
                vault = Vault(part_of(records, number, 3), unit=worlds.facts.unit)
                vault.facts = replace(worlds.facts, units=declared_units(60, number, 3))
                home = Path(folder) / str(number)
                sites[number] = Site(f"site-{number}", vault, epsilon=5.0, workspace=home, noise=noise)
                reply = sites[number].join(server.invitation())
                leaves[f"joining {number}"] = repr(reply).encode()
                server.welcome(number, reply)
            for step in range(4):
                queries = server.queries([*sites])
                answers = {number: site.answer(queries[number]) for number, site in sites.items()}
                leaves |= {f"answer {step} of {number}": one.numpy().tobytes() for number, one in answers.items()}
                server.take(answers)
            for number, site in sites.items():
                certificate = site.certificate()
                leaves[f"certificate {number}"] = repr([certificate.epsilon, certificate.warnings]).encode()
                site.close()
            release = server.release(20, Path(folder))
            leaves["release"] = release.images.tobytes() + repr(release.certificate.warnings).encode()
        return leaves

    return play


@pytest.mark.parametrize("grouped", [False, True])
def test_a_federation_of_parts_passes_the_neighbour_run(grouped: bool) -> None:
    plain, more = images(60), images(4, seed=9)
    worlds = Neighbours(
        records=ImageSet(plain.images, plain.labels, NAMES, np.arange(60) // 2 if grouped else None),
        unit=ImageSet(more.images, more.labels, NAMES, np.full(4, 77)) if grouped else more.subset(np.array([0])),
        declared=60,
    )
    assert neighbour_run(federation_of_parts(worlds), worlds) == []


@pytest.mark.parametrize("by_number", [False, True])
def test_one_record_more_moves_the_sums_of_one_site(by_number: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_number:  # as it was: a record at the beginning moves all others
        monkeypatch.setattr(
            "veilset.pipeline.federated.parts.part_of_each",
            lambda records, count, key: np.arange(len(records.labels)) % count,
        )
    worlds = Neighbours(records=images(60), unit=images(2, seed=9).subset(np.array([0])), declared=60)
    play, first = federation_of_parts(worlds), Recorder()
    second = Recorder(first, worlds.keen)
    trace(play, worlds.records_of(None), first)
    trace(play, worlds.records_of("first"), second)
    movements = [one.movement(other) for one, other in zip(first.sums, second.sums, strict=True)]
    moved = {place % 3 for place, movement in enumerate(movements) if movement}
    assert len(moved) == (3 if by_number else 1)
    assert by_number or max(movements) <= 1


def test_a_simulation_charges_the_account_of_the_dataset_once(tmp_path: Path, make_site: Any) -> None:
    whole = Vault(images(60))
    job = Job(method="sanitized_gan", epsilon=3.0, settings=SETTINGS)
    account = Account(tmp_path / "dataset.sqlite")
    account.set_limit(Budget(4.0, 1e-3))
    plan = plan_simulation(job, whole.facts, 3)
    assert [event.shard for event in plan.events] == [0, 1, 2]
    run = reserve_simulation(account, job, plan, whole)
    assert account.spent(plan.budget.delta) == pytest.approx(3.0, abs=0.01)  # shards of one partition
    with pytest.raises(BudgetError, match="overdraw"):
        reserve_simulation(account, job, plan, whole)
    server = Coordinator(SETTINGS, shape=(16, 16, 1), class_names=NAMES)

    def site(name: str, number: int, epsilon: float = 3.0, data: Vault = whole) -> Site:
        own: Site = make_site(
            name,
            epsilon,
            part_of(images(60), min(number, 3), 3),
            declared=declared_units(60, number, 3),
            delta=plan.budget.delta,
            account=account,
            covered=covered_by(account, run, number, data),
        )
        return own

    for number in (1, 2, 3):
        server.welcome(number, site(f"site-{number}", number).join(server.invitation()))
    assert account.spent(plan.budget.delta) == pytest.approx(3.0, abs=0.01)  # sites add nothing to it
    with pytest.raises(BudgetError, match="no reservation"):
        site("site-4", 1, epsilon=3.1).join(server.invitation())
    with pytest.raises(BudgetError, match="no reservation"):
        site("site-5", 4).join(server.invitation())
    with pytest.raises(BudgetError, match="no reservation"):
        site("of other data", 1, data=Vault(images(60, seed=7))).join(server.invitation())
    with pytest.raises(BudgetError, match="has reserved its share"):
        site("site-1 once more", 1).join(server.invitation())
    account.end(run)
    with pytest.raises(BudgetError, match="no reservation"):
        site("too late", 2).join(server.invitation())


def test_many_small_sites_have_a_joint_delta_below_one_over_all_units(
    coordinator: Coordinator, make_site: Any, tmp_path: Path
) -> None:
    coordinator.welcome(1, make_site("small", 2.0, delta=0.02).join(coordinator.invitation()))
    coordinator.welcome(2, make_site("large", 2.0, images(60)).join(coordinator.invitation()))
    certificate = coordinator.release(20, tmp_path).certificate
    assert certificate.delta == default_delta(100)
    assert certificate.epsilon is not None
    assert certificate.epsilon > 2.0


def test_a_desk_answers_at_the_tick_and_in_fixed_words(coordinator: Coordinator, make_site: Any) -> None:
    pytest.importorskip("flwr", reason="needs the extra `federated`")
    from veilset.pipeline.federated.desk import Desk
    from veilset.pipeline.federated.messages import FAREWELL, INVITATION, QUESTION, bytes_of, pack, unpack

    class Slow(ImageSet):
        """One image more or less takes its time, or fails with words of its own."""

        def read(self, rows: Any) -> Any:
            fake.time += 0.01 * len(rows)
            if broken:
                raise RuntimeError("the scan of Mrs Miller is damaged")
            return super().read(rows)

    replies: list[list[tuple[float, int, str]]] = []
    at_home: list[str] = []
    for count in (40, 39):
        fake, broken = FakeClock(), False
        plain = images(count)
        site = make_site(f"site-{count}", records=Slow(plain.images, plain.labels, NAMES), declared=40)
        site.rehearse = lambda: Rehearsal(reading=0.5, answer=0.01)
        desk = Desk(site, at_home.append, clock=Clock(fake.now, fake.sleep))
        server = Coordinator(SETTINGS, shape=(16, 16, 1), class_names=NAMES)
        seen: list[tuple[float, int, str]] = []

        def hear(kind: str, content: Any, desk: Any = desk, fake: Any = fake, seen: Any = seen) -> Any:
            began = fake.time
            reply = desk.reply(kind, content)
            words = str(unpack(reply)[0].get("refused", ""))
            seen.append((round(fake.time - began, 6), bytes_of(reply), re.sub(r"site-\d+", "SITE", words)))
            return unpack(reply)

        server.welcome(1, hear(INVITATION, pack(server.invitation()))[0])
        question = dict(server.queries([1])[1])
        server.take({1: hear(QUESTION, pack({}, question))[1]["answer"]})
        hear(QUESTION, pack({}, server.queries([1])[1]))
        hear(QUESTION, pack({}, {"points": question["points"]}))
        hear(FAREWELL, pack({}))
        broken = True
        site._critics._shards = None  # as if it had to read again
        hear(QUESTION, pack({}, question))
        replies.append(seen)
    assert replies[0] == replies[1]
    slots = [seconds for seconds, _, _ in replies[0]]
    assert slots == pytest.approx([0.0, 1.0 + 0.3, 0.1, 0.0, 0.0, 0.3])
    assert replies[0][5][2] == "SITE does not answer: see its log."
    assert not any("Miller" in words for _, _, words in replies[0])
    assert any("Miller" in line for line in at_home)
