"""Further defences that the thesis compares with (Tables 4.1 to 4.3), for benchmarks/leakage.py.

None has a guarantee: what attacks find is evidence, and nothing more. Sizes are scaled to the small networks here.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import defences  # isort: skip
from defences import Data  # isort: skip
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.data.images import ImageSet
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict, train_classifier

EPOCHS_TRIED = (2, 4, 8, 16, 25)
DROPPED = 0.5
_SURE = 1e-6  # how far from an even guess the guard's attacker may be
_GUARD_STEPS, _GUARD_RATE = 100, 0.1


def early_stopping(data: Data, seed: int) -> nn.Module:
    """The undefended network after as many epochs as suit the reference images best."""

    def trained(epochs: int) -> tuple[float, nn.Module]:
        config = defences.UNDEFENDED.changed(epochs=epochs)
        members = data.members
        network = train_classifier(
            defences.fresh(members, seed), members.images, members.labels, config=config, seed=seed
        )
        found = predict(network, data.reference.images).argmax(axis=1)
        return float((found == data.reference.labels).mean()), network

    return max((trained(epochs) for epochs in EPOCHS_TRIED), key=lambda pair: pair[0])[1]


def dropout(data: Data, seed: int) -> nn.Module:
    """Half of what the last layer reads is dropped in training."""
    network, members = defences.fresh(data.members, seed), data.members
    network.head = nn.Sequential(nn.Dropout(DROPPED), network.get_submodule("head"))
    return train_classifier(network, members.images, members.labels, config=defences.UNDEFENDED, seed=seed)


def synthetic_distillation(data: Data, seed: int, *, epsilon: float, delta: float, preset: str = "fast") -> nn.Module:
    """DMP on synthetic images: a generator that saw the members takes the place of public images.

    The thesis' generator has no guarantee; here it is that of `merf`. The labels are the undefended network's all the
    same, so that the result has none either.
    """
    job = Job(
        method="merf", preset=preset, epsilon=epsilon, delta=delta, samples=2 * len(data.members.labels), seed=seed,
        insecure_seed=seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        made = run(Vault(data.members), job, workspace=Path(folder) / "run")
    images = ImageSet(made.images, made.labels, data.members.class_names)
    return defences.membership_privacy_distillation(replace(data, public=images), seed)


def cross_distillation(data: Data, seed: int, *, folds: int = 5) -> nn.Module:
    """KCD (Chourasia et al. 2021): each fold is labelled by a network that saw the others; a student learns all."""
    count = len(data.members.labels)
    places = numpy_generator(seed, "folds").permutation(count) % folds
    return _by_those_left_out(data, seed, places[:, None] == np.arange(folds))


def self_distillation(data: Data, seed: int, *, networks: int = 10, left_out: int = 4) -> nn.Module:
    """SELENA (Tang et al., USENIX Security 2022): networks that leave a record out answer for it, and teach a student.

    Of `networks`, each record is left out of `left_out`.
    """
    coins = numpy_generator(seed, "left out")
    away = np.zeros((len(data.members.labels), networks), dtype=bool)
    for row in away:
        row[coins.permutation(networks)[:left_out]] = True
    return _by_those_left_out(data, seed, away)


def _by_those_left_out(data: Data, seed: int, away: NDArray[np.bool_]) -> nn.Module:
    """A student of the mean answer of those networks (n, K) that did not see a record."""
    members = data.members
    answers = np.zeros((len(members.labels), len(members.class_names)), dtype=np.float32)
    for number, unseen in enumerate(away.T):
        network = train_classifier(
            defences.fresh(members, seed + number + 1), members.images[~unseen], members.labels[~unseen],
            config=defences.UNDEFENDED, seed=seed + number + 1,
        )  # fmt: skip
        said = torch.from_numpy(predict(network, members.images[unseen])).softmax(dim=1).numpy()
        answers[unseen] += said / away[unseen].sum(axis=1, keepdims=True)
    student = defences.fresh(members, seed)
    return train_classifier(student, members.images, members.labels, answers, config=defences.DISTILLED, seed=seed)


class Guarded(nn.Module):
    """A network whose answers are changed until an attacker of the defender's own guesses evenly; labels stay."""

    def __init__(self, network: nn.Module, attacker: nn.Module) -> None:
        super().__init__()
        self.network, self.attacker = network, attacker

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1], changed."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._changed(self.network(images.clone()).detach())

    def _changed(self, logits: Tensor) -> Tensor:
        """Steps down the attacker's certainty; each row keeps the answer with the least of it that keeps its label."""
        label = logits.argmax(dim=1)
        first = self.attacker(_sorted(logits))[:, 0].detach()
        kept, least, change = logits.clone(), first.abs(), torch.zeros_like(logits)
        going = least > _SURE
        for _ in range(_GUARD_STEPS):
            if not bool(going.any()):
                break
            change.requires_grad_()
            (slope,) = torch.autograd.grad((first.sign() * self.attacker(_sorted(logits + change))[:, 0]).sum(), change)
            change = (change - _GUARD_RATE * functional.normalize(slope, dim=1)).detach()
            moved = logits + change
            suspicion = self.attacker(_sorted(moved))[:, 0].detach()
            going = going & (moved.argmax(dim=1) == label)
            better = going & (suspicion.abs() < least)
            kept[better], least[better] = moved[better], suspicion.abs()[better]
            going = going & (suspicion * first > 0)
        return kept


def guarded(data: Data, seed: int, *, steps: int = 400) -> nn.Module:
    """MemGuard (Jia et al., CCS 2019) around the undefended network, without its budget: every answer is changed.

    The attacker that the changes are to fool knows members and reference images by their sorted probabilities.
    """
    network = defences.undefended(data, seed)
    classes = len(data.members.class_names)
    inside, outside = (torch.from_numpy(predict(network, part.images)) for part in (data.members, data.reference))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attacker = nn.Sequential(nn.Linear(classes, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer, coins = torch.optim.Adam(attacker.parameters(), lr=0.005), torch_generator(seed, "guard")
    for _ in range(steps):
        rows = [part[torch.randint(len(part), (128,), generator=coins)] for part in (inside, outside)]
        first, second = (attacker(_sorted(part))[:, 0] for part in rows)
        loss = -functional.logsigmoid(first).mean() - functional.logsigmoid(-second).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Guarded(network, attacker.requires_grad_(False)).eval()


def _sorted(logits: Tensor) -> Tensor:
    """Probabilities (b, K), the largest first."""
    return logits.softmax(dim=1).sort(dim=1, descending=True).values


ROWS: dict[str, Callable[[Data, int], nn.Module]] = {
    "early stopping": early_stopping,
    "dropout": dropout,
    "MemGuard": guarded,
    "KCD, 5 folds": cross_distillation,
    "SELENA, 10 networks, 4 left out": self_distillation,
}
