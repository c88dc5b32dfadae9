from pathlib import Path

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault

JOB = Job(method="imgsyn", epsilon=8.0, settings={"aligned_share": "0", "variation": "none"}, samples=20)


def dots(seed: int) -> ImageSet:
    return ImageSet(np.random.default_rng(seed).integers(0, 256, (60, 16, 16, 1), dtype=np.uint8), np.arange(60) % 2)


def test_a_run_takes_no_public_images_that_were_not_compared_with_its_vault(tmp_path: Path) -> None:
    private, vault = dots(0), Vault(dots(0))
    elsewhere = Vault(dots(1)).check_public(private)  # fine there, and the very images of this vault
    for public in (private, vault, elsewhere):
        with pytest.raises(InputError, match=r"Pass public=vault.check_public\(images\)"):
            run(vault, JOB, workspace=tmp_path / "run", public=public)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="60 of 60 public images coincide"):
        vault.check_public(elsewhere)
    assert not (tmp_path / "run").exists()
