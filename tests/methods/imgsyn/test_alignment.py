"""Moments are per-image rows under a bound; alignment moves images towards them and keeps the best iterate."""

import pytest
import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.methods.imgsyn.alignment import align, in_parallel, total_variation, turning_point
from veilset.methods.imgsyn.config import AlignSettings
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.models import build_network
from veilset.teachers.teacher import Teacher, finished, make_network

SHAPE, CLASSES = (16, 16, 1), 3


def images(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def scattering_teacher() -> Teacher:
    network = make_network(kind="head", name="", shape=SHAPE, classes=CLASSES, directions=20, head_only=True, seed=0)
    code = network.get_submodule("code")
    code.learn_directions(code.extractor(images(60, 1)))  # type: ignore[operator]
    with torch.no_grad():
        network.get_submodule("head").weight.normal_(generator=torch.Generator().manual_seed(5))  # type: ignore[operator]
    return finished(network, {})


def network_teacher() -> Teacher:
    return finished(build_network("convnet", shape=SHAPE, classes=CLASSES, norm="group", seed=0), {})


def moments_of(form: str, teacher: Teacher | None = None) -> LayerMoments:
    return LayerMoments(teacher or scattering_teacher(), form, [images(20, 2), images(20, 3)])


CASES = [("code", scattering_teacher), ("map", scattering_teacher), ("channel", scattering_teacher)]
CASES += [("map", network_teacher), ("channel", network_teacher)]


@pytest.mark.parametrize(("form", "teacher"), CASES)
def test_rows_depend_on_their_own_image_and_stay_below_the_bound(form: str, teacher: object) -> None:
    moments = moments_of(form, teacher())
    batch = torch.cat([images(6, 4), 5 * images(2, 5)])
    together = moments.observe(batch)[1]
    alone = torch.cat([moments.observe(batch[i : i + 1])[1] for i in range(8)])
    assert together.shape == (8, moments.width)
    assert torch.allclose(together, alone, atol=1e-4)
    assert float(together.norm(dim=1).max()) <= moments.clip_norm * (1 + 1e-5)


@pytest.mark.parametrize(("form", "teacher"), CASES)
def test_logits_are_the_teachers(form: str, teacher: object) -> None:
    moments = moments_of(form, teacher())
    assert torch.allclose(moments.observe(images(4, 6))[0], moments.teacher(images(4, 6)), atol=1e-5)


@pytest.mark.parametrize("form", ["code", "map", "channel"])
def test_the_distance_is_zero_at_home_and_positive_elsewhere(form: str) -> None:
    moments = moments_of(form)
    mean = moments.observe(images(30, 7))[1].mean(dim=0, keepdim=True)
    other = moments.observe(images(30, 8).square())[1].mean(dim=0, keepdim=True)
    assert float(moments.distance(mean, mean)) == pytest.approx(0, abs=1e-8)
    assert float(moments.distance(other, mean)) > 0


def test_noise_that_makes_a_variance_negative_gives_no_nan() -> None:
    moments = moments_of("channel")
    assert torch.isfinite(moments.distance(torch.zeros(1, moments.width), torch.full((1, moments.width), -5.0)))


def test_what_has_no_such_statistic_is_refused() -> None:
    with pytest.raises(InputError, match="statistics=map"):
        moments_of("code", network_teacher())
    with pytest.raises(InputError, match="iterations=0"):
        moments_of("map", finished(nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), {}))
    assert moments_of("auto").form == "code"
    assert moments_of("auto", network_teacher()).form == "map"


def target_of(moments: LayerMoments, classes: int = 1) -> torch.Tensor:
    bright = (images(30 * classes, 9) * 0.3 + 0.7).clamp(0, 1)
    rows = moments.observe(bright)[1]
    return torch.stack([part.mean(dim=0) for part in rows.chunk(classes)])


@pytest.mark.parametrize("classes", [1, CLASSES])
@pytest.mark.parametrize("form", ["code", "map", "channel"])
def test_alignment_comes_closer_to_the_target(form: str, classes: int) -> None:
    moments = moments_of(form)
    target, labels = target_of(moments, classes), torch.arange(12) % CLASSES
    config = AlignSettings(class_weight=0.0, variation_weight=0.0, iterations=6)

    def distance(batch: torch.Tensor) -> float:
        rows = moments.observe(batch)[1]
        means = (
            torch.stack([rows[labels == c].mean(dim=0) for c in range(CLASSES)]) if classes > 1 else rows.mean(0)[None]
        )
        return float(moments.distance(means, target))

    start = images(12, 10)
    moved = align(start, labels, moments, target, config)
    assert distance(moved.images) < 0.9 * distance(start)
    assert len(moved.variations) == 7
    assert float(moved.images.min()) >= 0
    assert float(moved.images.max()) <= 1


def test_alignment_reaches_the_classes_it_aims_at() -> None:
    moments = moments_of("code")
    labels = torch.arange(12) % CLASSES
    config = AlignSettings(feature_weight=0.0, variation_weight=0.0, iterations=15)
    moved = align(images(12, 11), labels, moments, target_of(moments), config).images
    assert float((moments.teacher(moved).argmax(dim=1) == labels).float().mean()) > 0.9


def test_the_best_iterate_is_kept_for_real() -> None:
    """Steps that only do harm leave the images as they were."""
    moments = moments_of("code")
    start = images(6, 12) * 0.01
    config = AlignSettings(
        feature_weight=0.0, class_weight=0.0, variation_weight=1.0, square_weight=0.0, learning_rate=0.9, iterations=3
    )
    moved = align(start, torch.zeros(6, dtype=torch.long), moments, target_of(moments), config)
    assert min(moved.variations) == pytest.approx(float(total_variation(moved.images)), rel=1e-5)


def test_total_variation_of_an_edge() -> None:
    edge = torch.zeros(2, 1, 8, 8)
    edge[..., 4:] = 1
    assert float(total_variation(edge)) == pytest.approx(7, rel=1e-2)


def test_turning_points() -> None:
    assert turning_point((5.0, 4.0, 3.0, 4.0, 6.0)) == 2
    assert turning_point((1.0, 5.0, 6.0, 6.5, 7.0)) == 1
    assert turning_point((3.0, 2.0, 1.0)) == 2
    assert turning_point((1.0, 1.0)) == 0


def test_parallel_batches_are_those_of_one_worker() -> None:
    moments = moments_of("code")
    target, labels = target_of(moments), torch.arange(6) % CLASSES

    def work(number: int) -> torch.Tensor:
        return align(images(6, 20 + number), labels, moments, target, AlignSettings(iterations=2)).images

    serial, parallel = (list(in_parallel(work, 4, workers)) for workers in (1, 2))
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(serial, parallel, strict=True))


@pytest.mark.parametrize(
    "wrong", [{"iterations": -1}, {"learning_rate": 0.0}, {"class_weight": -1.0}, {"stop": "soon"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Expected"):
        AlignSettings().changed(**wrong)


def test_threads_see_their_own_layers() -> None:
    """Batches are aligned side by side; what one network reads in two threads must not be mixed up."""
    network = build_network("convnet", shape=(16, 16, 1), classes=3, seed=0).eval().requires_grad_(False)
    moments = LayerMoments(Teacher(network=network, description={}), "channel", [images(20, 1)])
    batches = [images(20, seed) for seed in range(40)]
    alone = [moments.observe(batch)[1] for batch in batches]
    together = in_parallel(lambda number: moments.observe(batches[number])[1], len(batches), workers=4)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(alone, together, strict=True))


def test_the_last_iterate_is_kept_where_it_is_asked_for() -> None:
    """Steps that only do harm: the best iterate is not the last one."""
    moments = moments_of("code")
    start, labels = images(6, 12) * 0.01, torch.zeros(6, dtype=torch.long)
    config = AlignSettings(
        feature_weight=0.0, class_weight=0.0, variation_weight=1.0, square_weight=0.0, learning_rate=0.9, iterations=3
    )
    best = align(start, labels, moments, target_of(moments), config)
    last = align(start, labels, moments, target_of(moments), config.changed(keep="last"))
    assert float(total_variation(last.images)) == pytest.approx(last.variations[-1], rel=1e-5)
    assert not torch.equal(best.images, last.images)
