"""`Method(...).fit(...)` is the same run as everywhere else: one opener, one account, one ledger."""

import numpy as np
import pytest

import veilset as vs
from veilset.core.errors import BudgetError, InputError
from veilset.methods import METHODS
from veilset.privacy.sources import known_accounts

COINS = np.random.default_rng(0)
LABELS = np.arange(300) % 3
PIXELS = (COINS.integers(0, 80, (300, 16, 16)) + 80 * LABELS[:, None, None]).astype(np.uint8)
QUICK = {"epsilon": 1.0, "samples": 12}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "support"))
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")


def test_arrays_to_a_release_on_the_same_account(tmp_path):
    release = vs.Method("tiny", **QUICK).fit(PIXELS, LABELS)
    assert len(release) == 12
    assert release.certificate.epsilon <= 1
    vs.verify(release.save(tmp_path / "rel")).raise_if_failed()
    vs.synthesize(vs.Vault.from_arrays(PIXELS, LABELS), method="tiny", budget=1.0, samples=12)
    (known,) = known_accounts()
    account = vs.Account(known.path)
    assert len(account.reservations) == 2
    account.set_limit(vs.Budget(1.5, 1e-4))
    with pytest.raises(BudgetError, match="overdraw"):
        vs.Method("tiny", **QUICK).fit(PIXELS, LABELS)


def test_groups_are_the_unit_and_every_source_is_taken(tmp_path):
    method = vs.Method("tiny", **QUICK)
    assert method.fit(PIXELS, LABELS, groups=np.arange(300) // 5).certificate.unit == "group"
    np.savez(tmp_path / "pack.npz", images=PIXELS, labels=LABELS)
    sources = (
        str(tmp_path / "pack.npz"),
        tmp_path / "pack.npz",
        vs.Vault.from_arrays(PIXELS, LABELS),
        vs.open_images(tmp_path / "pack.npz"),
        list(zip(PIXELS, LABELS, strict=True)),
    )
    for source in sources:
        book = vs.Account(tmp_path / f"{len(list(tmp_path.glob('*.sqlite')))}.sqlite")
        assert len(method.fit(source, account=book)) == 12


@pytest.mark.parametrize("kind", ["array", "path", "records", "colour"])
def test_public_images_come_as_people_have_them(tmp_path, kind):
    photos = COINS.integers(0, 256, (20, 20, 20), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", images=photos)
    public = {
        "array": photos,
        "path": tmp_path / "photos.npz",
        "records": vs.ImageSet(photos, np.zeros(20, int)),
        "colour": np.repeat(photos[..., None], 3, axis=-1),
    }[kind]
    assert len(vs.Method("tiny", **QUICK).fit(PIXELS, LABELS, public=public)) == 12
    with pytest.raises(InputError, match="coincide with private ones"):
        vs.Method("tiny", **QUICK).fit(PIXELS, LABELS, public=PIXELS)


def test_arguments_are_checked_and_can_be_asked_for_as_in_scikit_learn():
    method = vs.Method("tiny", **QUICK)
    assert method.get_params()["epsilon"] == 1.0
    assert method.set_params(epsilon=2.0).epsilon == 2.0
    assert method.plan(vs.Vault.from_arrays(PIXELS, LABELS)).events
    clone = pytest.importorskip("sklearn.base").clone(method)
    assert clone is not method
    assert clone.get_params() == method.get_params()
    with pytest.raises(InputError, match="no argument 'epsilom'"):
        method.set_params(epsilom=1)
    for arguments in ({"name": "merv", "epsilon": 1}, {"name": "merf", "epsilon": 1, "settings": {"stepz": 3}}):
        with pytest.raises(InputError, match="Did you mean"):
            vs.Method(**arguments)
    with pytest.raises(InputError, match="epsilon > 0"):
        vs.Method("merf", epsilon=-1)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ((PIXELS,), "An array of images needs labels"),
        (("pack.npz", LABELS), "has labels of its own"),
        ((3,), "Expected a dataset with a length"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_words_of_python(arguments, cause):
    with pytest.raises(InputError, match=cause) as found:
        vs.Method("tiny", **QUICK).fit(*arguments)
    assert "--" not in str(found.value)


def test_a_student_is_trained_by_one_call():
    release = vs.Method("tiny", **QUICK).fit(PIXELS, LABELS)
    network = vs.train(release, student="lenet", epochs=1)
    assert not network.training


@pytest.mark.filterwarnings("ignore")
def test_a_release_is_a_hugging_face_dataset_and_comes_back():
    pytest.importorskip("datasets")
    release = vs.Method("tiny", **QUICK).fit(PIXELS, LABELS)
    found = release.hugging_face()
    assert found.features["label"].names == list(release.certificate.facts.class_names)
    np.testing.assert_array_equal(np.asarray(found[3]["image"]), release.images[3, :, :, 0])
    assert found["label"][:] == release.labels.tolist()
    again = vs.Vault.from_dataset(found.select(range(12)))
    assert again.facts.units == 12
