from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault


class SpyRecords:
    """Records whose reads are seen by the test; `on_read` runs before any row is handed out."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None) -> None:
        self.images, self.labels, self.groups = images, labels, groups
        self.class_names = ("zero", "one", "two")
        self.on_read: Callable[[], None] = lambda: None
        self.reads = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape[1:]

    def read(self, rows: np.ndarray) -> np.ndarray:
        self.on_read()
        self.reads += 1
        return self.images[rows]

    def digests(self) -> np.ndarray:
        import hashlib

        digest = [
            hashlib.sha256(i.tobytes() + bytes([k])).digest() for i, k in zip(self.images, self.labels, strict=True)
        ]
        return np.array([np.frombuffer(d, dtype=np.uint8) for d in digest])


class SilentNoise(NoiseSource):
    """Real coins, no noise: shows the exact sum, whose sensitivity a test can measure."""

    def normal(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


@pytest.fixture
def records() -> Callable[..., SpyRecords]:
    def make(count: int = 60, seed: int = 0, groups: np.ndarray | None = None) -> SpyRecords:
        random = np.random.default_rng(seed)
        images = random.integers(0, 256, (count, 4, 4, 1), dtype=np.uint8)
        return SpyRecords(images, np.arange(count) % 3, groups)

    return make


@pytest.fixture
def open_session(tmp_path: Path) -> Callable[..., Session]:
    counter = iter(range(1000))

    def make(
        data: Any, events: list[Event], *, noise: NoiseSource | None = None, unit: str = "record", **options: Any
    ) -> Session:
        ledger = options.pop("ledger", None) or Ledger.create(tmp_path / f"{next(counter)}.jsonl", {"run": "a-run"})
        plan = Plan(budget=Budget(1e6, 1e-5), events=tuple(events))
        return Session(Vault(data, unit=unit), plan, ledger, noise or NoiseSource(1), **options)

    return make


@pytest.fixture
def silent_noise() -> NoiseSource:
    return SilentNoise(1)


@pytest.fixture
def make_silent() -> Callable[[], NoiseSource]:
    return lambda: SilentNoise(1)
