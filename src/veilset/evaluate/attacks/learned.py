"""The learned black-box attack: a network that reads prediction vector and label and answers "member" or not.

As in the black-box setting of Nasr, Shokri, Houmansadr, "Comprehensive Privacy Analysis of Deep Learning" (S&P 2019),
which the PLDK thesis (chapter 4) uses: one branch for each kind of evidence, merged into one answer. The white-box
attack (whitebox.py) has the same network with more branches. It is trained on the known half only; the answer is the
mean of three networks, because one trained on a few hundred records depends much on its start.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.randomness import derive_seed
from veilset.core.records import Labels
from veilset.evaluate.attacks.base import Attack, LogProbabilities, Outcome, Setting
from veilset.evaluate.attacks.blackbox import confidence_scores
from veilset.evaluate.attacks.measures import Membership, Scores

Evidence = Mapping[str, NDArray[np.float32]]  # each (N, length)

_NETWORKS = 3
_BATCH = 128
_RECORDS_SEEN = 80_000
_EPOCHS = (10, 60)
_LEAST_LOG = -30.0  # log-probabilities below it tell nothing more


class AttackNetwork(nn.Module):
    """A branch for each kind of evidence, merged into one logit for "member"."""

    def __init__(self, lengths: Mapping[str, int], width: int = 64) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(length, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width // 2))
                for name, length in lengths.items()
            }
        )
        self.merge = nn.Sequential(
            nn.ReLU(), nn.Linear(len(lengths) * (width // 2), width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1)
        )

    def forward(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """Logits (batch,)."""
        parts = [branch(evidence[name]) for name, branch in self.branches.items()]
        logits: Tensor = self.merge(torch.cat(parts, dim=1))[:, 0]
        return logits


def black_box_evidence(answers: LogProbabilities, labels: Labels) -> dict[str, NDArray[np.float32]]:
    """The prediction vector, as it is and sorted, the label, and the confidence in it."""
    bounded = np.maximum(answers, _LEAST_LOG)
    return {
        "prediction": np.concatenate([bounded, np.sort(bounded, axis=1)], axis=1).astype(np.float32),
        "label": np.eye(answers.shape[1], dtype=np.float32)[labels],
        "loss": np.maximum(confidence_scores(answers, labels), _LEAST_LOG)[:, None].astype(np.float32),
    }


def learned_scores(known: Evidence, is_member: Membership, attacked: Evidence, seed: int) -> Scores:
    """Mean logits, on the attacked records, of networks trained on the known ones; 0 is as likely as not."""
    scales = {name: (values.mean(axis=0), values.std(axis=0) + 1e-3) for name, values in known.items()}

    def standardised(evidence: Evidence) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(((values - scales[name][0]) / scales[name][1]).clip(-5, 5))
            for name, values in evidence.items()
        }

    train, asked = standardised(known), standardised(attacked)
    targets = torch.from_numpy(is_member.astype(np.float32))
    logits = [_fit(train, targets, derive_seed(seed, f"attack network {turn}"))(asked) for turn in range(_NETWORKS)]
    scores: Scores = torch.stack(logits).mean(dim=0).detach().numpy().astype(np.float64)
    return scores


def _fit(evidence: Mapping[str, Tensor], targets: Tensor, seed: int) -> AttackNetwork:
    count = len(targets)
    epochs = min(_EPOCHS[1], max(_EPOCHS[0], _RECORDS_SEEN // count))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AttackNetwork({name: values.shape[1] for name, values in evidence.items()})
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(count), _BATCH):
                batch = {name: values[rows] for name, values in evidence.items()}
                loss = functional.binary_cross_entropy_with_logits(network(batch), targets[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return network.eval()


def _learned_black_box(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked
    scores = learned_scores(
        black_box_evidence(setting.known, known.labels),
        known.is_member,
        black_box_evidence(setting.attacked, attacked.labels),
        setting.config.seed,
    )
    return Outcome(candidates=attacked, scores=scores, threshold=0.0)


LEARNED_BLACK_BOX = Attack(
    name="learned-black-box",
    title="A network that reads prediction and label",
    needs="model",
    run=_learned_black_box,
    paper="Nasr, Shokri, Houmansadr, S&P 2019",
)
