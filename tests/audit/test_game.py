"""The game on every mechanism: sound ones are not contradicted, and the record in question is seen.

Noise is seeded and bounds are asked for at 1 - 1e-6, so that a sound mechanism cannot fail here by chance.
"""

import inspect

import numpy as np
import pytest
import torch

from veilset.audit.game import MemoryLedger, Subject, Worlds, audit, play, seeded
from veilset.audit.mechanisms import (
    CLIP_NORM,
    MECHANISMS,
    dots,
    mechanism_subject,
    pixels,
    priced,
    small_network,
)
from veilset.core.errors import InputError, VeilsetError
from veilset.data.tensors import to_inputs
from veilset.dpsgd import ClippedGradients
from veilset.dpsgd.passes import cross_entropy
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.shard_votes import Ensemble
from veilset.privacy.session import Session

SURE = 1 - 1e-6
# What a session offers beside mechanisms.
NOT_MECHANISMS = {"finish", "records_without_guarantee", "ensemble"}


def test_every_mechanism_has_an_audit() -> None:
    offered = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    asked = {f"ensemble_{name}" for name, _ in inspect.getmembers(Ensemble, inspect.isfunction) if name[0] != "_"}
    missing = (offered - NOT_MECHANISMS | asked) - set(MECHANISMS)
    assert not missing, f"To do: add {sorted(missing)} to MECHANISMS in audit/mechanisms.py and to the Rehearsal."


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_sound_mechanism_is_not_contradicted_and_its_record_is_seen(name: str) -> None:
    subject = mechanism_subject(name, 4.0)
    scores = play(subject, 60, seeded(0))
    assert float(scores.present.mean()) > float(scores.without.mean()), "the score does not see the record"
    if all(event.sampling_rate == 1.0 for event in subject.plan.events):
        finding = audit(subject, runs=60, confidence=SURE, make_noise=seeded(1))
        assert not finding.contradicted


def test_scores_are_log_likelihood_ratios() -> None:
    """For one Gaussian at distance m they are normal with means -m^2/2 and m^2/2 and variance m^2; 5 deviations."""
    subject = mechanism_subject("gaussian_sum", 4.0)
    runs, distance = 800, 1 / subject.plan.events[0].noise_multiplier
    scores = play(subject, runs, seeded(0))
    for values, centre in ((scores.without, -(distance**2) / 2), (scores.present, distance**2 / 2)):
        assert float(values.mean()) == pytest.approx(centre, abs=5 * distance / runs**0.5)
        assert float(values.std()) == pytest.approx(distance, rel=5 / (2 * runs) ** 0.5)


def test_the_record_of_the_network_audit_has_the_clip_norm_and_no_more() -> None:
    """What the claim of `dpsgd_network` rests on, without noise."""
    worlds, gradients = dots(), ClippedGradients(small_network(), cross_entropy, CLIP_NORM)
    inputs, labels = to_inputs(torch.from_numpy(worlds.images)), torch.from_numpy(worlds.labels)
    both, other = (gradients.sum(inputs[:count], labels[:count]) for count in (2, 1))
    moved = sum(float((a - b).double().square().sum()) for a, b in zip(both, other, strict=True)) ** 0.5
    assert CLIP_NORM * (1 - 1e-3) < moved <= CLIP_NORM


def test_the_real_path_is_played_and_paid() -> None:
    """The rehearsed session spends its plan, and each play spends an event of its own before it reads."""
    spent: list[int] = []

    class Counting(MemoryLedger):
        def spend(self, event: Event) -> int:
            spent.append(1)
            return super().spend(event)

    import veilset.audit.rehearsal as rehearsal

    subject = mechanism_subject("gaussian_sum", 1.0)
    original, rehearsal.MemoryLedger = rehearsal.MemoryLedger, Counting
    try:
        play(subject, 30, seeded(0))
    finally:
        rehearsal.MemoryLedger = original
    assert len(spent) == 30 + 30 + 2 + 1  # both worlds, their noise-free sums, and the run itself


def test_what_ends_early_or_is_sampled_with_many_others_is_refused() -> None:
    plan = priced(1.0, Event(label="sum", noise_multiplier=1.0))
    with pytest.raises(VeilsetError, match="not audited"):
        play(Subject(name="idle", plan=plan, worlds=dots(), spend=lambda session: None), 20)
    sampled = priced(1.0, Event(label="sum", noise_multiplier=1.0, sampling_rate=0.5))

    def spend(session: Session) -> None:
        session.gaussian_sum(pixels, sampled.events[0], clip_norm=1.0)

    with pytest.raises(VeilsetError, match="one other"):
        play(Subject(name="many", plan=sampled, worlds=dots(4), spend=spend), 20)


def test_both_worlds_declare_the_same_facts() -> None:
    worlds = dots()
    assert worlds.vault(present=True).facts == worlds.vault(present=False).facts == worlds.facts
    with pytest.raises(VeilsetError, match="at least one record"):
        Worlds(images=np.zeros((1, 4, 4, 1), dtype=np.uint8), labels=np.zeros(1, dtype=np.int64), classes=1)


def test_seeded_noise_repeats_and_its_streams_differ() -> None:
    first, second = seeded(3), seeded(3)
    one, two = first().normal(4), first().normal(4)
    assert torch.equal(one, second().normal(4))
    assert not torch.equal(one, two)


def test_an_unknown_mechanism_is_named() -> None:
    with pytest.raises(InputError, match="Did you mean gaussian_sum"):
        mechanism_subject("gausian_sum", 1.0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gaussian_sum", "dpsgd_step"])
@pytest.mark.parametrize(("epsilon", "runs"), [(1.0, 20_000), (4.0, 4000)])
def test_the_audit_has_power(name: str, epsilon: float, runs: int) -> None:
    finding = audit(mechanism_subject(name, epsilon), runs=runs, make_noise=seeded(0))
    assert 0.8 * finding.claimed_epsilon <= finding.lower_bound <= finding.claimed_epsilon
