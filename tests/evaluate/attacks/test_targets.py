"""What of a release is attacked: its own student and generator, or a student trained on its images."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.evaluate.attacks import release_target
from veilset.models import build_network
from veilset.models.descriptions import described
from veilset.models.generators.conditional import ConditionalGenerator, description_of
from veilset.release.format import Release
from veilset.training.classifier import predict
from veilset.training.settings import TrainingConfig

SHAPE = (16, 16, 1)
STUDENT = described("classifier", name="lenet", shape=list(SHAPE), classes=3)


def release_with(**models):
    rng = np.random.default_rng(0)
    release = SimpleNamespace(
        images=rng.integers(0, 255, (30, *SHAPE), dtype=np.uint8),
        labels=np.arange(30) % 3,
        soft_labels=None,
        models=models,
        certificate=SimpleNamespace(
            facts=SimpleNamespace(shape=SHAPE, classes=3), label_temperature=1.0, student_changes=None
        ),
    )
    release.model = partial(Release.model, release)
    return release


def test_the_releases_own_student_and_generator():
    student = build_network("lenet", shape=SHAPE, classes=3, seed=5)
    torch.manual_seed(0)
    generator = ConditionalGenerator(16, 1, 3, 4, 16)
    release = release_with(
        student=(student.state_dict(), STUDENT), generator=(generator.state_dict(), description_of(generator))
    )
    target = release_target(release)
    assert target.description == "the release's own student (lenet)"
    assert predict(target.network, release.images) == pytest.approx(predict(student, release.images))
    latents, classes = torch.randn(2, 4), torch.tensor([0, 2])
    assert torch.equal(target.generator(latents, classes), generator.eval()(latents, classes))
    assert target.lacks("generator") is None
    assert all(value.requires_grad for value in target.network.parameters())  # white-box attacks ask for gradients


def test_a_student_is_trained_where_there_is_none_or_another_is_named():
    own = build_network("lenet", shape=SHAPE, classes=3)
    quick = TrainingConfig(epochs=1)
    assert release_target(release_with(), recipe=quick).description == "a convnet trained on the release"
    named = release_target(release_with(student=(own.state_dict(), STUDENT)), student="lenet", recipe=quick)
    assert named.description == "a lenet trained on the release"
    assert "generator" in named.lacks("generator")


@pytest.mark.parametrize(
    "change", [{"name": "os:system"}, {"name": "vgg11"}, {"classes": "many"}, {"shape": None}, {"name": None}]
)
def test_a_student_that_is_not_ours_is_refused(change):
    weights = build_network("lenet", shape=SHAPE, classes=3).state_dict()
    with pytest.raises(InputError, match="Pass --student"):
        release_target(release_with(student=(weights, STUDENT | change)))


def test_a_generator_of_another_kind_is_left_alone():
    target = release_target(
        release_with(generator=({}, {"kind": "os:system"})), student="lenet", recipe=TrainingConfig(epochs=1)
    )
    assert target.generator is None
