"""Bytes that a site sends for one step of the generator, in numbers of four bytes.

`options`: `what` is `answer` (the sanitized gradient at the generated images) or `weights` (FedAvg on a GAN, where the
site sends its generator and critic). Follows from shapes; what whole runs sent and got is in docs/how_to/federated.md.
"""

import math
from typing import Any

from papers import data
from papers.cells import Cell
from veilset.methods import METHODS
from veilset.methods.sanitized_gan.config import SanitizedGanPlan, SanitizedGanSettings
from veilset.methods.shared.critics import build_critic
from veilset.models.generators.conditional import build_generator
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts

_BYTES = 4


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:  # noqa: ARG001
    """Bytes from a site as `value`."""
    records = data.load(cell.private, "test")
    facts = PublicFacts(
        units=60_000, unit="record", shape=records.shape, class_names=tuple(map(str, records.class_names))
    )
    method = METHODS.get("sanitized_gan").configure(cell.preset, cell.settings)
    settings = method.settings
    assert isinstance(settings, SanitizedGanSettings)
    if cell.options["what"] == "weights":
        size, _, channels = facts.shape
        made = (
            build_generator(
                "dcgan", size=size, channels=channels, classes=facts.classes, latent_size=settings.latent_size,
                width=settings.width,
            ),
            build_critic("dcgan", size=size, channels=channels, classes=facts.classes),
        )  # fmt: skip
        numbers = sum(parameter.numel() for network in made for parameter in network.parameters())
    else:
        plan = method.plan(facts, Budget(cell.epsilon or 10.0, 1e-5))
        assert isinstance(plan, SanitizedGanPlan)
        numbers = math.prod(plan.shape)
    return {"metric": "bytes", "value": _BYTES * numbers, "n": facts.units, "guarantee": "none"}
