"""Small real releases, and the tools of a forger."""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger, Line
from veilset.privacy.vault import PublicFacts
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify
from veilset.release.format import Release

EVENTS = (
    Event(label="class means", noise_multiplier=5.0),
    Event(label="steps", noise_multiplier=9.0, count=4),
)
SETTINGS = {"features": 100, "bandwidth": 0.5}
DELTA = 1e-5
NAMES = ("cat", "dog", "emu")
CREATED = "2026-01-02T03:04:05+00:00"


class Maker:
    """Makes ledgers, certificates and releases in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def lines(
        self,
        facts: PublicFacts,
        *,
        plan: Sequence[Event] = EVENTS,
        spent: Sequence[Event] | None = None,
        noise: str = "os-entropy",
        delta: float = DELTA,
        settings: dict[str, Any] = SETTINGS,
        leases: Sequence[tuple[str, int]] = (),
    ) -> list[Line]:
        header = {
            "run": "00000000-0000-4000-8000-000000000000",
            "method": "merf",
            "settings": settings,
            "facts": facts.to_json(),
            "delta": delta,
            "budget": {"epsilon": 7.654321, "delta": DELTA},
            "plan": [event.to_json() for event in plan],
            "noise": noise,
            "seed": 3,
        }
        ledger = Ledger.create(self.folder / f"ledger-{next(self._numbers)}.jsonl", header)
        for event in plan if spent is None else spent:
            ledger.spend(event)
        for label, steps in leases:
            ledger.lease(Event(label=label, noise_multiplier=1.0), steps, 1)
        ledger.close()
        return ledger.lines

    def facts(self, channels: int = 1, names: Sequence[str] = NAMES, units: int = 1000) -> PublicFacts:
        return PublicFacts(units=units, unit="record", shape=(8, 6, channels), class_names=tuple(names))

    def certificate(
        self,
        *,
        facts: PublicFacts | None = None,
        samples: int = 12,
        reasons: Sequence[str] = (),
        warnings: Sequence[str] = (),
        **ledger: Any,
    ) -> Certificate:
        facts = facts or self.facts()
        return certify(
            self.lines(facts, **ledger),
            samples=samples,
            reasons=reasons,
            warnings=warnings,
            created=CREATED,
        )

    def release(
        self,
        *,
        channels: int = 1,
        names: Sequence[str] = NAMES,
        soft: bool = True,
        model: bool = False,
        samples: int = 12,
        **certificate: Any,
    ) -> Release:
        coins = np.random.default_rng(0)
        labels = np.arange(samples, dtype=np.int64) % len(names)
        soft_labels = np.full((samples, len(names)), 0.1 / (len(names) - 1), np.float32)
        soft_labels[np.arange(samples), labels] = 0.9
        models: dict[str, Any] = {}
        if model:
            import torch

            shared = torch.arange(6.0).reshape(2, 3)
            models["generator"] = ({"a": shared, "b": shared.t()}, {"kind": "linear", "sizes": [2, 3]})
        return Release(
            images=coins.integers(0, 256, (samples, 8, 6, channels), dtype=np.uint8),
            labels=labels,
            soft_labels=soft_labels if soft else None,
            models=models,
            certificate=self.certificate(facts=self.facts(channels, names), samples=samples, **certificate),
        )

    def saved(self, *, sign_key: Path | None = None, **release: Any) -> Path:
        return self.release(**release).save(self.folder / f"release-{next(self._numbers)}", sign_key)


def forge(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit a certificate and make its hashes and checksum fit again, as a careful forger without the key would."""
    place = path / "certificate.json"
    content = json.loads(place.read_bytes())
    content["files"] = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in content["files"]}
    edit(content)
    del content["content_sha256"]
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["content_sha256"] = hashlib.sha256(compact.encode()).hexdigest()
    place.write_text(json.dumps(content))


def rechain(lines: list[dict[str, Any]]) -> None:
    """Make the hash chain of edited ledger lines fit again."""
    previous = "0" * 64
    for sequence, line in enumerate(lines):
        line.update(sequence=sequence, previous=previous)
        content = {key: value for key, value in line.items() if key != "hash"}
        compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
        line["hash"] = previous = hashlib.sha256(compact.encode()).hexdigest()


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture(name="forge", scope="session")
def forge_fixture() -> Callable[..., None]:
    return forge


@pytest.fixture(name="rechain", scope="session")
def rechain_fixture() -> Callable[..., None]:
    return rechain


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one signed release with soft labels and a model, to be copied and spoilt."""
    from veilset.release.signing import generate_key

    folder = tmp_path_factory.mktemp("pristine")
    key = folder / "key.pem"
    generate_key(key)
    path = Maker(folder).saved(model=True, sign_key=key)
    return {file.name: file.read_bytes() for file in path.iterdir()} | {"key": (folder / "key.pem.pub").read_bytes()}
