"""dpgan: its plan, the private half of a critic step on neighbouring data, resuming, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import run_with

from veilset.audit.game import MemoryLedger
from veilset.core.errors import InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.base import Context
from veilset.methods.dpgan.adversaries import Adversaries
from veilset.methods.dpgan.config import Dpgan, DpganSettings
from veilset.methods.dpgan.method import RealHalf
from veilset.methods.shared.gan import too_alike
from veilset.models.generators.conditional import rebuild_generator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import check_chain
from veilset.privacy.mechanisms.dpsgd_steps import GradientSteps
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
TINY = {"steps": "6", "random_features": "64", "pictures": "60", "generated_batch": "8", "replay": "2"}
CRITICS = ("kernel", "scattering", "dcgan", "resnet")


class NoNoise(NoiseSource):
    def normal(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


def pictures(count: int, first: int = 0) -> torch.Tensor:
    drawn = drawn_patterns(count + first, 16, 1, torch.Generator().manual_seed(3))[first:]
    return (drawn * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


@pytest.fixture
def records() -> ImageSet:
    return ImageSet(pictures(300).numpy(), np.arange(300) % 2)


def job(**settings: str) -> Job:
    return Job(method="dpgan", epsilon=10.0, samples=20, insecure_seed=0, settings={**TINY, **settings})


def adversaries(critic: str, **settings: Any) -> Adversaries:
    method = Dpgan.configure("default", {**TINY, "critic": critic, "teacher_share": "0", **settings})
    facts = PublicFacts(units=50, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    made = Adversaries(method.plan(facts, Budget(10.0, 1e-5)), facts, None, Context())
    made.begin(None)
    return made


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("preset", ["default", "plain", "convolutional"])
def test_the_plan_spends_the_budget_and_no_more(preset: str, epsilon: float) -> None:
    plan = Dpgan.configure(preset).plan(FACTS, Budget(epsilon, 1e-5))
    assert 0.98 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon * (1 + 1e-9)
    assert plan.events[-1].label == "critic"
    assert ("teacher" in [event.label for event in plan.events]) == (preset != "plain")


@pytest.mark.parametrize("loss", ["bce", "hinge", "wasserstein"])
@pytest.mark.parametrize("critic", CRITICS)
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(critic: str, loss: str) -> None:
    """Neighbours: the same batch with and without a record, for a critic that has already learned something."""
    made = adversaries(critic, loss=loss, clip_norm="0.01")
    real = RealHalf(made)
    images, labels = pictures(9), torch.arange(9) % 2
    seen = real.features(images, labels) if made.config.is_linear else images
    for parameter in made.parameters:
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
    whole = real.clipped_sum(seen, labels)
    without = real.clipped_sum(seen[:-1], labels[:-1])
    moved = torch.cat([(a - b).flatten() for a, b in zip(whole, without, strict=True)]).norm()
    assert moved <= 0.01
    alone = torch.cat([part.flatten() for part in real.clipped_sum(seen[-1:], labels[-1:])]).norm()
    torch.testing.assert_close(moved, alone, rtol=1e-2, atol=1e-5)


def test_the_critic_learns_to_tell_and_the_generator_follows() -> None:
    """On one kind of picture, without noise: bright ones are real, and the generator becomes brighter."""
    made = adversaries("kernel", most_critic_steps="1", critic_steps="1", generated_batch="16")
    bright = torch.full((40, 16, 16, 1), 230, dtype=torch.uint8)
    labels = torch.arange(40) % 2
    real = RealHalf(made)
    seen = real.features(bright, labels)
    before = float(made.of_generator.draw(20, "look")[0].detach().mean())
    for _ in range(25):
        made.turn([total.float() / 40 for total in real.clipped_sum(seen, labels)], done=0.0)
    assert float(made.of_generator.draw(20, "look")[0].detach().mean()) > before + 0.1


@pytest.mark.parametrize("critic", ["kernel", "scattering"])
def test_the_wasserstein_gradient_of_a_linear_critic_does_not_depend_on_the_critic(critic: str) -> None:
    """So it is asked for once, in one full sum, and has less noise than steps of the same budget on average."""
    made = adversaries(critic)
    real = RealHalf(made)
    images, labels = pictures(9), torch.arange(9) % 2
    seen = real.features(images, labels)
    before = real.clipped_sum(seen, labels)
    torch.nn.init.normal_(made.parameters[0], std=5.0, generator=torch.Generator().manual_seed(1))
    after = real.clipped_sum(seen, labels)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    once = Dpgan.configure("plain", {"critic": critic}).plan(FACTS, Budget(1.0, 1e-5)).critic
    often = Dpgan.configure("plain", {"critic": critic, "loss": "hinge"}).plan(FACTS, Budget(1.0, 1e-5)).critic
    assert (once.count, once.sampling_rate) == (1, 1.0)
    # A moving average over `real_memory` steps, 100, has the noise of 199 steps that count alike.
    noise_of_mean = often.noise_multiplier / (often.sampling_rate * FACTS.units) / 199**0.5
    assert once.noise_multiplier / FACTS.units < 0.75 * noise_of_mean


@pytest.mark.parametrize("critic", ["kernel", "scattering"])
def test_what_is_released_once_is_the_gradient_of_every_step(critic: str) -> None:
    made = adversaries(critic)
    images, labels = pictures(50), torch.arange(50) % 2
    event = Event(label="critic", noise_multiplier=1.0)
    vault = Vault(ImageSet(images.numpy(), labels.numpy()))
    session = Session(vault, Plan(budget=Budget(1e6, 1e-5), events=(event,)), MemoryLedger(), NoNoise(1))
    real = RealHalf(made)
    once, _ = real.for_all_steps(session, event)
    (every,) = real.clipped_sum(real.features(images, labels), labels)
    torch.testing.assert_close(once, every.float() / 50, rtol=0.05, atol=2e-3)


@pytest.mark.parametrize("critic", ["scattering", "dcgan"])
def test_a_whole_run_of_other_critics(critic: str, records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(critic=critic, teacher_share="0", steps="3"), workspace=tmp_path / "run")
    assert np.bincount(release.labels).tolist() == [10, 10]
    weights, description = release.models["generator"]
    rebuilt = rebuild_generator(description, dict(weights))
    assert rebuilt(torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64)).shape == (1, 1, 16, 16)


def test_images_of_a_class_are_pushed_apart() -> None:
    """The same steps with and without the push: images that it moved differ more."""

    def difference(least: str) -> float:
        made = adversaries("kernel", least_difference=least, generator_learning_rate="0.01", generated_batch="16")
        for _ in range(25):
            made.generator_step(1.0)
        images, _ = made.of_generator.draw(16, "look")
        return 0.5 - float(too_alike(images.detach(), 2, 0.5))

    assert difference("0.5") > difference("0") + 0.02


def test_smooth_images_with_noise_are_released(records: ImageSet, tmp_path: Path) -> None:
    settings = {"generator": "smooth", "image_noise": "0.3", "variation": "turned", "least_difference": "0.2"}
    release = run(Vault(records), job(**settings), workspace=tmp_path / "run")
    assert release.images.shape == (20, 16, 16, 1)
    assert release.certificate.settings["variation"] == "turned"


def test_a_run_goes_on_where_its_last_lease_ended(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that were leased are not taken again: the resumed run has the plan's steps and no more."""
    real, taken = GradientSteps.step, []

    def stop(steps: GradientSteps, clipped_sum: Any) -> list[torch.Tensor]:
        steps.lease_size = 2
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(steps.event.label)
        return real(steps, clipped_sum)

    monkeypatch.setattr(GradientSteps, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        run(Vault(records), job(teacher_share="0", loss="hinge"), workspace=tmp_path / "run")
    taken.append("the step that was cut off")
    release = run(Vault(records), job(teacher_share="0", loss="hinge"), workspace=tmp_path / "run", resume=True)
    assert taken == ["critic"] * 3 + ["the step that was cut off"] + ["critic"] * 2
    assert epsilon_of(check_chain(release.certificate.ledger), default_delta(300)) <= 10


def test_collapse_stands_in_the_certificate(records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def black(*arguments: Any, **named: Any) -> np.ndarray:
        return np.zeros((len(arguments[1]), 16, 16, 1), dtype=np.uint8)

    monkeypatch.setattr("veilset.methods.shared.fitted_generator.sample_images", black)
    release = run(Vault(records), job(teacher_share="0", steps="1"), workspace=tmp_path / "run")
    assert any("Mode collapse" in warning for warning in release.certificate.warnings)


def test_divergence_stops_the_run() -> None:
    made = adversaries("kernel")
    torch.nn.init.constant_(made.parameters[0], float("inf"))
    with pytest.raises(VeilsetError, match="diverged"):
        made.generator_step(1.0)


def test_pretraining_needs_public_images_and_uses_them(records: ImageSet, tmp_path: Path) -> None:
    wanted = job(pretraining_steps="2", teacher_share="0", steps="2")
    with pytest.raises(InputError, match="needs public images"):
        run(Vault(records), wanted, workspace=tmp_path / "without")
    public = ImageSet(pictures(40, first=300).numpy(), np.zeros(40, dtype=np.int64))
    with_public = run_with(records, wanted, workspace=tmp_path / "with", public=public)
    plain = run(Vault(records), job(teacher_share="0", steps="2"), workspace=tmp_path / "plain")
    assert not np.array_equal(with_public.images, plain.images)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "vgg"}, "critic to be one of"),
        ({"loss": "lsgan"}, "loss to be one of bce, hinge, wasserstein"),
        ({"steps": 0}, "steps to be a whole number of at least 1"),
        ({"clip_norm": 0.0}, "clip_norm to be a number of at least"),
        ({"teacher_share": 1.0}, "teacher_share"),
        ({"critic_steps": 9, "most_critic_steps": 4}, "critic_steps"),
        ({"random_features": 6}, "multiple of 4"),
        ({"penalty": 1.0}, "linear critic"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DpganSettings(**settings)
