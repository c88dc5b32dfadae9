"""White-box attacks: loss, gradients and activations of the network on each record.

`gradient-norm` needs no training. `white-box` is the passive attack of Nasr, Shokri, Houmansadr, "Comprehensive
Privacy Analysis of Deep Learning" (S&P 2019): a network with a branch each for prediction, label, loss, gradients and
activations. Gradients come as the norm of every parameter's and as a random projection of the last layer's; the paper
has a convolution over the latter, which needs more records than we ask for.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.progress import Progress, track
from veilset.core.randomness import torch_generator
from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import Attack, Outcome, Setting
from veilset.evaluate.attacks.learned import Evidence, black_box_evidence, learned_scores
from veilset.evaluate.attacks.measures import best_threshold
from veilset.evaluate.attacks.splitting import Candidates
from veilset.training.classifier import to_float

_PROJECTED = 64
_LEAST_NORM = 1e-12


def gradient_evidence(network: nn.Module, images: Images, labels: Labels, *, seed: int, progress: Progress) -> Evidence:
    """For each record: log-norms of the parameters' gradients (of all, last), the last layer's gradient and input."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    last = next((module for module in reversed(list(network.modules())) if isinstance(module, nn.Linear)), None)
    place = next((i for i, parameter in enumerate(parameters) if last is not None and parameter is last.weight), None)
    entered: list[Tensor] = []
    handle = None if last is None else last.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    device = next((str(parameter.device) for parameter in parameters), "cpu")
    targets = torch.from_numpy(np.array(labels)).to(device)
    projections: dict[str, Tensor] = {}
    rows: dict[str, list[Tensor]] = {"gradient_norms": [], "gradient": [], "activations": []}
    network.eval()
    try:
        for row, label in enumerate(track(targets, progress, "gradients of each record", len(targets))):
            entered.clear()
            pixels = torch.from_numpy(np.array(images[row : row + 1])).permute(0, 3, 1, 2).to(device)
            loss = functional.cross_entropy(network(to_float(pixels)), label[None])
            gradients = torch.autograd.grad(loss, parameters)
            norms = torch.stack([gradient.norm() for gradient in gradients])
            rows["gradient_norms"].append(torch.cat([norms, norms.norm()[None]]).clamp(min=_LEAST_NORM).log())
            if place is not None:
                rows["gradient"].append(_projected("gradient", gradients[place], projections, seed))
                rows["activations"].append(_projected("activations", entered[-1].detach(), projections, seed))
    finally:
        if handle is not None:
            handle.remove()
    return {name: torch.stack(values).cpu().numpy() for name, values in rows.items() if values}


def _projected(name: str, values: Tensor, projections: dict[str, Tensor], seed: int) -> Tensor:
    """A vector's product with a random matrix of unit columns, drawn once for each name."""
    flat = values.flatten()
    if name not in projections:
        drawn = torch.randn(len(flat), _PROJECTED, generator=torch_generator(seed, f"projection of {name}"))
        projections[name] = (drawn / len(flat) ** 0.5).to(flat)
    return flat @ projections[name]


def gradients_of(setting: Setting) -> tuple[Evidence, Evidence]:
    """The evidence on the known and on the attacked candidates; `Setting.gradients` keeps it."""

    def of(candidates: Candidates) -> Evidence:
        return gradient_evidence(
            setting.network, candidates.images, candidates.labels, seed=setting.config.seed, progress=setting.progress
        )

    return of(setting.split.known), of(setting.split.attacked)


def _gradient_norm(setting: Setting) -> Outcome:
    known, attacked = (-evidence["gradient_norms"][:, -1].astype(np.float64) for evidence in setting.gradients)
    threshold = best_threshold(known, setting.split.known.is_member)
    return Outcome(candidates=setting.split.attacked, scores=attacked, threshold=threshold)


def _white_box(setting: Setting) -> Outcome:
    split, (known, attacked) = setting.split, setting.gradients
    scores = learned_scores(
        {**black_box_evidence(setting.known, split.known.labels), **known},
        split.known.is_member,
        {**black_box_evidence(setting.attacked, split.attacked.labels), **attacked},
        setting.config.seed,
    )
    return Outcome(candidates=split.attacked, scores=scores, threshold=0.0)


GRADIENT_NORM = Attack(
    name="gradient-norm",
    title="Length of the gradient",
    needs="model",
    run=_gradient_norm,
    paper="Nasr, Shokri, Houmansadr, S&P 2019",
)
WHITE_BOX = Attack(
    name="white-box",
    title="A network that reads gradients and activations, too",
    needs="model",
    run=_white_box,
    paper="Nasr, Shokri, Houmansadr, S&P 2019",
)
