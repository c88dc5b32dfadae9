"""One account for each source, whatever the view; asked for where the answer is not plain."""

from pathlib import Path

import numpy as np
import pytest

from veilset.core.errors import BudgetError, InputError
from veilset.data import ImageSet, open_images
from veilset.privacy import sources
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.sources import account_for, known_accounts, likeness_of, remember
from veilset.privacy.vault import Vault


def pictures(count: int = 60, seed: int = 0, start: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count + start, 12, 12, 3), dtype=np.uint8)[start:]


def pack(path: Path, images: np.ndarray) -> Path:
    np.savez(path, images=images, labels=np.arange(len(images)) % 2, other=np.arange(len(images)) % 3)
    return path


def vault_of(images: np.ndarray) -> Vault:
    return Vault(ImageSet(images, np.arange(len(images)) % 2))


@pytest.mark.parametrize(
    "view", [{}, {"size": 8}, {"channels": 1}, {"limit": 20}, {"labels": "other"}, {"size": 16, "limit": 30}]
)
def test_every_view_has_the_account_of_its_source(tmp_path: Path, view: dict[str, object]) -> None:
    source = pack(tmp_path / "x.npz", pictures())
    first = account_for(Vault(open_images(source)))
    assert account_for(Vault(open_images(source, **view))).path == first.path  # type: ignore[arg-type]
    copy = pack(tmp_path / "copy.npz", pictures())
    assert account_for(Vault(open_images(copy, **view))).path == first.path  # type: ignore[arg-type]
    assert [known.path for known in known_accounts(str(source))] == [first.path]


def test_a_wider_view_after_a_narrow_one(tmp_path: Path) -> None:
    source = pack(tmp_path / "x.npz", pictures())
    first = account_for(Vault(open_images(source, limit=5)))
    assert account_for(Vault(open_images(source))).path == first.path
    assert account_for(vault_of(pictures())).path == first.path


@pytest.mark.parametrize("images", [pictures(59), pictures(59, start=1), pictures(66)])
def test_a_record_fewer_or_some_more_is_the_same_source(images: np.ndarray) -> None:
    first = account_for(vault_of(pictures()))
    assert account_for(vault_of(images)).path == first.path


def test_other_data_has_another_account() -> None:
    assert account_for(vault_of(pictures())).path != account_for(vault_of(pictures(seed=1))).path


def test_a_source_that_shares_a_part_is_asked_about(tmp_path: Path) -> None:
    first = account_for(vault_of(pictures()))
    mixed = vault_of(np.concatenate([pictures()[:15], pictures(45, seed=1)]))
    with pytest.raises(InputError, match=f"pass --account {first.path}"):
        account_for(mixed)
    assert remember(mixed, Account(tmp_path / "new.sqlite")) == []
    assert account_for(mixed).path == tmp_path / "new.sqlite", "what a person named is kept"


def test_other_images_in_the_same_place_are_asked_about(tmp_path: Path) -> None:
    source = pack(tmp_path / "x.npz", pictures())
    account_for(Vault(open_images(source)))
    pack(source, pictures(seed=1))
    with pytest.raises(InputError, match="from the same place"):
        account_for(Vault(open_images(source)))


def test_a_named_account_is_found_again_and_two_are_asked_about(tmp_path: Path) -> None:
    assert remember(vault_of(pictures()), Account(tmp_path / "a.sqlite")) == []
    assert account_for(vault_of(pictures())).path == tmp_path / "a.sqlite"
    assert remember(vault_of(pictures()), Account(tmp_path / "b.sqlite")) == [tmp_path / "a.sqlite"]
    with pytest.raises(InputError, match="Several accounts"):
        account_for(vault_of(pictures()))


def test_another_account_does_not_let_data_pass_its_limit(tmp_path: Path) -> None:
    first = account_for(vault_of(pictures()))
    first.set_limit(Budget(1.0, 1e-5))
    with pytest.raises(BudgetError, match="which has a limit"):
        remember(vault_of(pictures(59)), Account(tmp_path / "second.sqlite"))
    assert account_for(vault_of(pictures())).path == first.path


def test_an_account_that_was_named_for_built_in_images_does_not_follow_them(tmp_path: Path) -> None:
    digits = Vault(open_images("builtin:digits"))
    remember(digits, Account(tmp_path / "demo.sqlite"))
    assert known_accounts() == []
    assert account_for(digits).path != tmp_path / "demo.sqlite"


def test_a_lost_account_is_not_forgotten_in_silence(tmp_path: Path) -> None:
    lost = account_for(vault_of(pictures())).path
    lost.unlink()
    with pytest.raises(InputError, match="is gone"):
        account_for(vault_of(pictures()))
    remember(vault_of(pictures()), Account(tmp_path / "new.sqlite"))
    assert account_for(vault_of(pictures())).path == tmp_path / "new.sqlite"


def test_a_sketch_of_a_large_source_still_knows_a_small_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SKETCH", 200)
    whole = np.unique(np.random.default_rng(0).integers(0, 2**63, 20_000, dtype=np.uint64))
    sketch = whole[:200]
    view = np.sort(np.random.default_rng(1).choice(whole, 2000, replace=False))
    assert likeness_of(sketch, view, same_place=False) == "same"
    others = np.unique(np.random.default_rng(2).integers(0, 2**63, 2000, dtype=np.uint64))
    assert likeness_of(sketch, others, same_place=False) == "other"
    assert likeness_of(sketch, whole[-1:], same_place=True) == "same", "too few to compare: the place decides"


def test_the_index_holds_no_digest_of_a_record() -> None:
    records = ImageSet(pictures(), np.arange(60) % 2)
    account = account_for(Vault(records))
    for place in (account.path, account.path.parent.parent / "accounts.index"):
        content = place.read_bytes()
        assert place.stat().st_mode & 0o077 == 0, "for its owner's eyes"
        for known in (*records.source_digests(), *records.digests()):
            assert bytes(known)[:8] not in content


def test_runs_for_other_groups_do_not_share_an_account(tmp_path: Path) -> None:
    """By images a person with four of them costs four times what the account would say."""
    images, patients = pictures(), np.arange(60) // 4
    plan = Plan(budget=Budget(1.0, 1e-3), events=(Event(label="sum", noise_multiplier=4.0),))

    def vault(groups: np.ndarray, count: int = 60) -> Vault:
        return Vault(ImageSet(images[:count], np.arange(count) % 2, groups=groups[:count]), unit="group")

    account_for(vault(np.arange(60)))  # looked at, and nothing spent
    first = account_for(vault(patients))
    first.reserve("run", "merf", plan, unit="group")
    renamed = np.array([f"patient {number}" for number in 100 - patients])
    for same in (vault(patients), vault(renamed), vault(patients, 56)):
        assert account_for(same).path == first.path
    for other in (np.arange(60), np.arange(60) // 2, np.arange(60) // 8, np.roll(patients, 1)):
        with pytest.raises(InputError, match="other groups"):
            account_for(vault(other))
        with pytest.raises(InputError, match="other groups"):
            remember(vault(other), first)
    assert account_for(vault_of(images)).path == first.path  # records: the account asks for --images-per-group
