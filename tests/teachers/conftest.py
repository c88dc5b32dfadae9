from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.data.images import ImageSet
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.teachers import fitting


class SilentNoise(NoiseSource):
    """Real coins, no noise: shows the exact sum, whose sensitivity a test can measure."""

    def normal(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


@pytest.fixture
def silent_noise() -> NoiseSource:
    return SilentNoise(1)


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_PICTURES", 120)


@pytest.fixture
def stripes() -> Callable[..., ImageSet]:
    """Two classes of noisy 16x16 images: stripes that lie or stand."""

    def make(count: int = 300, channels: int = 1, per_group: int = 0, seed: int = 0, side: int = 16) -> ImageSet:
        coins = np.random.default_rng(seed)
        labels = coins.integers(0, 2, count)
        images = coins.integers(0, 90, (count, side, side, channels))
        places = np.arange(side) // 2 % 2 * 150
        waves = np.where(labels[:, None, None] == 1, places[None, None, :], places[None, :, None])
        groups = np.arange(count) // per_group if per_group else None
        return ImageSet((images + waves[..., None]).astype(np.uint8), labels, ("lie", "stand"), groups)

    return make


@pytest.fixture
def open_session(tmp_path: Path) -> Callable[..., Session]:
    counter = iter(range(1000))

    def make(data: Any, *events: Event, unit: Any = "record", noise: NoiseSource | None = None) -> Session:
        ledger = Ledger.create(tmp_path / f"{next(counter)}.jsonl", {"run": "a-run"})
        plan = Plan(budget=Budget(1e6, 1e-5), events=events)
        session = Session(Vault(data, unit=unit), plan, ledger, noise or NoiseSource(1))
        session.test_ledger = ledger  # type: ignore[attr-defined]
        return session

    return make
