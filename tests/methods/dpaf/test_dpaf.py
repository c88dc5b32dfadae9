"""dpaf: the counter-example to the paper's theorem, both private sums on neighbouring data, plans and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.base import Context
from veilset.methods.dpaf import as_published
from veilset.methods.dpaf.aggregate import NoisyMeans, block_means, class_rows, row_bound, upstream_gradient
from veilset.methods.dpaf.config import Dpaf, DpafPlan, DpafSettings
from veilset.methods.dpaf.critic import build_critic, simplified_instance_norm
from veilset.methods.dpaf.layout import Layout, feature_bound
from veilset.methods.dpaf.method import clipped_gradients, clipped_rows
from veilset.methods.dpaf.training import AggregatedTraining
from veilset.methods.shared.gan import too_alike
from veilset.models.generators.conditional import build_generator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of, gaussian_epsilon
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.ledger import check_chain
from veilset.privacy.mechanisms.dpsgd_steps import GradientSteps
from veilset.privacy.vault import PublicFacts, Vault

FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
SMALL_FACTS = PublicFacts(units=100, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
TINY = {
    "layout": "C1-C1-x", "steps": "6", "mu": "2", "width": "4", "generated_batch": "8", "conv1_steps": "3",
    "teacher_share": "0",
}  # fmt: skip


def pictures(count: int, first: int = 0) -> torch.Tensor:
    drawn = drawn_patterns(count + first, 16, 1, torch.Generator().manual_seed(3))[first:]
    return (drawn * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


@pytest.fixture
def records() -> ImageSet:
    return ImageSet(pictures(300).numpy(), np.arange(300) % 2)


def job(**settings: str) -> Job:
    return Job(method="dpaf", epsilon=10.0, samples=20, insecure_seed=0, settings={**TINY, **settings})


def training(**settings: Any) -> AggregatedTraining:
    wanted = Dpaf.configure("default", {**TINY, **settings}).settings
    generator = build_generator("modulated", size=16, channels=1, classes=2)
    critic = build_critic(wanted, SMALL_FACTS, 0)
    return AggregatedTraining(wanted, critic, generator, None, SMALL_FACTS, Context())


def test_theorem_1_of_the_paper_does_not_hold() -> None:
    """DPSGD on the first half beside plain SGD on the second: claimed epsilon below 1, told apart without error."""
    batch, clip, sigma = 1000, 1.0, 6.0
    target = torch.ones(batch)

    def released(present: bool) -> float:
        t = torch.cat([target, torch.tensor([-3.0 * batch])]) if present else target
        x = torch.ones(len(t))
        a, w = 1.0, 0.0
        w = w - 0.1 / batch * float(((w * a * x - t) * a * x).sum())  # plain SGD on the second half
        per_image = (w * a * x - t) * w * x  # gradient of the first half, image by image
        return float(per_image.clamp(-clip, clip).sum()) + sigma * clip * float(torch.randn(()))

    assert gaussian_epsilon(sigma, 1e-5) < 1
    without, present = ([released(world) for _ in range(200)] for world in (False, True))
    assert max(without) < 0 < min(present)
    assert (min(present) - max(without)) > 30 * sigma * clip


def test_sin_bounds_every_row() -> None:
    maps = 100 * torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    rows = simplified_instance_norm(maps).flatten(1)
    assert rows.norm(dim=1).max() <= (3 * 16) ** 0.5 * (1 + 1e-6)
    assert rows.norm(dim=1).min() > 0.99 * (3 * 16) ** 0.5
    alone = simplified_instance_norm(maps[2:3]).flatten(1)
    torch.testing.assert_close(rows[2:3], alone)


def test_one_record_moves_the_aggregate_by_at_most_its_bound_and_in_its_class_only() -> None:
    made = training()
    rows, labels = made.rows(pictures(9).permute(0, 3, 1, 2).float() / 255), torch.arange(9) % 2
    (whole,), (without,) = clipped_rows(made, rows, labels), clipped_rows(made, rows[:-1], labels[:-1])
    moved = whole - without
    assert moved.norm() <= row_bound(made.features) * (1 + 1e-5)
    assert moved.norm() > 0.9 * row_bound(made.features)
    assert moved[1].norm() == 0
    (empty,) = clipped_rows(made, rows[:0], labels[:0])
    assert empty.abs().sum() == 0


@pytest.mark.parametrize("brightness", ["0.5", "2"])
def test_a_coarse_picture_is_part_of_the_bound(brightness: str) -> None:
    made = training(brightness=brightness)
    white = torch.ones(1, 1, 16, 16)
    rows = made.rows(torch.cat([white, 0 * white, torch.rand(3, 1, 16, 16)]))
    found = made.features(rows, torch.zeros(5, dtype=torch.int64)).detach()
    assert found.shape == (5, made.features.width)
    assert float(found.norm(dim=1).max()) <= made.features.bound * (1 + 1e-5)
    assert not torch.allclose(found[0], found[1])  # without it, a white and a black image look alike
    (whole,) = clipped_rows(made, rows, torch.zeros(5, dtype=torch.int64))
    (without,) = clipped_rows(made, rows[1:], torch.zeros(4, dtype=torch.int64))
    assert float((whole - without).norm()) <= row_bound(made.features) * (1 + 1e-5)
    plan = Dpaf.configure("default", {**TINY, "brightness": brightness}).plan(SMALL_FACTS, Budget(10.0, 1e-3))
    assert (plan.width, plan.bound) == (made.features.width, pytest.approx(made.features.bound))


def test_a_single_aggregate_has_the_same_bound() -> None:
    made = training(aggregate="single", class_maps="false")
    rows, labels = made.rows(pictures(9).permute(0, 3, 1, 2).float() / 255), torch.arange(9) % 2
    (whole,), (without,) = clipped_rows(made, rows, labels), clipped_rows(made, rows[:-1], labels[:-1])
    assert whole.shape == (1, made.features.width + 1)
    assert 0.9 * row_bound(made.features) < (whole - without).norm() <= row_bound(made.features) * (1 + 1e-5)


def test_rows_are_clipped_even_where_sin_would_not_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.methods.dpaf.critic.simplified_instance_norm", lambda maps: 1000 * maps)
    made = training()
    rows = made.rows(torch.rand(4, 1, 16, 16))
    clipped = class_rows(made.features, rows, torch.arange(4) % 2)
    assert clipped.norm(dim=1).max() <= row_bound(made.features) * (1 + 1e-6)


@pytest.mark.parametrize("settings", [{"keep_fraction": "0.9"}, {"keep_signs": "7"}])
def test_one_record_moves_the_sum_of_conv2_by_at_most_the_clip_norm(settings: dict[str, str]) -> None:
    made = training(clip_norm="0.01", **settings)
    rows, labels = made.rows(pictures(9).permute(0, 3, 1, 2).float() / 255), torch.arange(9) % 2
    noisy_aggregate = torch.randn(2, made.features.width, generator=torch.Generator().manual_seed(1))
    made.upstream, _ = upstream_gradient(made.top, noisy_aggregate)
    whole, without = clipped_gradients(made, rows, labels), clipped_gradients(made, rows[:-1], labels[:-1])
    moved = torch.cat([(a - b).flatten() for a, b in zip(whole, without, strict=True)]).norm()
    assert 0.005 < moved <= 0.01 * (1 + 1e-4)


def test_the_paper_s_aggregate_without_noise_moves_every_gradient() -> None:
    """With the upstream gradient of the plain aggregate, one strange record moves the sum by far more than the clip."""
    made = training(clip_norm="0.01")
    images = pictures(40).permute(0, 3, 1, 2).float() / 255
    images[-1] = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    rows, labels = made.rows(images), torch.arange(40) % 2
    sums = []
    for kept in (40, 39):
        with torch.no_grad():
            plain = block_means(made.features(rows[:kept], labels[:kept]), labels[:kept], 2)
        point = 20 * (plain - plain.mean(dim=0))
        made.upstream, _ = upstream_gradient(made.top, point)
        sums.append(torch.cat([part.flatten() for part in clipped_gradients(made, rows[:kept], labels[:kept])]))
    assert (sums[0] - sums[1]).norm() > 0.011


@pytest.mark.parametrize("conv1", ["wavelets", "frozen", "classifier"])
def test_the_plan_has_a_line_for_each_part(conv1: str) -> None:
    plan = Dpaf(DpafSettings(conv1=conv1)).plan(FACTS, Budget(1.0, 1e-5))  # type: ignore[arg-type]
    assert 0.98 < epsilon_of(plan.events, 1e-5) <= 1
    private = [] if conv1 == "wavelets" else ["conv1"]
    assert [event.label for event in plan.events] == ["teacher", *private, "aggregate", "conv2*"]
    assert plan.facts["bound of an image's features, R"] == pytest.approx(32**0.5 * 7)  # maps, pixels


@pytest.mark.parametrize(
    "settings",
    [
        {"conv1": "frozen", "keep_signs": "9"},
        {"conv1": "classifier", "tanh": "true"},
        {"layout": "C1-C1-C1", "label_at": "top"},
        {"brightness": "0.5"},
        {"aggregate": "single", "class_maps": "false", "generator": "dcgan", "generator_width": "16"},
    ],
    ids=str,
)
def test_whole_runs(settings: dict[str, str], records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(**settings), workspace=tmp_path / "run")
    assert release.images.shape == (20, 16, 16, 1)
    assert epsilon_of(check_chain(release.certificate.ledger), default_delta(300)) <= 10


def test_a_public_conv1_needs_public_images_and_costs_nothing(records: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs public images"):
        run(Vault(records), job(conv1="public"), workspace=tmp_path / "without")
    public = ImageSet(pictures(40, first=300).numpy(), np.arange(40) % 2)
    release = run_with(records, job(conv1="public"), workspace=tmp_path / "with", public=public)
    assert epsilon_of(check_chain(release.certificate.ledger), default_delta(300)) <= 10


# The sizes of a test; everything else is the preset's.
QUICK = {"steps": "4", "mu": "2", "width": "4", "generated_batch": "8", "conv1_steps": "2", "generator_width": "16"}
PAPERS = {
    "layout": "C2-C1-x", "conv1": "classifier", "aggregate": "single", "generator": "dcgan",
    "generator_sees": "samples", "keep_fraction": 0.9, "class_maps": False, "teacher_share": 0.0,
}  # fmt: skip


def test_the_preset_paper_is_the_papers_form_under_our_account(records: ImageSet, tmp_path: Path) -> None:
    wanted = Job(method="dpaf", preset="paper", epsilon=10.0, samples=10, settings={**QUICK, "batch": "50"})
    release = run(Vault(records), wanted, workspace=tmp_path / "run")
    assert release.certificate.guarantee == "dp"
    assert {name: release.certificate.settings[name] for name in PAPERS} == PAPERS
    assert [event.label for event in check_chain(release.certificate.ledger)][:1] == ["conv1"]


def test_as_published_claims_nothing_and_is_the_papers_loop_whole(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[bool] = []
    own = as_published._published_conv1
    monkeypatch.setattr(as_published, "_published_conv1", lambda *given: (trained.append(True), own(*given)))
    wanted = Job(method="dpaf", epsilon=10.0, samples=10, as_published=True, settings={**QUICK, "batch": "50"})
    release = run(Vault(records), wanted, workspace=tmp_path / "run")
    assert trained, "lines 3 to 5 were left out"
    assert {name: release.certificate.settings[name] for name in PAPERS} == PAPERS
    assert release.certificate.guarantee == "none"
    assert any("Theorem 1" in reason for reason in release.certificate.reasons)


def test_a_run_goes_on_where_its_last_lease_ended(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = GradientSteps.step, []

    def stop(steps: GradientSteps, clipped_sum: Any) -> list[torch.Tensor]:
        steps.lease_size = 2
        if len(taken) == 4:
            raise KeyboardInterrupt
        taken.append(steps.event.label)
        return real(steps, clipped_sum)

    monkeypatch.setattr(GradientSteps, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        run(Vault(records), job(), workspace=tmp_path / "run")
    taken.append("cut off")
    run(Vault(records), job(), workspace=tmp_path / "run", resume=True)
    assert taken.count("aggregate") <= 6
    assert taken.count("conv2*") <= 3


def test_noise_is_averaged_over_the_memory() -> None:
    coins = torch.Generator().manual_seed(0)
    means = NoisyMeans(2, 50, memory=10)
    for _ in range(60):
        sums = torch.zeros(2, 51, dtype=torch.float64)
        sums[:, :-1] = 30.0 + 5.0 * torch.randn(2, 50, generator=coins)
        sums[:, -1] = 0.1 * 7.0 * 30  # thirty images of each class, bound 7
        means.add(sums)
    real, noise = means.read(bound=7.0, spread=5.0, expected=60.0)
    torch.testing.assert_close(real.mean(), torch.tensor(1.0), atol=0.02, rtol=0)
    assert float((real - 1).std()) == pytest.approx(float(noise.mean()), rel=0.3)


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("C2-C1", 28, "Expected a layout such as"),
        ("C0-C1-x", 28, "Expected a layout such as"),
        ("C3-C2-C1", 28, "take at most 3 layers"),
        ("C2-C2-C2", 32, "maps of 0 pixels of a 32-pixel image"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(text: str, size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layout.parse(text).sides(size)


def test_the_paper_s_layouts_fit() -> None:
    assert Layout.parse("C2-C1-x").sides(28) == (7, 3, 3)
    assert Layout.parse("C2-C2-C1").sides(64) == (16, 4, 2)


@pytest.mark.parametrize("conv1", ["wavelets", "classifier"])
@pytest.mark.parametrize(("layout", "size"), [("C1-C1-x", 16), ("C2-C1-x", 28), ("C1-C1-C1", 31), ("C2-C2-C1", 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_plan_knows_the_numbers_of_the_network(layout: str, size: int, channels: int, conv1: str) -> None:
    facts = PublicFacts(units=100, unit="record", shape=(size, size, channels), class_names=("a", "b"))
    settings = DpafSettings(layout=layout, conv1=conv1, width=5, conv1_width=3)  # type: ignore[arg-type]
    critic = build_critic(settings, facts, seed=0)
    width = Layout.parse(layout).feature_width(size, settings.width)
    with torch.no_grad():
        row = critic.features(critic.rows(torch.rand(1, channels, size, size)), torch.zeros(1, dtype=torch.int64))
    assert row.shape == (1, width)
    assert (width, feature_bound(width)) == (critic.features.width, critic.features.bound)
    assert float(row.norm()) <= feature_bound(width)


def test_a_plan_carries_the_width_and_the_bound() -> None:
    plan = Dpaf().plan(FACTS, Budget(1.0, 1e-5))
    assert isinstance(plan, DpafPlan)
    features = build_critic(plan.settings, FACTS, seed=0).features
    assert (plan.width, plan.bound) == (features.width, features.bound)
    assert [plan.aggregate, plan.conv2] == list(plan.events[-2:])
    assert plan.teacher is not None
    assert plan.teacher.event == plan.events[0]


def test_an_aggregate_that_is_all_noise_is_refused() -> None:
    few = PublicFacts(units=200, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    with pytest.raises(InputError, match="all noise"):
        Dpaf(DpafSettings(memory=1)).plan(few, Budget(0.1, 1e-3))
    assert Dpaf(DpafSettings(memory=1, least_signal=0)).plan(few, Budget(0.1, 1e-3)).events


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conv1": "imagenet"}, "conv1 to be one of"),
        ({"steps": 4, "mu": 8}, "never move"),
        ({"conv2_share": 0.0}, "conv2_share to be a number above 0"),
        ({"conv2_share": 0.5, "teacher_share": 0.5}, "leave something for the aggregate"),
        ({"keep_fraction": 0.0}, "keep_fraction"),
        ({"keep_signs": 3, "keep_fraction": 0.9}, "keep_signs is a rule of its own"),
        ({"aggregate": "single", "label_at": "top"}, "no class to be told"),
        ({"width": 0}, "width to be a whole number of at least 1"),
        ({"least_difference": -0.1}, "least_difference to be a number of at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DpafSettings(**settings)


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="Label 5 has no name"):
        ImageSet(pictures(4).numpy(), np.array([0, 1, 2, 5]), class_names=("a", "b"))


@pytest.mark.parametrize("pretrained", ["critic", "both"])
def test_pretraining_needs_public_images_and_uses_them(pretrained: str, records: ImageSet, tmp_path: Path) -> None:
    wanted = job(pretrained=pretrained, pretraining_steps="2", steps="2")
    with pytest.raises(InputError, match="needs public images"):
        run(Vault(records), wanted, workspace=tmp_path / "without")
    public = ImageSet(pictures(40, first=300).numpy(), np.zeros(40, dtype=np.int64))
    with_public = run_with(records, wanted, workspace=tmp_path / "with", public=public)
    plain = run(Vault(records), job(steps="2"), workspace=tmp_path / "plain")
    assert not np.array_equal(with_public.images, plain.images)


def test_only_the_pretraining_of_both_moves_the_generator() -> None:
    public = ImageSet(pictures(40).numpy(), np.zeros(40, dtype=np.int64))
    starts, after = {}, {}
    for kind in ("critic", "both"):
        made = training(pretrained=kind, pretraining_steps="2")
        starts[kind] = next(made.of_generator.generator.parameters()).clone()
        conv2 = [parameter.clone() for parameter in made.gradients.parameters]
        made.begin(public)
        after[kind] = next(made.of_generator.generator.parameters())
        assert not all(map(torch.equal, conv2, made.gradients.parameters))
    assert torch.equal(starts["critic"], after["critic"])
    assert not torch.equal(starts["both"], after["both"])


def test_the_generator_is_pushed_towards_variety() -> None:
    differences = {}
    for least in ("0", "0.9"):
        made = training(least_difference=least)
        made._see_generated()
        for step in range(10):
            made.train_generator(torch.zeros(2, 1), str(step), 1.0)
        images = made.of_generator.draw(40, "look")[0].detach()
        differences[least] = 0.9 - float(too_alike(images, 2, 0.9))
    assert differences["0.9"] > 1.2 * differences["0"]
