"""What every registered method must do. A new method is found by the registry and needs no test of its own here."""

import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_with

import veilset as vs
from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context
from veilset.pipeline.run import Job, draw_plan, run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Plan
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.format import load_release
from veilset.release.verify import verify_release

# The same code with the smallest numbers that still do everything.
DATA_FREE = {
    "warmup_steps": "2",
    "steps": "2",
    "settle_steps": "2",
    "random_features": "64",
    "pictures": "40",
    "batch": "16",
    "student_batch": "16",
    "bank": "32",
}
TINY: dict[str, dict[str, str]] = {
    "dfd": {**DATA_FREE, "teacher_steps": "20"},
    "dpaf": {"layout": "C1-C1-x", "steps": "4", "mu": "2", "width": "4", "generated_batch": "8"},
    "dpgan": {"steps": "3", "random_features": "64", "pictures": "40", "generated_batch": "8"},
    "imgsyn": {"iterations": "2", "batch": "20"},
    "latent": {"generator_steps": "2", "inversion_steps": "2"},
    "merf": {"steps": "3", "random_features": "64", "code_size": "16", "pictures": "100", "batch": "16"},
    "pate": {**DATA_FREE, "teachers": "20"},
    "pldk": {
        "networks": "3",
        "moves": "1",
        "width": "4",
        "images_per_class": "20",
        "copies": "40",
        "student_updates": "2",
    },
    "sanitized_gan": {"steps": "3", "critics": "4", "pictures": "40", "code_size": "8", "warmup": "1"},
}
METHOD_NAMES = sorted(METHODS)


@pytest.fixture(params=METHOD_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def job(name: str, **options: Any) -> Job:
    return Job(**{"method": name, "epsilon": 8.0, "preset": "fast", "settings": TINY[name], "samples": 40, **options})


def records(count: int = 400, channels: int = 1, groups: bool = False) -> ImageSet:
    coins = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = coins.integers(0, 120, (count, 16, 16, channels)) + 120 * labels[:, None, None, None]
    return ImageSet(images.astype(np.uint8), labels, groups=np.arange(count) // 4 if groups else None)


def public_for(name: str, channels: int = 1) -> ImageSet | None:
    """Public images for methods that need them."""
    if not METHODS.get(name).needs_public:
        return None
    images = np.random.default_rng(1).integers(0, 256, (60, 16, 16, channels), dtype=np.uint8)
    return ImageSet(images, np.arange(60) % 2)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 10.0])
def test_the_plan_fits_the_budget(name: str, epsilon: float) -> None:
    facts = PublicFacts(units=5000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    plan = draw_plan(job(name, epsilon=epsilon), facts)
    spent = epsilon_of(plan.events, plan.budget.delta)
    assert 0.9 * epsilon <= spent <= epsilon


@pytest.mark.parametrize(("channels", "unit"), [(1, "record"), (3, "record"), (1, "group")])
def test_a_whole_run(name: str, channels: int, unit: str, tmp_path: Path) -> None:
    """Plan equals ledger, the budget is respected, the release verifies and survives a round trip."""
    vault = Vault(records(channels=channels, groups=unit == "group"), unit=unit)
    public = public_for(name, channels)
    checked = None if public is None else vault.check_public(public)
    release = run(vault, job(name), workspace=tmp_path / "run", public=checked)
    assert check_chain(release.certificate.ledger) == list(draw_plan(job(name), vault.facts).events)
    assert release.certificate.epsilon <= 8.0
    assert release.images.shape == (40, 16, 16, channels)
    assert release.images.dtype == np.uint8
    assert set(np.unique(release.labels)) <= {0, 1}
    release.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").ok
    loaded = load_release(tmp_path / "release")
    assert np.array_equal(loaded.images, release.images)
    assert np.array_equal(loaded.labels, release.labels)
    assert set(loaded.models) == set(release.models)
    promised = set(METHODS.get(name).releases) - {"images", "labels", "soft_labels"}
    assert promised == set(release.models)
    assert ("soft_labels" in METHODS.get(name).releases) == (release.soft_labels is not None)


def test_same_noise_same_bytes(name: str, tmp_path: Path) -> None:
    first, second = (
        run_with(records(), job(name, insecure_seed=3), workspace=tmp_path / part, public=public_for(name))
        for part in ("a", "b")
    )
    assert np.array_equal(first.images, second.images)
    assert np.array_equal(first.labels, second.labels)


def test_sampling_before_fitting_fails(name: str) -> None:
    with pytest.raises(VeilsetError, match="Call fit first"):
        METHODS.get(name).configure("fast").sample(3)


def test_an_empty_plan_stops_the_method_before_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method cannot spend what its plan does not hold, whatever it tries."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    plan = Plan(budget=vs.Budget(1.0, 1e-4), events=())
    session = Session(Vault(records()), plan, ledger, NoiseSource(1))
    monkeypatch.setattr(ImageSet, "read", lambda self, rows: pytest.fail("data was read"))
    with pytest.raises(BudgetError, match="No data was read"):
        METHODS.get(name).configure("fast", TINY[name]).fit(session, None, Context())
    ledger.close()


def test_presets_and_settings(name: str) -> None:
    kind = METHODS.get(name)
    assert {"fast", "default"} <= set(kind.presets)
    for preset in kind.presets:
        kind.configure(preset)
    with pytest.raises(InputError, match="Unknown setting"):
        kind.configure("default", {"nonsense": "1"})
    assert kind.name == name
    assert kind.title
    assert kind.paper
    assert kind.guarantee == "dp"


def test_the_docs_page_has_a_privacy_argument(name: str) -> None:
    page = Path(__file__).parent.parent.parent / "docs" / f"{name}.md"
    text = page.read_text(encoding="utf-8").lower()
    for part in ("unit", "relation", "sensitivity", "event", "composition"):
        assert part in text, f"{page.name} says nothing of the {part}"


@pytest.mark.parametrize("text", ["1e-43", "8e-315", "inf", "nan"])
def test_numbers_beyond_reason_are_refused(name: str, text: str) -> None:
    kind = METHODS.get(name)
    numbers = [key for key, hint in typing.get_type_hints(kind.config_type).items() if hint is float]
    assert numbers
    for key in numbers:
        with pytest.raises(InputError):  # by the range, or by a stricter rule of the method
            kind.configure("default", {key: text})
