"""Defences against membership inference that are not methods of ours, for the table of benchmarks/leakage.py.

Each takes images that its network may learn from and gives a network back. None but DP-SGD has a guarantee.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.data.images import ImageSet
from veilset.dpsgd import PrivateTraining, train_private
from veilset.models import build_network
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan, sampling_rate_for
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig

NETWORK, WIDTH = "convnet", 16
UNDEFENDED = TrainingConfig(epochs=25, augmentation=None, label_smoothing=0.0, weight_decay=0.0)
REGULARISED = TrainingConfig(epochs=25, augmentation=None, label_smoothing=0.3, weight_decay=1.0)
DISTILLED = TrainingConfig(epochs=20, temperature=4.0)
PRIVATE_STEPS, PRIVATE_BATCH = 120, 256


@dataclass(frozen=True, kw_only=True)
class Data:
    """Whom a network may learn from: members, images of strangers, and nonmembers that a defence may know."""

    members: ImageSet
    public: ImageSet
    reference: ImageSet


def fresh(members: ImageSet, seed: int) -> nn.Module:
    """The untrained network of every row."""
    classes = len(members.class_names)
    return build_network(NETWORK, shape=members.shape, classes=classes, width=WIDTH, seed=seed)


def undefended(data: Data, seed: int) -> nn.Module:
    """Trained until it knows the members by heart."""
    return train_classifier(
        fresh(data.members, seed), data.members.images, data.members.labels, config=UNDEFENDED, seed=seed
    )


def regularised(data: Data, seed: int) -> nn.Module:
    """Weight decay and label smoothing."""
    members = data.members
    return train_classifier(fresh(members, seed), members.images, members.labels, config=REGULARISED, seed=seed)


def membership_privacy_distillation(data: Data, seed: int) -> nn.Module:
    """DMP (Shejwalkar and Houmansadr, AAAI 2021): a student of the undefended network, on public images alone.

    As there, it gets the images that the undefended network is surest of: half of them.
    """
    answers = predict(undefended(data, seed), data.public.images)
    probabilities = torch.from_numpy(answers).softmax(dim=1).numpy()
    entropy = -(probabilities * np.log(probabilities + 1e-12)).sum(axis=1)
    surest = np.sort(np.argsort(entropy)[: len(entropy) // 2])
    soft, hard = probabilities[surest], probabilities[surest].argmax(axis=1).astype(np.int64)
    student = fresh(data.members, seed + 1)
    return train_classifier(student, data.public.images[surest], hard, soft, config=DISTILLED, seed=seed)


def adversarial_regularisation(
    data: Data, seed: int, *, weight: float = 6.0, epochs: int = 20, batch: int = 128
) -> nn.Module:
    """Nasr, Shokri and Houmansadr (CCS 2018): an attacker is trained beside the network, which also minimises its gain.

    The attacker reads probabilities and label, and sees reference images as nonmembers.
    """
    network, classes = fresh(data.members, seed), len(data.members.class_names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attacker = nn.Sequential(nn.Linear(2 * classes, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    coins = torch_generator(seed, "adversarial regularisation")
    (images, labels), (others, other_labels) = _tensors(data.members), _tensors(data.reference)
    learns = torch.optim.AdamW(network.parameters(), lr=0.002)
    attacks = torch.optim.Adam(attacker.parameters(), lr=0.002)

    def suspicion(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        evidence = torch.cat([logits.softmax(dim=1), functional.one_hot(targets, classes).float()], dim=1)
        found: torch.Tensor = attacker(evidence)[:, 0]
        return found

    for _ in range(epochs * len(labels) // batch):
        rows = torch.randint(len(labels), (batch,), generator=coins)
        strangers = torch.randint(len(other_labels), (batch,), generator=coins)
        logits = network(images[rows].float() / 255)
        with torch.no_grad():
            strange = network(others[strangers].float() / 255)
        # The attacker's turn.
        inside, outside = suspicion(logits.detach(), labels[rows]), suspicion(strange, other_labels[strangers])
        gain = functional.logsigmoid(inside).mean() + functional.logsigmoid(-outside).mean()
        attacks.zero_grad()
        (-gain).backward()  # type: ignore[no-untyped-call]
        attacks.step()
        # The network's turn: classify, and look like a stranger.
        loss = functional.cross_entropy(logits, labels[rows])
        loss = loss + weight * functional.logsigmoid(suspicion(logits, labels[rows])).mean()
        learns.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        learns.step()
    return network.eval()


def private_sgd(data: Data, seed: int, *, epsilon: float, delta: float) -> nn.Module:
    """DP-SGD on the members."""
    vault, budget = Vault(data.members), Budget(epsilon, delta)
    rate = sampling_rate_for(PRIVATE_BATCH, vault.facts.units)

    def event(noise: float) -> Event:
        return Event(label="dp-sgd", noise_multiplier=noise, sampling_rate=rate, count=PRIVATE_STEPS)

    steps = event(calibrate(budget, lambda noise: [event(noise)]))
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "benchmark"})
        # A seeded noise makes the measurement repeatable; a network made for others must not be.
        session = Session(vault, Plan(budget=budget, events=(steps,)), ledger, NoiseSource(seed), workspace=None)
        network = train_private(
            session, fresh(data.members, seed), steps, PrivateTraining(learning_rate=0.2), seed=seed
        )
        session.finish()
        ledger.close()
    return network


def _tensors(records: ImageSet) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(records.images).permute(0, 3, 1, 2), torch.tensor(records.labels)
