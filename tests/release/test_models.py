"""Networks of releases are rebuilt by name and version: those of today, and of releases that older versions made."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.core.registry import resolve
from veilset.models import NETWORKS, build_network
from veilset.models.descriptions import OLD_NAMES, VERSIONS, described, recognised
from veilset.models.generators.conditional import GENERATORS, build_generator, description_of
from veilset.release.format import Release, load_release
from veilset.release.models import REBUILDERS, rebuild_model
from veilset.release.verify import verify_release

GOLDEN = Path(__file__).parent / "golden"
# Made with Veilset 0.2, each with a guarantee: what it holds, by what "kind" said then.
HELD = {
    "merf": {"generator": "veilset.models.generators:ConditionalGenerator"},
    "dpgan_dcgan": {"generator": "veilset.models.generators:DCGANGenerator"},
    "dpgan_resnet": {"generator": "veilset.models.generators:ResNetGenerator"},
    "sanitized_gan": {"generator": "veilset.models.generators:SmoothGenerator"},
    "dfd": {
        "generator": "veilset.models.generators:ConditionalGenerator",
        "student": "veilset.models:build_network",
    },
    "pldk": {"student": "veilset.models:build_network"},
    "imgsyn": {"teacher": "scattering"},
    "imgsyn_network": {"teacher": "network"},
    "latent_style": {"generator": "veilset.methods.latent:rebuild_sampler"},
    "latent_eigen": {"generator": "veilset.methods.latent:rebuild_sampler"},
}
SHAPE = (16, 16, 1)


def finite(images: torch.Tensor) -> None:
    assert bool(torch.isfinite(images).all())


def works(name: str, network: Any) -> None:
    """Ask a rebuilt network for what it is for."""
    if isinstance(network, tuple):
        space, latents = network
        coins = torch.Generator().manual_seed(0)
        drawn = latents.draw(lambda count: space.draw(count, coins), torch.tensor([0, 1, 1]), coins)
        pictures = space.stored(drawn)
        assert (tuple(pictures.shape), pictures.dtype) == ((3, 1, 16, 16), torch.uint8)
        finite(space.images(drawn))
        network = space.generator
    elif name == "generator":
        images = network(torch.randn(3, network.latent_size), torch.tensor([0, 1, 1]))
        assert images.shape == (3, 1, 16, 16)
        finite(images)
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
    else:
        logits = network(torch.rand(3, 1, 16, 16))
        assert logits.shape == (3, 2)
        finite(logits)
    assert isinstance(network, nn.Module)
    assert not network.training
    assert not any(weight.requires_grad for weight in network.parameters())


def test_every_golden_release_is_tried() -> None:
    assert {place.name for place in GOLDEN.iterdir()} == set(HELD)


@pytest.mark.parametrize("name", list(HELD))
def test_a_release_of_an_older_version_still_verifies_and_its_networks_work(name: str) -> None:
    found = verify_release(GOLDEN / name)
    assert found.ok, found.problems
    assert found.guarantee == "dp"
    release = load_release(GOLDEN / name)
    assert {model: stored["kind"] for model, (_, stored) in release.models.items()} == HELD[name]
    for model in release.models:
        works(model, release.model(model))


def test_a_release_that_is_saved_anew_keeps_its_networks(tmp_path: Path) -> None:
    release = load_release(GOLDEN / "dfd")
    again = load_release(release.save(tmp_path / "again"))
    images = torch.rand(3, 1, 16, 16)
    assert torch.equal(again.model("student")(images), release.model("student")(images))


def test_every_network_has_a_version_and_code_that_rebuilds_it() -> None:
    inside_others = {"style_generator", "eigen_generator", "sharpened_generator", "stylegan2_generator"}
    assert set(REBUILDERS) == set(VERSIONS) - inside_others
    assert all(callable(REBUILDERS.get(name)) for name in REBUILDERS)
    assert {f"{name}_generator" for name in GENERATORS} <= set(VERSIONS)


def test_what_is_written_names_no_code() -> None:
    for name in GENERATORS:
        description = description_of(build_generator(name, size=16, channels=1, classes=2, width=16))
        assert (description["network"], description["version"]) == (f"{name}_generator", 1)
        assert "veilset" not in json.dumps(description)
    with pytest.raises(InputError, match=r"Unknown network 'clasifier'\. Did you mean classifier\?"):
        described("clasifier", name="lenet")


@pytest.mark.parametrize("old", list(OLD_NAMES))
def test_old_names_lead_to_networks_of_today(old: str) -> None:
    network, version = OLD_NAMES[old]
    assert 1 <= version <= VERSIONS[network]
    assert recognised({"kind": old, "width": 16}) == {"network": network, "version": version, "width": 16}


def test_an_old_teacher_and_an_old_student() -> None:
    teacher = recognised({"type": "teacher", "kind": "network", "network": "lenet", "classes": 2})
    assert teacher == {"network": "teacher", "version": 1, "kind": "network", "name": "lenet", "classes": 2}
    assert recognised({"student": "lenet", "seed": 0})["name"] == "lenet"


@pytest.fixture
def student() -> Release:
    return load_release(GOLDEN / "pldk")


def with_description(release: Release, description: dict[str, Any]) -> Release:
    return replace(release, models={"student": (release.models["student"][0], description)})


TEACHER = {
    "network": "teacher", "version": 2, "kind": "head", "features": "wavelets", "name": "convnet", "directions": 4,
    "head_only": True,
}  # fmt: skip
CLASSIFIER = {"network": "classifier", "version": 1, "name": "convnet", "width": 4}


def test_shape_and_classes_are_the_certificates(student: Release) -> None:
    works("student", with_description(student, CLASSIFIER).model("student"))
    for change in ({"classes": 3}, {"classes": "many"}, {"shape": [16, 16, 3]}, {"shape": None}):
        with pytest.raises(InputError, match="as the certificate says"):
            with_description(student, CLASSIFIER | change).model("student")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({}, "Unknown network"),
        ({"kind": "os:system"}, r"Unknown network 'os:system'.*Available: classifier, teacher"),
        ({"kind": ["os:system"]}, "Unknown network"),
        (CLASSIFIER | {"network": "os:system"}, r"Unknown network 'os:system'.*Available: classifier, teacher"),
        (CLASSIFIER | {"network": ["classifier"]}, "Unknown network"),
        (CLASSIFIER | {"version": 2}, "version 2; this Veilset knows versions up to 1. Install a newer Veilset"),
        (CLASSIFIER | {"version": 0}, "at least 1, got 0"),
        (CLASSIFIER | {"version": True}, "at least 1, got True"),
        (CLASSIFIER | {"version": "1"}, "at least 1, got '1'"),
        (CLASSIFIER | {"name": "os:getcwd"}, "none of ours. What a release names is not imported"),
        (CLASSIFIER | {"name": None}, "none of ours"),
        (CLASSIFIER | {"name": "lenet"}, "does not fit the network 'lenet'|has no setting width"),
        (CLASSIFIER | {"width": 8}, "does not fit the network 'convnet'"),
        (CLASSIFIER | {"width": "wide"}, "does not fit the network 'convnet'|Expected width to be a whole number"),
        (CLASSIFIER | {"width": 4096}, "does not fit the network 'convnet'"),
        (CLASSIFIER | {"width": 10**12}, "Expected width to be a whole number of at most 65536"),
        (CLASSIFIER | {"width": float("inf")}, "Expected width to be a whole number of at most 65536"),
        (TEACHER | {"name": "os:getcwd"}, "none of ours"),
        (TEACHER | {"kind": "magic"}, "none of ours"),
        (TEACHER | {"features": "wavelets+wavelets"}, "none of ours"),
        (TEACHER | {"features": "os:getcwd"}, "none of ours"),
        ({"network": "modulated_generator", "version": 1}, "Expected the student to be one of classifier, teacher"),
        ({"network": "latent_sampler", "version": 1}, "Expected the student to be one of classifier, teacher"),
    ],
)
def test_descriptions_that_are_refused(
    student: Release, monkeypatch: pytest.MonkeyPatch, description: dict[str, Any], message: str
) -> None:
    # Whatever is imported comes from a fixed table, so no name of a description ever reaches the importer.
    known = {REBUILDERS._targets[name] for name in REBUILDERS} | set(NETWORKS._targets.values())

    def guarded(place: str) -> Any:
        assert place in known
        return resolve(place)

    monkeypatch.setattr("veilset.core.registry.resolve", guarded)
    monkeypatch.setattr("veilset.models.resolve", guarded)
    with pytest.raises(InputError, match=message):
        with_description(student, description).model("student")


def test_a_model_that_is_not_there(student: Release) -> None:
    with pytest.raises(InputError, match=re.escape("The release holds no model 'teacher'. It holds: student.")):
        student.model("teacher")


def test_a_generator_inside_a_sampler_is_one_of_ours() -> None:
    release = load_release(GOLDEN / "latent_style")
    weights, description = release.models["generator"]
    for inside in ({"kind": "os:system"}, {"network": "latent_sampler", "version": 1}, None):
        forged = dict(description) | {"generator": inside}
        with pytest.raises(InputError, match="Not a"):
            rebuild_model("generator", forged, weights, release.certificate.facts)


def test_rebuilding_leaves_the_random_state_alone() -> None:
    for name in HELD:
        release = load_release(GOLDEN / name)
        before = torch.random.get_rng_state()
        for model in release.models:
            release.model(model)
        assert torch.equal(torch.random.get_rng_state(), before), name


def test_a_network_of_today_comes_back(student: Release) -> None:
    network = build_network("lenet", shape=SHAPE, classes=2, seed=3).eval()
    held = replace(student, models={"student": (network.state_dict(), described("classifier", name="lenet"))})
    images = torch.rand(3, 1, 16, 16)
    assert torch.equal(held.model("student")(images), network(images))


def test_the_tables_load_no_torch() -> None:
    code = (
        "import sys, veilset.models.descriptions, veilset.release.models, veilset.release.format;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_large_width_takes_no_memory(student: Release) -> None:
    """What is described is compared with the stored weights before anything is built: shapes cost nothing."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="does not fit"):
        with_description(student, CLASSIFIER | {"width": 8192}).model("student")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # kilobytes; it would be gigabytes
