"""conv1 of DPAF: the first layers of a classifier. What trains it on private images is in method.py."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.core.records import Records
from veilset.methods.base import Context
from veilset.methods.dpaf.critic import Classifier
from veilset.privacy.vault import PublicFacts
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """L_MSE of Algorithm 1, line 4: of each row to its one-hot label, (b,)."""
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().sum(dim=1)


def classifier_of(conv1: nn.Module, maps: int, classes: int, *, tanh: bool, seed: int) -> Classifier:
    """C: `conv1` under layers that are thrown away later, their first weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "dpaf classifier"))
        return Classifier(conv1, maps, classes, tanh=tanh)


def train_conv1_in_public(
    conv1: nn.Module, maps: int, facts: PublicFacts, public: Records | None, *, tanh: bool, context: Context
) -> None:
    """Ordinary training on labelled public images of the private ones' shape; costs nothing."""
    if public is None or len(public.class_names) < 2 or tuple(public.shape) != tuple(facts.shape):
        raise InputError(
            f"A public conv1 needs labelled public images of the shape {facts.shape} and of at least two classes. "
            "Pass --public, or conv1=wavelets."
        )
    network = classifier_of(conv1, maps, len(public.class_names), tanh=tanh, seed=context.seed).to(context.device)
    images = public.read(np.arange(len(public.labels)))
    train_classifier(
        network, images, public.labels, config=TrainingConfig(), seed=context.seed, device=context.device,
        progress=context.progress,
    )  # fmt: skip
