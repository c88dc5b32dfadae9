"""What every registered method must do. A new method is found by the registry and needs no test of its own here."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_with

import veilset as vs
from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context
from veilset.pipeline.job import Job, draw_plan
from veilset.pipeline.run import run
from veilset.privacy import accounting
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Plan
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.format import load_release
from veilset.release.verify import verify_release
from veilset.teachers import fitting

METHOD_NAMES = sorted(METHODS)


@pytest.fixture(params=METHOD_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def job(name: str, **options: Any) -> Job:
    return Job(**{"method": name, "epsilon": 8.0, "preset": "smoke", "samples": 40, **options})


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


@pytest.mark.usefixtures("fewer_pictures")
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


@pytest.mark.slow
def test_images_of_128_pixels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method runs at a size that scans have; what a teacher learns of drawn pictures is cut short here."""
    monkeypatch.setattr(fitting, "_PICTURES", 700)
    coins = np.random.default_rng(0)
    labels = np.arange(120) % 2
    images = (coins.integers(0, 120, (120, 128, 128, 1)) + 120 * labels[:, None, None, None]).astype(np.uint8)
    vault = Vault(ImageSet(images, labels))
    public = ImageSet(coins.integers(0, 256, (40, 128, 128, 1), dtype=np.uint8), np.arange(40) % 2)
    checked = vault.check_public(public) if METHODS.get(name).needs_public else None
    release = run(vault, job(name, delta=1e-3, samples=20), workspace=tmp_path / "run", public=checked)
    assert release.images.shape == (20, 128, 128, 1)
    assert release.certificate.epsilon <= 8.0


@pytest.mark.parametrize(
    ("name", "side"), [(name, 128) for name in METHOD_NAMES] + [("imgsyn", 224), ("dfd", 224), ("latent", 256)]
)
def test_plans_of_large_images(name: str, side: int) -> None:
    """Events, and so the guarantee, are those of small images."""
    events = [
        draw_plan(
            job(name), PublicFacts(units=5000, unit="record", shape=(size, size, 1), class_names=("0", "1"))
        ).events
        for size in (64, side)
    ]
    assert events[0] == events[1]


def test_same_noise_same_bytes(name: str, tmp_path: Path) -> None:
    first, second = (
        run_with(records(), job(name, insecure_seed=3), workspace=tmp_path / part, public=public_for(name))
        for part in ("a", "b")
    )
    assert np.array_equal(first.images, second.images)
    assert np.array_equal(first.labels, second.labels)


def test_a_method_has_nothing_to_sample_from(name: str) -> None:
    """Only what `fit` gives back can be drawn from."""
    assert not hasattr(METHODS.get(name), "sample")


def test_a_plan_needs_no_torch(name: str) -> None:
    """`veilset methods` and `veilset plan` answer in a second or two, because they do not load it."""
    code = f"""
import sys
from veilset.methods import METHODS
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
facts = PublicFacts(units=5000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
METHODS.get({name!r}).configure().plan(facts, Budget(1.0, 1e-5))
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_empty_plan_stops_the_method_before_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method cannot spend what its plan does not hold, whatever it tries."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    plan = Plan(budget=vs.Budget(1.0, 1e-4), events=())
    vault, method = Vault(records()), METHODS.get(name).configure("smoke")
    drawn = method.plan(vault.facts, vs.Budget(8.0, 1e-4))
    session = Session(vault, plan, ledger, NoiseSource(1))
    public = public_for(name)
    checked = None if public is None else vault.check_public(public)
    private = vault.facts.units
    read = ImageSet.read
    monkeypatch.setattr(
        ImageSet, "read", lambda self, rows: pytest.fail("data was read") if len(self) == private else read(self, rows)
    )
    with pytest.raises(BudgetError, match="No data was read"):
        method.fit(drawn, session, checked, Context())
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
    page = Path(__file__).parent.parent.parent / "docs" / "methods" / f"{name}.md"
    text = page.read_text(encoding="utf-8").lower()
    for part in ("unit", "relation", "sensitivity", "event", "composition"):
        assert part in text, f"{page.name} says nothing of the {part}"


@pytest.mark.parametrize("text", ["1e-43", "8e-315", "inf", "nan"])
def test_numbers_beyond_reason_are_refused(name: str, text: str) -> None:
    kind = METHODS.get(name)
    fields = kind.settings_type.model_fields
    numbers = [key for key, field in fields.items() if field.annotation is float]
    assert numbers
    for key in numbers:
        with pytest.raises(InputError):  # by the range, or by a stricter rule of the method
            kind.configure("default", {key: text})


def test_every_setting_has_a_meaning_and_takes_its_own_default(name: str) -> None:
    kind = METHODS.get(name).settings_type
    for key, field in kind.model_fields.items():
        assert field.description, f"{key} says nothing of what it means"
        assert str(getattr(kind(**{key: str(field.default)}), key)) == str(field.default)


def test_wrong_values_are_refused_with_the_allowed_ones(name: str) -> None:
    """In Python and on the command line alike: the same reader."""
    kind = METHODS.get(name)
    for key, field in kind.settings_type.model_fields.items():
        if field.annotation is str:
            continue
        with pytest.raises(InputError, match=f"Expected {key} to be"):
            kind.configure("default", {key: "nonsense"})


@pytest.mark.parametrize("preset", ["default", "fast"])
def test_a_plan_is_calibrated_once(name: str, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was decided is looked for again: neither in the plan nor in the fit."""
    calls = []
    real = accounting._bracket

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(accounting, "_bracket", counted)
    facts = PublicFacts(units=5000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    plan = METHODS.get(name).configure(preset).plan(facts, vs.Budget(1.07, 1e-5))
    # One for a single sum, one for each share alone, one for all of them together.
    assert len(calls) <= 2 + len({event.label for event in plan.events})
