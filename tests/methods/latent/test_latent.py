"""latent: sensitivity on neighbouring datasets, rates of convergence, resuming, and what is refused."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import run_with
from torch import Tensor

from veilset.audit.game import MemoryLedger, Scripted
from veilset.core.errors import BudgetError, InputError, VerificationError
from veilset.core.files import sha256_of
from veilset.data.images import ImageSet
from veilset.methods.base import Context
from veilset.methods.latent.choices import SEARCHES, SearchSettings
from veilset.methods.latent.config import Latent, LatentPlan
from veilset.methods.latent.generators.eigen import fit_eigen
from veilset.methods.latent.moments import MomentRows
from veilset.methods.latent.sampling import FittedLatents, rebuild_sampler
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.models.generators.eigen import EigenGenerator
from veilset.models.generators.files import save_generator
from veilset.models.generators.style import LatentGenerator, StyleGenerator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.verify import verify_release

SMALL = {"generator_steps": "2", "inversion_steps": "2"}
FACTS = PublicFacts(units=4000, unit="record", shape=(32, 32, 3), class_names=("women", "men"))
LENGTH = 4  # of the latents of the generator below


class Dial(LatentGenerator):
    """Sixteen-pixel images whose first row shows w in pairs of pixels (coarse and fine), so that w is exactly known."""

    settings = ()

    def __init__(self) -> None:
        super().__init__()
        self.size, self.channels, self.latent_size = 16, 1, LENGTH
        self.register_buffer("w_average", torch.zeros(LENGTH))

    def map(self, z: Tensor) -> Tensor:
        return z

    def straighten(self, w: Tensor) -> Tensor:
        return w

    def bend(self, straight: Tensor) -> Tensor:
        return straight

    def forward(self, w: Tensor) -> Tensor:
        images = torch.zeros(len(w), 1, 16, 16)
        images[:, 0, 0, : 2 * LENGTH] = torch.from_numpy(shown(w.numpy())[:, 0, : 2 * LENGTH, 0]).float() / 255
        return images


def shown(w: np.ndarray) -> np.ndarray:
    """8-bit images that hold w to 1/4096."""
    steps = np.clip(np.round((w + 8) * 4096), 0, 65535).astype(np.int64)
    images = np.zeros((len(w), 16, 16, 1), dtype=np.uint8)
    images[:, 0, 0 : 2 * LENGTH : 2, 0] = steps // 256
    images[:, 0, 1 : 2 * LENGTH : 2, 0] = steps % 256
    return images


class ExactSearch(LatentSearch):
    """Reads w off the image."""

    def __call__(self, images: Tensor) -> Tensor:
        first = images[:, 0, : 2 * LENGTH, 0].double()
        return self.space.coordinates(((256 * first[:, ::2] + first[:, 1::2]) / 4096 - 8).float())


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method with a generator and a search without error."""

    def search_in(plan: LatentPlan, space: LatentSpace, context: Context) -> LatentSearch:
        return ExactSearch(space, torch.nn.Identity(), SearchSettings())

    monkeypatch.setattr("veilset.methods.latent.method._generator", lambda *_: Dial())
    monkeypatch.setattr("veilset.methods.latent.method._search", search_in)


def fit(plan: LatentPlan, vault: Vault, noise: NoiseSource) -> FittedLatents:
    found = Latent.fit(plan, Session(vault, plan, MemoryLedger(), noise), None, Context())
    assert isinstance(found, FittedLatents)
    return found


PLAIN = {
    "repair": "replace",
    "restore": "none",
    "dimensions": str(LENGTH),
    "clip_quantile": "0.999",
    "draws": "gaussian",
}
MEAN = np.array([0.5, -0.3, 0.0, 0.2])
ROOT = np.array([[0.6, 0, 0, 0], [0.2, 0.4, 0, 0], [0, 0.1, 0.5, 0], [0, 0, 0.2, 0.3]])


def fitted(w: np.ndarray, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of w by the whole fit of one class with this noise, and the clip norm."""
    vault = Vault(ImageSet(shown(w), np.zeros(len(w), dtype=np.int64)))
    drawn = Latent.configure("default", PLAIN).plan(vault.facts, Budget(1.0, 1e-6))
    event = replace(drawn.moments, noise_multiplier=noise)
    found = fit(replace(drawn, events=(event,), moments=event), vault, NoiseSource(seed))
    space, latents = found.space, found.latents
    root = (space.directions * space.deviations) @ latents.maps[0]
    return space.latents(latents.means).numpy()[0], (root @ root.T).numpy(), found.clip_norm


def population(count: int, seed: int) -> np.ndarray:
    w = MEAN + np.random.default_rng(seed).standard_normal((count, LENGTH)) @ ROOT.T
    return np.round((w + 8) * 4096) / 4096 - 8


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("count", "noise"), [(500, 2.0), (500, 4.0), (4000, 4.0)])
def test_the_error_of_the_fit_is_what_theory_says(count: int, noise: float) -> None:
    """Against the moments of the private records themselves, noise alone is left: M s / (alpha n) on each number of
    the mean, so twice the noise doubles it and eight times the records divide it by eight."""
    w, errors, clip = population(count, 0), [], 0.0
    for seed in range(8):
        mean, _, clip = fitted(w, noise, seed)
        errors.append(mean - w.mean(axis=0))
    rows = MomentRows(size=LENGTH, clip_norm=clip, count_weight=0.0)
    expected = clip * noise / rows.mean_weight / count
    measured = float(np.sqrt(np.mean(np.square(errors))))
    # 32 numbers: the deviation of a measured deviation is an eighth of it.
    assert measured == pytest.approx(expected, rel=0.5)


@pytest.mark.usefixtures("exact")
def test_the_covariance_converges_too() -> None:
    """Entries off the diagonal have noise M^2 s / (sqrt(2) beta n)."""
    w, noise, errors, clip = population(4000, 1), 3.0, [], 0.0
    upper = np.triu_indices(LENGTH, 1)
    for seed in range(8):
        _, covariance, clip = fitted(w, noise, seed)
        errors.append((covariance - np.cov(w.T, bias=True))[upper])
    rows = MomentRows(size=LENGTH, clip_norm=clip, count_weight=0.0)
    expected = clip**2 * noise / rows.second_weight / math.sqrt(2) / 4000
    assert float(np.sqrt(np.mean(np.square(errors)))) == pytest.approx(expected, rel=0.5)


@pytest.mark.usefixtures("exact")
def test_with_little_noise_the_error_is_that_of_sampling() -> None:
    """Against the truth, 1/sqrt(n) is left when epsilon is large."""
    errors = {
        count: np.mean([np.square(fitted(population(count, seed), 0.2, seed)[0] - MEAN).sum() for seed in range(6)])
        for count in (300, 4800)
    }
    expected = np.trace(ROOT @ ROOT.T) / 300
    assert errors[300] == pytest.approx(expected, rel=1.0)
    assert 4 < errors[300] / errors[4800] < 64


def strange_images(count: int) -> np.ndarray:
    coins = np.random.default_rng(3)
    images = coins.integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    images[-1] = 255
    images[-2] = 0
    return images


@pytest.mark.parametrize(
    ("preset", "groups", "components", "latents"),
    [
        ("fast", False, 1, "w"),
        ("fast", True, 1, "w"),
        ("fast", True, 2, "w"),
        ("default", True, 1, "w"),
        ("fast", False, 1, "z"),
        ("fast", True, 1, "w_plus"),
    ],
)
def test_one_unit_more_moves_the_sum_by_at_most_the_sensitivity(
    preset: str, groups: bool, components: int, latents: str
) -> None:
    """The whole noise-free sum of all classes, and of all components in each round, on neighbouring vaults."""
    count = 6
    images, labels = strange_images(count), np.array([0, 1, 0, 0, 1, 1])
    owners = np.array([0, 0, 1, 1, 2, 2]) if groups else None
    settings = {"components": str(components), "rounds": "2", "latents": latents}
    method = Latent.configure(preset, {**SMALL, **settings})
    seen: list[list[Tensor]] = []

    class Watched(Session):
        def gaussian_sum(self, per_image, event, **options):  # type: ignore[no-untyped-def]
            seen[-1].append(super().gaussian_sum(per_image, event, **options))
            assert options["clip_norm"] == pytest.approx(math.sqrt(1.01))
            return seen[0][len(seen[-1]) - 1]  # both worlds go on from one release

    for rows in (slice(0, 6), slice(0, 4 if groups else 5)):
        part = ImageSet(images[rows], labels[rows], ("a", "b"), None if owners is None else owners[rows])
        vault = Vault(part, unit="group" if groups else "record")
        vault.facts = replace(vault.facts, units=1000)
        plan = method.plan(vault.facts, Budget(1.0, 1e-5))
        seen.append([])
        public = ImageSet(strange_images(40), np.arange(40) % 2)
        method.fit(plan, Watched(vault, plan, MemoryLedger(), Scripted()), public, Context())  # type: ignore[arg-type]
    assert len(seen[0]) == (3 if components > 1 else 1)
    for one, other in zip(*seen, strict=True):
        assert 0.1 < float((one - other).norm()) <= math.sqrt(1.01) * (1 + 1e-6)


def test_a_private_clip_norm_costs_its_share_and_no_more() -> None:
    alone = {"teacher_share": "0"}
    one = Latent.configure("default", alone).plan(FACTS, Budget(1.0, 1e-5))
    two = Latent.configure("default", {**alone, "clip": "private", "clip_share": "0.2"}).plan(FACTS, Budget(1.0, 1e-5))
    assert [len(one.events), len(two.events)] == [1, 2]
    for plan in (one, two):
        assert 0.99 <= epsilon_of(plan.events, 1e-5) <= 1.0
    first, second = (event.noise_multiplier for event in two.events)
    assert (second / first) ** 2 == pytest.approx(0.25)


def test_the_rounds_of_a_mixture_cost_together_what_one_gaussian_costs() -> None:
    settings = {"components": "3", "rounds": "4", "clip": "private", "teacher_share": "0.4"}
    plan = Latent.configure("default", settings).plan(FACTS, Budget(1.0, 1e-5))
    sums = ["latent clip norm", "latent moments", *["latent components"] * 4]
    assert [event.label for event in plan.events] == [*sums, "teacher"]
    assert 0.99 <= epsilon_of(plan.events, 1e-5) <= 1.0
    # The sums have six tenths of the privacy together, which is what one of them would cost that had all of these.
    alone = Latent.configure("default", {"teacher_share": "0.4"}).plan(FACTS, Budget(1.0, 1e-5)).moments
    together = sum(event.noise_multiplier**-2 for event in plan.events[:-1])
    assert together == pytest.approx(alone.noise_multiplier**-2, rel=0.02)


@pytest.mark.parametrize(("units", "epsilon", "share"), [(4000, 1.0, 0.0), (4000, 10.0, 0.4), (100_000, 1.0, 0.4)])
def test_a_classifier_labels_where_noise_leaves_it_enough(units: int, epsilon: float, share: float) -> None:
    plan = Latent.configure("default").plan(replace(FACTS, units=units), Budget(epsilon, 1e-5))
    assert plan.certified()["teacher_share"] == share
    assert (plan.teacher is None) == (share == 0)


def test_one_class_has_nothing_to_label() -> None:
    one = Latent.configure("default", {"teacher_share": "0.4"})
    plan = one.plan(replace(FACTS, class_names=("all",)), Budget(1.0, 1e-5))
    assert plan.teacher is None
    assert plan.events == (plan.moments,)


def heaps(count: int, seed: int) -> np.ndarray:
    """Two heaps with nothing between them."""
    side = np.where(np.random.default_rng(seed).random(count) < 0.3, -1.5, 1.5)
    return 0.4 * population(count, seed) + side[:, None] * np.eye(LENGTH)[0]


@pytest.mark.usefixtures("exact")
def test_a_mixture_beats_one_gaussian_where_there_are_two_heaps() -> None:
    """By the share of samples that fall between the heaps, where no record is, and by the heaps' sizes."""
    first = {}
    for components in (1, 2):
        method = Latent.configure("default", {"components": str(components), "draws": "gaussian"})
        vault = Vault(ImageSet(shown(heaps(3000, 0)), np.zeros(3000, dtype=np.int64)))
        found = fit(method.plan(vault.facts, Budget(2.0, 1e-6)), vault, NoiseSource(0))
        search = ExactSearch(found.space, None, SearchSettings(start="average"))
        v = search(torch.from_numpy(found.sample(2000).images))
        first[components] = found.space.latents(v).numpy()[:, 0]
    between = {components: float((np.abs(w) < 0.5).mean()) for components, w in first.items()}
    assert between[1] > 0.15
    assert between[2] < 0.04
    assert float((first[2] < 0).mean()) == pytest.approx(0.3, abs=0.06)


def test_fewer_units_or_less_epsilon_estimate_fewer_directions() -> None:
    def directions(units: int, epsilon: float) -> int:
        plan = Latent.configure("default").plan(replace(FACTS, units=units), Budget(epsilon, 1e-6))
        return int(plan.facts["directions estimated"])

    assert directions(10**7, 10.0) == 1024
    assert directions(4000, 10.0) > directions(4000, 0.5) > directions(400, 0.5) >= 1


def file_of(tmp_path: Path, size: int = 16, channels: int = 1) -> str:
    torch.manual_seed(0)
    generator = StyleGenerator(size, channels, latent_size=8, width=4)
    generator.settle(torch.Generator().manual_seed(0))
    place = tmp_path / f"generator-{size}-{channels}.safetensors"
    save_generator(generator, place)
    return str(place)


def records(count: int = 300) -> ImageSet:
    return ImageSet(strange_images(count), np.arange(count) % 2)


def others(count: int = 300) -> ImageSet:
    """Public images of the same kind; none of `records` is among them."""
    images = np.random.default_rng(4).integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    return ImageSet(images, np.arange(count) % 2)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("teacher_share", ["0", "0.4"])
@pytest.mark.parametrize(("balance", "share"), [("even", 0.5), ("as_found", 0.8)])
def test_classes_are_drawn_alike_or_as_they_are(balance: str, share: float, teacher_share: str) -> None:
    """Two classes far apart, four records of the second to one of the first."""
    labels = (np.arange(1000) % 5 > 0).astype(np.int64)
    w = population(1000, 2) + 3 * np.eye(LENGTH)[0] * labels[:, None]
    method = Latent.configure("default", {"balance": balance, "teacher_share": teacher_share})
    vault = Vault(ImageSet(shown(w), labels))
    found = fit(method.plan(vault.facts, Budget(20.0, 1e-6)), vault, NoiseSource(0))
    samples = found.sample(2000)
    assert samples.soft_labels is not None
    assert float(samples.soft_labels[:, 1].mean()) == pytest.approx(share, abs=0.05)
    # The classifier sees directions alone, which in four numbers is little.
    assert float(samples.labels.mean()) == pytest.approx(share, abs=0.05 if teacher_share == "0" else 0.08)


def test_a_given_generator_needs_no_public_images_and_is_released(tmp_path: Path) -> None:
    place = file_of(tmp_path)
    job = Job(method="latent", epsilon=8.0, samples=30, settings={"generator": place, "inversion_steps": "2"})
    release = run(Vault(records()), job, workspace=tmp_path / "run")
    weights, description = release.models["generator"]
    space, latents = rebuild_sampler(description, weights)
    assert len(latents.means) == 2
    coins = torch.Generator().manual_seed(0)
    v = latents.draw(lambda count: space.draw(count, coins), torch.tensor([0, 1, 0, 1]), coins)
    assert space.stored(v).shape == (4, 1, 16, 16)
    with pytest.raises(InputError, match="Not a"):
        rebuild_sampler(description, {"latents.means": latents.means})


def test_a_release_names_the_generator_by_its_hash_and_no_place_on_the_disk(tmp_path: Path) -> None:
    place = file_of(tmp_path)
    job = Job(method="latent", epsilon=8.0, samples=5, settings={"generator": place, "inversion_steps": "2"})
    release = run(Vault(records()), job, workspace=tmp_path / "run")
    out = tmp_path / "release"
    release.save(out)
    assert verify_release(out).ok
    settings = release.certificate.settings
    assert settings["generator"] == Path(place).name
    assert settings["generator_sha256"] == sha256_of(Path(place))
    assert not [file for file in out.iterdir() if str(tmp_path).encode() in file.read_bytes()]


def test_generators_that_do_not_fit_are_refused_before_anything_is_reserved(tmp_path: Path) -> None:
    for settings, message in (
        ({"generator": file_of(tmp_path, 16, 3)}, "makes images of 16x16x3"),
        ({"generator": str(tmp_path / "none.safetensors")}, "There is no generator"),
        ({"dimensions": "60"}, "at most"),
        ({"generator": file_of(tmp_path), "dimensions": "9"}, "at most 8"),
    ):
        with pytest.raises(InputError, match=message):
            run_with(records(80), Job(method="latent", epsilon=8.0, settings=settings), workspace=tmp_path / "run",
                public=others())  # fmt: skip
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="needs public images"):
        run(Vault(records()), Job(method="latent", epsilon=8.0), workspace=tmp_path / "run")


def test_a_generator_that_holds_private_images_is_refused_before_anything_is_reserved(tmp_path: Path) -> None:
    place = tmp_path / "eigen.safetensors"
    for shown, refused in ((records(300), True), (ImageSet(strange_images(400)[300:], np.zeros(100, np.int64)), False)):
        place.unlink(missing_ok=True)
        save_generator(fit_eigen(shown), place)
        job = Job(method="latent", epsilon=8.0, samples=5, settings={"generator": str(place)})
        private = Vault(ImageSet(strange_images(400)[:300], np.arange(300) % 2))
        if refused:
            with pytest.raises(InputError, match="of 300 public images coincide with private ones"):
                run(private, job, workspace=tmp_path / "run")
            assert not (tmp_path / "run").exists()
        else:
            assert len(run(private, job, workspace=tmp_path / "run")) == 5


def test_the_generator_that_was_compared_is_the_one_that_is_used(tmp_path: Path) -> None:
    """A file that is exchanged between the comparison and the fit changes nothing."""
    place = tmp_path / "eigen.safetensors"
    save_generator(fit_eigen(others()), place)
    method = Latent.configure("default", {"generator": str(place)})
    compared, named = method.public_pictures(), sha256_of(place)
    assert compared is not None
    place.unlink()
    save_generator(fit_eigen(records()), place)
    vault = Vault(records())
    plan = method.plan(vault.facts, Budget(8.0, 1e-5))
    found = fit(plan, vault, NoiseSource(0))
    used = found.space.generator
    assert isinstance(used, EigenGenerator)
    assert np.array_equal(used.kept_pictures(), compared.read(np.arange(300)))
    assert plan.certified()["generator_sha256"] == named != sha256_of(place)


def test_a_generator_that_is_exchanged_after_its_hash_was_taken_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "eigen.safetensors"
    save_generator(fit_eigen(others()), place)
    method = Latent.configure("default", {"generator": str(place)})
    method.plan(Vault(records()).facts, Budget(8.0, 1e-5)).certified()
    place.unlink()
    save_generator(fit_eigen(records()), place)
    with pytest.raises(InputError, match="was changed while it was read"):
        method.public_pictures()


def test_the_tuple_of_a_search_can_be_set() -> None:
    settings = {"search": "opt_b", "search_steps": "7", "search_rate": "0.5", "search_start": "average"}
    plan = Latent.configure("default", {**SMALL, **settings}).plan(Vault(records()).facts, Budget(8.0, 1e-3))
    found = plan.search
    assert (found.start, found.steps, found.learning_rate) == ("average", 7, 0.5)
    assert found.penalty == SEARCHES["opt_b"].penalty


def test_a_plan_says_what_its_rules_decided(tmp_path: Path) -> None:
    plan = Latent.configure("fast").plan(FACTS, Budget(1.0, 1e-5))
    assert plan.certified()["generator_steps"] == 300
    assert plan.certified()["dimensions"] == plan.directions == plan.facts["directions estimated"]
    assert plan.certified()["mean_directions"] == plan.mean_directions == plan.facts["means estimated"]
    assert plan.directions < plan.mean_directions
    assert (plan.clip, plan.components) == (None, ())
    chosen = {"dimensions": 3, "mean_directions": 0, "clip": "private", "teacher_share": 0.4}
    chosen["generator"] = file_of(tmp_path)
    given = Latent.configure("default", chosen).plan(replace(FACTS, shape=(16, 16, 1)), Budget(1.0, 1e-5))
    assert (given.directions, given.mean_directions, given.recipe, given.decided) == (3, 3, None, {})
    assert given.teacher is not None
    assert given.events == (given.clip, given.moments, given.teacher.event)
    with pytest.raises(InputError, match="Expected mean_directions of 0, or from 3"):
        Latent.configure("default", {**chosen, "mean_directions": 2}).plan(
            replace(FACTS, shape=(16, 16, 1)), Budget(1.0, 1e-5)
        )


def test_a_plan_loads_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from veilset.methods.latent.config import Latent
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
facts = PublicFacts(units=4000, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
for preset, generator in (("default", ""), ("paper", ""), ("default", {file_of(tmp_path)!r})):
    method = Latent.configure(preset, {{"generator": generator}})
    assert method.inputs() == ()
    method.plan(facts, Budget(1.0, 1e-5)).certified()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_generator_from_a_release_brings_its_events(tmp_path: Path) -> None:
    small = {"inversion_steps": "2", "teacher_share": "0.4"}
    job = Job(method="latent", epsilon=1.0, samples=5, settings=small | {"generator": file_of(tmp_path)})
    first = run(Vault(records()), job, workspace=tmp_path / "a").save(tmp_path / "first")
    for number, place in enumerate((first, first / "generator.safetensors")):
        again = replace(job, epsilon=2.0, settings=small | {"generator": str(place)})
        certificate = run(Vault(records()), again, workspace=tmp_path / f"b{number}").certificate
        carried = [line for line in certificate.ledger if line["kind"] == "carried"]
        assert [line["body"]["event"]["label"] for line in carried] == ["latent moments", "teacher"]
        assert 1.9 < certificate.epsilon <= 2.0
    with pytest.raises(BudgetError, match="already"):
        run(Vault(records()), replace(job, settings=small | {"generator": str(first)}), workspace=tmp_path / "c")
    declared = replace(job, settings=small | {"generator": str(first), "generator_is_of_others": "true"})
    certificate = run(Vault(records()), declared, workspace=tmp_path / "d").certificate
    assert any("of other people" in warning for warning in certificate.warnings)


def test_a_generator_from_a_release_without_a_guarantee_is_refused(tmp_path: Path) -> None:
    job = Job(
        method="latent", epsilon=8.0, samples=5, settings={"inversion_steps": "2", "generator": file_of(tmp_path)}
    )
    first = run(Vault(records()), replace(job, insecure_seed=1), workspace=tmp_path / "a").save(tmp_path / "first")
    with pytest.raises(VerificationError, match="has no privacy guarantee"):
        run(Vault(records()), replace(job, settings={"generator": str(first)}), workspace=tmp_path / "b")


def test_few_public_images_leave_fewer_directions_than_were_asked_for(tmp_path: Path) -> None:
    job = Job(method="latent", epsilon=8.0, samples=5, settings={"dimensions": "60"})
    release = run_with(records(300), job, workspace=tmp_path / "run", public=others(40))
    assert release.models["generator"][1]["directions"] == 39


def test_too_few_units_are_refused() -> None:
    facts = replace(FACTS, units=30, shape=(16, 16, 1))
    with pytest.raises(InputError, match="leave nothing to estimate"):
        Latent.configure("default").plan(facts, Budget(0.05, 1e-3))


@pytest.mark.parametrize("preset", ["fast", "default"])
def test_a_run_that_was_stopped_goes_on_with_its_generator_and_its_paid_sum(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(method="latent", epsilon=8.0, preset=preset, settings=SMALL, samples=20, insecure_seed=0)

    def stopped(self: FittedLatents, count: int, seed: int = 0) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FittedLatents, "sample", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_with(records(), job, workspace=tmp_path / "run", public=others(40))
    monkeypatch.setattr("veilset.methods.latent.method.make_generator", None)  # the kept generator must do
    resumed = run_with(records(), job, workspace=tmp_path / "run", public=others(40), resume=True)
    monkeypatch.undo()
    whole = run_with(records(), job, workspace=tmp_path / "other", public=others(40))
    assert np.array_equal(resumed.images, whole.images)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": "best"}, "Expected search"),
        ({"generator_kind": "diffusion"}, "Expected generator_kind"),
        ({"inversion_steps": "0"}, "Expected inversion_steps to be a whole number of at least 1"),
        ({"clip_quantile": "1"}, "Expected clip_quantile to be a number above 0 and below 1"),
        ({"components": "0"}, "Expected components to be a whole number of at least 1"),
        ({"dimensions": "0"}, "Expected dimensions to be auto or a whole number of at least 1"),
        ({"generator_steps": "-1"}, "Expected generator_steps to be auto or a whole number of at least 1"),
        ({"truncation": "3"}, "truncation"),
        ({"search_steps": "-1"}, "Expected search_steps to be auto or a whole number of at least 0"),
        ({"mean_share": "1"}, "Expected mean_share to be auto or a number above 0 and below 1"),
        ({"inversion_network": "resnet"}, "Unknown network 'resnet'"),
        ({"distance": "lpips"}, "pip install lpips torchvision"),
        ({"latents": "x"}, "Expected latents"),
        ({"latents": "w_plus"}, "latents=w_plus needs a mapping network, which generator_kind=eigen has not"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.methods.latent.choices.find_spec", lambda module: None)
    with pytest.raises(InputError, match=message):
        Latent.configure("default", settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip": "private", "mean_share": "0.3"},
        {"inversion_network": "lenet", "search": "opt_a", "search_start": "average", "search_steps": "2"},
        {"restore": "spread", "components": "2"},
        {"draws": "own", "generator_kind": "eigen", "mirrored": "true"},
        {"draws": "gaussian", "generator_kind": "eigen"},
    ],
)
def test_the_options_run(settings: dict[str, str], tmp_path: Path) -> None:
    job = Job(method="latent", epsilon=8.0, preset="fast", settings={**SMALL, **settings}, samples=20)
    release = run_with(records(), job, workspace=tmp_path / "run", public=others(40))
    assert len(release) == 20
