import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from veilset.core.errors import InputError, VeilsetError
from veilset.privacy.vault import PublicFacts, Vault, describe


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
