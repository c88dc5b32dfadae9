"""Two real processes under torchrun: one sampler, one noise, one ledger, equal weights, the same epsilon."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).resolve()
UNITS, STEPS = 400, 30
LABELS = ["count", "classes", "bins", "middle", "dp-sgd", "head"]


def _main(folder: Path) -> None:
    """What each of the processes runs."""
    from torch import nn

    from veilset.core.errors import InputError
    from veilset.data.images import ImageSet
    from veilset.dpsgd import PrivateTraining, train_private
    from veilset.privacy.accounting import epsilon_of
    from veilset.privacy.budget import Budget
    from veilset.privacy.events import Event, Plan
    from veilset.privacy.ledger import Ledger
    from veilset.privacy.noise import NoiseSource
    from veilset.privacy.processes import SharedLedger, join_if_launched, rank_and_size
    from veilset.privacy.session import Session
    from veilset.privacy.vault import Vault

    torch.set_num_threads(1)
    join_if_launched()
    rank, size = rank_and_size()
    images = np.random.default_rng(0).integers(0, 256, (UNITS, 16, 16, 1), dtype=np.uint8)
    reads: list[int] = []

    class Counted(ImageSet):
        def read(self, rows: np.ndarray) -> np.ndarray:
            reads.extend(rows.tolist())
            return super().read(rows)

    count = Event(label="count", noise_multiplier=0.5)
    steps = Event(label="dp-sgd", noise_multiplier=1.0, sampling_rate=0.25, count=STEPS)
    ledger = Ledger.create(folder / "ledger.jsonl", {"run": "x"}) if rank == 0 else None
    shared = ledger if size == 1 else SharedLedger(ledger)
    cached = Event(label="head", noise_multiplier=1.0, sampling_rate=0.25, count=STEPS)
    by_class, bins, middle = (Event(label=label, noise_multiplier=0.01) for label in ("classes", "bins", "middle"))
    plan = Plan(budget=Budget(1e9, 1e-5), events=(count, by_class, bins, middle, steps, cached))
    # One process lists the same records in another order: by position, half of the units would count in both.
    turned = Vault(ImageSet(np.roll(images, rank, axis=0), np.roll(np.arange(UNITS) % 2, rank)))
    try:
        refused = ""
        Session(turned, plan, shared, NoiseSource())
    except InputError as error:
        refused = str(error)
    session = Session(Vault(Counted(images, np.arange(UNITS) % 2)), plan, shared, NoiseSource(), workspace=folder)
    total = session.gaussian_sum(lambda images, labels: torch.ones(len(labels), 1), count, clip_norm=1.0)
    counted = sorted(reads)

    def brightness(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return images.double().mean(dim=(1, 2, 3))[:, None]

    sums = session.gaussian_sum(lambda images, labels: brightness(images, labels) / 255, by_class, clip_norm=1.0,
                                by_class=True)  # fmt: skip
    histogram = session.histogram(lambda images, labels: labels[:, None], 2, bins)
    median = session.quantile(brightness, 0.5, list(range(100, 156)), middle)
    reads.clear()
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    torch.manual_seed(0)
    nn.init.normal_(model[1].weight)
    train_private(session, model, steps, PrivateTraining())
    sampled = list(reads)
    reads.clear()
    seen: list[int] = []

    def features(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(len(labels))
        return images.flatten(1).float() / 255

    head = nn.Linear(256, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    train_private(session, head, cached, PrivateTraining(), features=features)
    session.finish()
    out = {
        "refused": refused,
        "total": total.tolist(),
        "counted": counted,
        "sums": sums.tolist(),
        "histogram": histogram.tolist(),
        "median": median,
        "sampled": len(sampled),
        "owned": sorted(set(sampled)),
        "cached": sorted(reads),
        "head": head.weight.flatten().tolist(),
        "weights": model[1].weight.flatten().tolist(),
        "epsilon": epsilon_of(plan.events, 1e-5),
    }
    (folder / f"{rank}.json").write_text(json.dumps(out))


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    from veilset.privacy.accounting import epsilon_of
    from veilset.privacy.ledger import check_chain, read_ledger

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))

    assert "another order" in first["refused"]
    assert "another order" in second["refused"]
    assert first["total"] == second["total"], "noise is added once"
    assert abs(first["total"][0] - UNITS) < 6 * 0.5
    assert sorted(first["counted"] + second["counted"]) == list(range(UNITS)), "every unit has one owner"
    images = np.random.default_rng(0).integers(0, 256, (UNITS, 16, 16, 1), dtype=np.uint8)
    bright = images.mean(axis=(1, 2, 3))
    for name in ("sums", "histogram", "median"):
        assert first[name] == second[name], "every sum leaves once, with one noise"
    assert np.allclose(np.ravel(first["sums"]), [bright[0::2].sum() / 255, bright[1::2].sum() / 255], atol=0.1)
    assert np.allclose(first["histogram"], [UNITS / 2, UNITS / 2], atol=0.1), "over the units of both"
    assert abs(first["median"] - np.median(bright)) <= 1
    assert not set(first["owned"]) & set(second["owned"])
    sampled, expected = first["sampled"] + second["sampled"], UNITS * STEPS * 0.25
    assert abs(sampled - expected) < 6 * np.sqrt(expected * 0.75), "together they are the sampler of the event"
    assert first["weights"] == second["weights"]
    assert first["head"] == second["head"]
    assert np.any(first["head"]), "a head on cached features learns in both"
    assert sorted(first["cached"] + second["cached"]) == list(range(UNITS)), "each computes the features of its own"

    lines = read_ledger(tmp_path / "ledger.jsonl")
    events = check_chain(lines)
    assert [event.label for event in events] == LABELS, "the ledger is written once"
    assert epsilon_of(events, 1e-5) == pytest.approx(first["epsilon"]) == pytest.approx(second["epsilon"])


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
