"""Vaults of arrays and of other people's dataset classes."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import veilset as vs
from veilset.core.errors import InputError
from veilset.data.datasets import from_dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def test_arrays_become_a_vault():
    vault = vs.Vault.from_arrays(PIXELS, LABELS.tolist(), class_names=["a", "b", "c"])
    assert (vault.facts.units, vault.facts.unit, vault.facts.class_names) == (30, "record", ("a", "b", "c"))
    assert vs.Vault.from_arrays(PIXELS, LABELS, groups=np.arange(30) // 2).facts.unit == "group"


def test_a_torch_dataset_is_read_with_its_channels_last():
    tensors = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    records = from_dataset(tensors)
    np.testing.assert_array_equal(records.images, PIXELS)
    np.testing.assert_array_equal(records.labels, LABELS)
    assert vs.Vault.from_dataset(tensors).facts.shape == (8, 8, 3)


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_dataset_is_read_with_its_class_names():
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["x", "y", "z"]), patient=datasets.Value("string")
    )
    columns = {"image": [Image.fromarray(each) for each in PIXELS], "label": LABELS.tolist()}
    found = datasets.Dataset.from_dict(columns | {"patient": [str(i // 3) for i in range(30)]}, features=features)
    records = from_dataset(found, groups="patient")
    np.testing.assert_array_equal(records.images, PIXELS)
    assert records.class_names == ("x", "y", "z")
    assert vs.Vault.from_dataset(found, groups="patient").facts.units == 10
    with pytest.raises(InputError, match="no column 'nurse'"):
        from_dataset(found, groups="nurse")


@pytest.mark.parametrize("wrong", ["xrays/", 3, [1, 2]])
def test_what_is_no_dataset_is_refused_in_words_of_python(wrong):
    with pytest.raises(InputError, match="Expected") as error:
        from_dataset(wrong)
    assert "--" not in str(error.value)


class Pairs(list):
    """A torch-like dataset of (image, label)."""


def test_names_and_findings_are_labels_too():
    named = from_dataset(Pairs(zip(PIXELS, np.array(["x", "y", "z"])[LABELS].tolist(), strict=True)))
    assert named.class_names == ("x", "y", "z")
    np.testing.assert_array_equal(named.labels, LABELS)
    findings = np.stack([LABELS == 1, LABELS > 0], axis=1).astype(int)
    assert from_dataset(Pairs(zip(PIXELS, findings.tolist(), strict=True))).labels.shape == (30, 2)
    with pytest.raises(InputError, match=r"class numbers .* or as names"):
        from_dataset(Pairs(zip(PIXELS, LABELS / 2, strict=True)))


def test_groups_of_a_torch_dataset_are_a_list():
    tensors = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    assert vs.Vault.from_dataset(tensors, groups=[number // 3 for number in range(30)]).facts.units == 10
    with pytest.raises(InputError, match="Pass groups as a list"):
        from_dataset(tensors, groups="patients")


def test_several_splits_are_refused():
    with pytest.raises(InputError, match=r"got a dict of train, test. Pass one of them"):
        from_dataset({"train": [], "test": []})
