"""Real small releases, with and without a guarantee, and an evaluation, an attack and an audit of the first."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilset.core.files import sha256_of
from veilset.data.images import ImageSet
from veilset.evaluate.pictures import png_of
from veilset.methods import METHODS
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault

SUPPORT = str(Path(__file__).parent.parent / "support")
NAMES = ("cat & dog", "<b>emu</b>", "fox")


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`dp` for records, `group` for people, `none` as published."""
    folder = tmp_path_factory.mktemp("releases")
    coins = np.random.default_rng(0)
    labels = np.arange(1200) % 3
    images = (coins.integers(0, 80, (1200, 16, 16, 1)) + 70 * labels[:, None, None, None]).astype(np.uint8)
    records = ImageSet(images, labels, NAMES, groups=np.arange(1200) // 4)
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [SUPPORT, *sys.path])
        patch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
        for name, unit, published in (("dp", "record", False), ("group", "group", False), ("none", "record", True)):
            job = Job(method="tiny", epsilon=3.21, delta=1e-5, samples=90, as_published=published)
            account = Account(folder / f"{name}.sqlite")  # one for all would refuse to add records to groups
            release = run(Vault(records, unit=unit), job, workspace=folder / f"{name}-run", account=account)  # type: ignore[arg-type]
            made[name] = release.save(folder / name)
    return made


@pytest.fixture
def measured(releases: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Files whose private numbers are unmistakable: 0.4242 and 42.42 stand for what must not be published."""
    picture = base64.b64encode(png_of(np.full((8, 8, 1), 7, np.uint8))).decode()
    score: dict[str, Any] = {"interval": [0.41, 0.45], "n": 50, "higher_is_better": True}
    student = {
        "student": "convnet",
        "accuracy": 0.4242,
        "accuracy_std": 0.01,
        "accuracy_interval": [0.40, 0.45],
        "balanced_accuracy": 0.4242,
        "auc": None,
        "calibration_error": 0.4242,
        "per_class": [{"name": NAMES[1], "recall": 0.4242, "interval": [0.4, 0.45], "n": 50}],
        "seeds": [{"seed": 0}, {"seed": 1}],
        "something_new": {"from": "a later version"},
    }
    contents = {
        "evaluation": student
        | {
            "release": {"certificate_sha256": sha256_of(releases["dp"] / "certificate.json")},
            "students": [student],
            "reference_scores": [
                {"name": "ceiling", "title": "Real images", "accuracy": 0.4242, "needs_private_data": True}
            ],
            "reference_scores_skipped": [{"name": "teacher", "reason": "reason-4242"}],
            "fidelity": [
                {"name": "fid", "value": 42.42, "against": "private", "needs_private_data": True, **score},
                {"name": "kid", "value": 0.777, "against": "public", "needs_private_data": False, **score},
                {"name": "unmarked", "value": 42.42, "against": "public", **score},
            ],
            "pictures": [
                {"caption": "secret-4242", "png_base64": picture, "columns": ["private"], "needs_private_data": True},
                {
                    "name": "any",
                    "caption": "open picture",
                    "png_base64": picture,
                    "columns": ["public"],
                    "needs_private_data": False,
                },
            ],
        },
        "paid": {
            "paid": {
                "student": "lenet",
                "accuracy": 0.777,
                "interval": [0.7, 0.8],
                "epsilon": 0.5,
                "needs_private_data": False,
            }
        },
        "attack": {"attacks": [{"name": "nearest", "auc": 0.4242, "accuracy": 0.4242}, {"name": "silent"}]},
        "audit": {
            "name": "gaussian_sum",
            "claimed_epsilon": 1.0,
            "lower_bound": 0.63,
            "confidence": 0.95,
            "contradicted": False,
        },
    }
    paths = {}
    for name, content in contents.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(content))
    return paths
