import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from veilset.core.errors import InputError, VeilsetError
from veilset.privacy.vault import Public, PublicFacts, Vault, describe


@pytest.fixture
def vault(records: Callable[..., Any]) -> Vault:
    return Vault(records())


@pytest.mark.parametrize(
    "peek",
    [
        lambda v: v[0],
        len,
        list,
        lambda v: 0 in v,
        lambda v: v.images,
        lambda v: v.labels,
        lambda v: v.records,
        lambda v: v.read(np.array([0])),
        vars,
    ],
)
def test_there_is_no_window(vault: Vault, peek: Callable[[Vault], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        peek(vault)


@pytest.mark.parametrize("take_out", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_vault_cannot_be_taken_away(vault: Vault, take_out: Callable[[Vault], Any]) -> None:
    with pytest.raises(VeilsetError, match="cannot be pickled"):
        take_out(vault)


def test_repr_shows_public_facts_only(vault: Vault) -> None:
    assert repr(vault) == "Vault(60 records, 4x4x1, 3 classes, sealed)"


def test_facts_count_units(records: Callable[..., Any]) -> None:
    patients = np.repeat(np.arange(20), 3)
    vault = Vault(records(groups=patients), unit="group")
    assert vault.facts == PublicFacts(units=20, unit="group", shape=(4, 4, 1), class_names=("zero", "one", "two"))
    assert describe(vault.facts.to_json()) == vault.facts


def test_group_unit_needs_groups(records: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="--groups"):
        Vault(records(), unit="group")
    with pytest.raises(InputError, match="record or group"):
        Vault(records(), unit="patient")


def test_the_records_die_with_the_vault(records: Callable[..., Any]) -> None:
    from veilset.privacy.vault import _CONTENTS

    gc.collect()
    before = len(_CONTENTS)
    vault = Vault(records())
    assert len(_CONTENTS) == before + 1
    del vault
    gc.collect()
    assert len(_CONTENTS) == before


def test_only_the_check_makes_public_images(vault: Vault, records: Callable[..., Any]) -> None:
    others = records(seed=9)
    public = vault.check_public(others)
    assert public.is_for(vault)
    assert vault.check_public(public) is public
    assert (len(public), public.shape, public.class_names) == (60, (4, 4, 1), others.class_names)
    np.testing.assert_array_equal(public.read(np.array([3])), others.read(np.array([3])))
    for token in (None, True, object()):
        with pytest.raises(VeilsetError, match=r"made by vault.check_public"):
            Public(records(), vault, token)
    with pytest.raises(VeilsetError, match="cannot be pickled"):
        copy.copy(public)


def test_public_images_of_one_vault_are_compared_again_for_another(vault: Vault, records: Callable[..., Any]) -> None:
    others = records(seed=9)
    public = vault.check_public(others)
    assert not public.is_for(Vault(records()))
    with pytest.raises(InputError, match="60 of 60 public images coincide"):
        Vault(others).check_public(public)


def test_a_vault_is_not_public(vault: Vault, records: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="60 of 60 public images coincide"):
        vault.check_public(records())
    with pytest.raises(InputError, match="Expected public images as from open_images, got Vault"):
        vault.check_public(vault)  # type: ignore[arg-type]


def test_public_images_stay_what_was_compared(vault: Vault, records: Callable[..., Any]) -> None:
    private, others = records(), records(seed=9)
    pixels = others.images.copy()
    public = vault.check_public(type(others)(pixels, others.labels))
    everything = np.arange(len(public))
    assert np.array_equal(public.read(everything), others.images)
    pixels[3] = private.images[3]
    assert np.array_equal(public.read(np.array([0, 2])), others.images[[0, 2]])
    with pytest.raises(InputError, match="not the one that was compared"):
        public.read(everything)


def test_a_source_that_gives_other_images_later(vault: Vault, records: Callable[..., Any]) -> None:
    private, others = records(), records(seed=9)

    class Fickle(type(others)):  # type: ignore[misc]
        seen = 0

        def read(self, rows: Any) -> Any:
            Fickle.seen += 1
            return others.images[rows] if Fickle.seen == 1 else private.images[rows]

    public = vault.check_public(Fickle(others.images, others.labels))
    with pytest.raises(InputError, match="not the one that was compared"):
        public.read(np.array([0]))
