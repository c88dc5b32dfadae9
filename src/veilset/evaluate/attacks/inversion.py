"""Attacks that search: model inversion in pixels, and a generator's latent space.

Inversion: Fredrikson, Jha, Ristenpart, "Model Inversion Attacks that Exploit Confidence Information and Basic
Countermeasures" (CCS 2015). From grey, an image of each class is moved until the network is sure of it. Records are
scored by their likeness to the image of their class; that a class can be pictured is learning, that members look more
like the picture than others is leakage. Latent search: the partial black-box attack of GAN-Leaks (Chen et al., CCS
2020), here with gradients: how well can the generator draw this very record?
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress, track
from veilset.core.randomness import torch_generator
from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import Attack, Outcome, Setting
from veilset.evaluate.attacks.measures import Scores, best_threshold
from veilset.evaluate.attacks.splitting import Candidates
from veilset.training.classifier import to_float

_STEPS = 200
_RATE = 0.05
_ROUGHNESS = 0.02  # weight of total variation, which stands for the paper's denoising step
_LATENT_STEPS = 60
_LATENT_RATE = 0.1
_LATENT_STARTS = 2
_LATENT_BATCH = 250


def invert(network: nn.Module, classes: int, shape: tuple[int, int, int]) -> Images:
    """One image (classes, H, W, C) for each class that the network is sure of."""
    height, width, channels = shape
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    pictures = torch.full((classes, channels, height, width), 0.5, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([pictures], lr=_RATE)
    wanted = torch.arange(classes, device=device)
    network.eval()
    for _ in range(_STEPS):
        rough = (pictures.diff(dim=2).abs().sum() + pictures.diff(dim=3).abs().sum()) / classes
        loss = functional.cross_entropy(network(pictures), wanted) + _ROUGHNESS * rough / channels
        (pictures.grad,) = torch.autograd.grad(loss, pictures)
        optimizer.step()
        with torch.no_grad():
            pictures.clamp_(0, 1)
    found: Images = (pictures.detach() * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return found


def likeness(images: Images, pictures: Images) -> Scores:
    """The correlation of the pixels of images and pictures, pair by pair."""
    left, right = (_standardised(part) for part in (images, pictures))
    scores: Scores = (left * right).sum(axis=1)
    return scores


def _standardised(images: NDArray[Any]) -> Scores:
    flat = images.reshape(len(images), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    unit: Scores = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
    return unit


def _inversion(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked
    height, width, channels = attacked.images.shape[1:]
    pictures = invert(setting.network, setting.target.classes, (height, width, channels))

    def scores(candidates: Candidates) -> Scores:
        return likeness(candidates.images, pictures[candidates.labels])

    return Outcome(
        candidates=attacked,
        scores=scores(attacked),
        threshold=best_threshold(scores(known), known.is_member),
        details={"classes_recognised": _recognised(pictures, attacked), "classes": setting.target.classes},
        pictures={"inversions": (pictures, np.zeros(len(pictures), dtype=np.int64))},
    )


def _recognised(pictures: Images, candidates: Candidates) -> int:
    """How many pictures are most like the mean member of their own class; by guessing it would be one."""
    present = np.unique(candidates.labels)
    members, labels = candidates.images[candidates.is_member], candidates.labels[candidates.is_member]
    means = _standardised(np.stack([members[labels == label].mean(axis=0) for label in present]))
    closest = (_standardised(pictures[present]) @ means.T).argmax(axis=1)
    return int((closest == np.arange(len(present))).sum())


def latent_scores(
    generator: nn.Module, images: Images, labels: Labels, *, seed: int, progress: Progress = SILENT
) -> Scores:
    """Minus the smallest distance (L2, pixels in [0, 1]) between each record and what the generator can draw."""
    size = getattr(generator, "latent_size", None)
    if not isinstance(size, int):
        raise InputError("Expected a generator with a latent_size, got one without.")
    device = next((parameter.device for parameter in generator.parameters()), torch.device("cpu"))
    coins = torch_generator(seed, "latent search")
    pixels = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
    classes = torch.from_numpy(np.array(labels))
    best = []
    parts = list(zip(torch.split(pixels, _LATENT_BATCH), torch.split(classes, _LATENT_BATCH), strict=True))
    for wanted, of_class in track(parts, progress, "searching latents", len(parts)):
        starts = [torch.randn(len(wanted), size, generator=coins).to(device) for _ in range(_LATENT_STARTS)]
        found = [_drawn_to(generator, start, to_float(wanted.to(device)), of_class.to(device)) for start in starts]
        best.append(torch.stack(found).amin(dim=0))
    scores: Scores = -torch.cat(best).cpu().double().numpy()
    return scores


def _drawn_to(generator: nn.Module, latents: Tensor, wanted: Tensor, classes: Tensor) -> Tensor:
    """Distances (batch,) after moving the latents towards the wanted images."""
    latents = latents.requires_grad_()
    optimizer = torch.optim.Adam([latents], lr=_LATENT_RATE)
    smallest = torch.full((len(wanted),), torch.inf, device=wanted.device)
    for _ in range(_LATENT_STEPS):
        errors = (generator(latents, classes) - wanted).square().flatten(1).sum(dim=1)
        smallest = torch.minimum(smallest, errors.detach())
        (latents.grad,) = torch.autograd.grad(errors.sum(), latents)
        optimizer.step()
    return smallest.sqrt()


def _latent_search(setting: Setting) -> Outcome:
    generator = setting.target.generator
    if generator is None:
        raise InputError("Expected a target with a generator, got one without.")
    split = setting.split.head(setting.config.generator_records)
    scores = [
        latent_scores(generator, part.images, part.labels, seed=setting.config.seed, progress=setting.progress)
        for part in (split.known, split.attacked)
    ]
    threshold = best_threshold(scores[0], split.known.is_member)
    return Outcome(candidates=split.attacked, scores=scores[1], threshold=threshold)


INVERSION = Attack(
    name="inversion",
    title="Pictures of the classes drawn out of the network",
    needs="model",
    run=_inversion,
    paper="Fredrikson, Jha, Ristenpart, CCS 2015",
)
LATENT_SEARCH = Attack(
    name="latent-search",
    title="How well the generator can draw the record",
    needs="generator",
    run=_latent_search,
    paper="Chen et al., CCS 2020",
)
