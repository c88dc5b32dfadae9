"""Each attack's score on cases whose answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT
from veilset.evaluate.attacks import ATTACKS, GROUPS
from veilset.evaluate.attacks.base import log_probabilities
from veilset.evaluate.attacks.blackbox import (
    confidence_scores,
    entropy_scores,
    label_only_scores,
    modified_entropy_scores,
)
from veilset.evaluate.attacks.distances import memorisation, nearest
from veilset.evaluate.attacks.inversion import invert, latent_scores, likeness
from veilset.evaluate.attacks.learned import learned_scores
from veilset.evaluate.attacks.measures import area_under_curve
from veilset.evaluate.attacks.registry import chosen_attacks
from veilset.evaluate.attacks.shadows import halves, lira_scores, logit_confidence, rmia_scores
from veilset.evaluate.attacks.whitebox import gradient_evidence


def answers_of(*shares):
    return np.log(np.array(shares))


def test_black_box_scores_by_hand():
    answers, labels = answers_of([0.7, 0.2, 0.1], [0.1, 0.8, 0.1]), np.array([0, 2])
    assert confidence_scores(answers, labels) == pytest.approx(np.log([0.7, 0.1]))
    assert -entropy_scores(answers, labels)[0] == pytest.approx(stats.entropy([0.7, 0.2, 0.1]))
    by_hand = -(0.3 * math.log(0.7)) - 0.2 * math.log(0.8) - 0.1 * math.log(0.9)
    assert -modified_entropy_scores(answers, labels)[0] == pytest.approx(by_hand)
    assert logit_confidence(answers, labels) == pytest.approx(np.log([0.7 / 0.3, 0.1 / 0.9]))


def test_modified_entropy_punishes_a_confident_mistake_where_entropy_does_not():
    sure = answers_of([1 - 2e-9, 1e-9, 1e-9])
    assert entropy_scores(sure, np.array([0])) == entropy_scores(sure, np.array([1]))
    assert modified_entropy_scores(sure, np.array([0])) > modified_entropy_scores(sure, np.array([1])) + 10


class Brightness(nn.Module):
    """Logits that grow with the mean of the left and of the right half."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(100.0))

    def forward(self, images):
        left, right = images.chunk(2, dim=3)
        return self.gain * torch.stack([left.mean(dim=(1, 2, 3)), right.mean(dim=(1, 2, 3))], dim=1)


def test_near_certain_answers_stay_different():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    images[:, :, :2] = np.array([250, 255])[:, None, None, None]
    answers = log_probabilities(Brightness(), images)
    assert answers.dtype == np.float64
    scores = logit_confidence(answers, np.zeros(2, np.int64))
    assert scores[0] != scores[1] or scores[0] == 50
    assert confidence_scores(answers, np.ones(2, np.int64))[0] < -90


def test_label_only_counts_shifts():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    images[0, :, :2] = 255  # survives every shift
    images[1, :, 1] = 255  # crosses to the other side when shifted to the right
    found = label_only_scores(Brightness(), images, np.zeros(2, np.int64))
    assert found == pytest.approx([1.0, 6 / 9])


def test_lira_reaches_the_known_answer_on_gaussians():
    """In-models N(1, 1) and out-models N(0, 1): the best test has AUC Phi(1 / sqrt 2) = .760."""
    rng = np.random.default_rng(0)
    records, shadows = 4000, 64
    difficulty = rng.normal(0, 3, records)  # what a global threshold cannot know
    is_member = np.arange(records) % 2 == 0
    included = halves(shadows, records, 0)
    answers = difficulty + included + rng.normal(size=included.shape)
    target = difficulty + is_member + rng.normal(size=records)
    best = stats.norm.cdf(1 / math.sqrt(2))
    auc = {
        "lira": area_under_curve(lira_scores(target, answers, included), is_member),
        "offline": area_under_curve(lira_scores(target, answers, included, offline=True), is_member),
        "none": area_under_curve(target, is_member),
    }
    assert auc["lira"].interval[0] - 0.01 < best < auc["lira"].interval[1] + 0.01
    assert auc["offline"].value > best - 0.03
    assert auc["none"].value < 0.62
    # The ratio itself, not only its order: log N(t; 1, 1) - log N(t; 0, 1) = t - 1/2 for a record of difficulty 0.
    exact = target - difficulty - 0.5
    assert np.corrcoef(lira_scores(target, answers, included), exact)[0, 1] > 0.95


def test_rmia_corrects_for_difficulty():
    rng = np.random.default_rng(1)
    records, shadows = 2000, 8
    difficulty = rng.normal(-4, 2, records)
    is_member = np.arange(records) % 2 == 0
    included = halves(shadows, records, 1)
    answers = np.minimum(difficulty + included + rng.normal(0, 0.3, included.shape), 0)
    target = np.minimum(difficulty + is_member + rng.normal(0, 0.3, records), 0)
    population = np.zeros(records, dtype=bool)
    population[1:400:2] = True
    scores = rmia_scores(target, answers, included, population)
    asked = slice(400, None)
    assert area_under_curve(scores[asked], is_member[asked]).value > 0.85
    assert area_under_curve(target[asked], is_member[asked]).value < 0.7


def test_each_record_is_in_half_of_the_shadows():
    included = halves(8, 100, 0)
    assert (included.sum(axis=0) == 4).all()
    assert included.sum(axis=1).min() > 30


def test_gradient_evidence_equals_autograd():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 3))
    images = np.random.default_rng(0).integers(0, 255, (4, 3, 3, 1), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0])
    found = gradient_evidence(network, images, labels, seed=0, progress=SILENT)
    for row in range(4):
        network.zero_grad()
        pixels = torch.from_numpy(images[row : row + 1]).permute(0, 3, 1, 2).float() / 255
        nn.functional.cross_entropy(network(pixels), torch.tensor(labels[row : row + 1])).backward()
        norms = [float(parameter.grad.norm()) for parameter in network.parameters()]
        norms.append(math.sqrt(sum(norm**2 for norm in norms)))
        assert found["gradient_norms"][row] == pytest.approx(np.log(norms), rel=1e-4)
    assert found["gradient"].shape == found["activations"].shape == (4, 64)
    assert not network[3]._forward_pre_hooks


def test_the_attack_network_learns_and_does_not_invent():
    rng = np.random.default_rng(0)
    is_member = np.arange(400) % 2 == 0
    noise = {name: rng.normal(size=(400, 6)).astype(np.float32) for name in ("a", "b")}
    asked = {name: rng.normal(size=(400, 6)).astype(np.float32) for name in ("a", "b")}
    low, high = area_under_curve(learned_scores(noise, is_member, asked, 0), is_member).interval
    assert low < 0.5 < high
    for part in (noise, asked):
        part["b"][:, 2] += 2 * is_member
    assert area_under_curve(learned_scores(noise, is_member, asked, 0), is_member).value > 0.85


def test_nearest_is_brute_force():
    rng = np.random.default_rng(0)
    base, queries = (rng.integers(0, 255, (count, 5, 5, 3), dtype=np.uint8) for count in (40, 30))
    queries[3] = base[7]
    distances, places = nearest(queries, base, count=2)
    brute = np.linalg.norm((queries[:, None] / 255.0 - base[None] / 255.0).reshape(30, 40, -1), axis=2)
    assert distances == pytest.approx(np.sort(brute, axis=1)[:, :2], abs=1e-5)
    assert (places[:, 0] == brute.argmin(axis=1)).all()
    assert distances[3, 0] == 0
    assert nearest(queries, base, not_itself=True)[0][3, 0] > 1


def test_memorisation_finds_the_copied_record():
    rng = np.random.default_rng(0)
    candidates, released = (rng.integers(0, 255, (50, 6, 6, 1), dtype=np.uint8) for _ in range(2))
    released[4] = np.clip(candidates[9].astype(int) + rng.integers(-3, 4, (6, 6, 1)), 0, 255)
    ratios, places = memorisation(released, candidates)
    assert ratios.argmin() == 4
    assert places[4] == 9
    assert ratios[4] < 0.1 < np.sort(ratios)[1]


def test_inversion_draws_what_the_network_wants():
    pictures = invert(Brightness(), 2, (4, 4, 1)).astype(int)
    assert pictures[0, :, :2].mean() > pictures[0, :, 2:].mean() + 20
    assert pictures[1, :, 2:].mean() > pictures[1, :, :2].mean() + 20
    mirrored = pictures[:, :, ::-1].astype(np.uint8)
    assert likeness(mirrored[:1], pictures[:1].astype(np.uint8))[0] < 0
    assert likeness(pictures[:1].astype(np.uint8), pictures[:1].astype(np.uint8))[0] == pytest.approx(1)


class Ramp(nn.Module):
    """Draws grey images: one latent, one brightness."""

    latent_size = 1

    def forward(self, latents, classes):
        return torch.sigmoid(latents)[:, :, None, None].expand(-1, 1, 4, 4)


def test_latent_search_is_close_for_what_the_generator_can_draw():
    images = np.full((2, 4, 4, 1), 180, np.uint8)
    images[1, ::2] = 20
    possible, impossible = latent_scores(Ramp(), images, np.zeros(2, np.int64), seed=0)
    assert possible > -0.1
    assert impossible < -0.8


def test_the_registry():
    for name in ATTACKS:
        attack = ATTACKS.get(name)
        assert attack.name == name
        assert attack.needs in ("model", "shadow models", "images only", "generator")
    assert set(GROUPS["fast"]) < set(GROUPS["all"]) == set(ATTACKS)
    assert [attack.name for attack in chosen_attacks("entropy, lira,entropy")] == ["entropy", "lira"]
    assert chosen_attacks(["entropy"]) == chosen_attacks("entropy")
    with pytest.raises(InputError, match="Did you mean confidence"):
        chosen_attacks("confidense")
    with pytest.raises(InputError, match="Expected all, fast"):
        chosen_attacks(" , ")
