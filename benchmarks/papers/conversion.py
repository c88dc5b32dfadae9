"""What a student learns from a trained network alone, without any image: `options` are `network` and `epochs`.

The network is trained on the private images without noise, so that neither it nor the student has a guarantee.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

from papers.cells import Cell  # isort: skip
from papers.data import private_and_scored  # isort: skip
from papers.networks import scores  # isort: skip

from veilset.core.files import save_tensors
from veilset.models import build_network
from veilset.pipeline.convert import Conversion, convert_network
from veilset.pipeline.model_files import Declared
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """Accuracy of the student as `value`, that of the network beside it."""
    private, scored = private_and_scored(cell.private, cell.units, validate=validate)
    name, processor = cell.options["network"], time.process_time()
    network = build_network(name, shape=private.shape, classes=len(private.class_names), seed=seed)
    config = TrainingConfig(epochs=int(cell.options.get("epochs", "10")))
    train_classifier(network, private.images, private.labels, config=config, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "own.safetensors"
        save_tensors(network.state_dict(), place)
        declared = Declared(network=name, size=private.shape[0], channels=private.shape[2])
        conversion = Conversion(samples=cell.samples or 20_000, seed=seed, settings=dict(cell.settings))
        release = convert_network(place, declared, conversion)
    found = scores(release.model("student"), scored)
    return {
        "students": {"student": found, "its teacher": scores(network, scored)},
        "metric": cell.metric,
        "value": found[cell.metric],
        "n": len(private),
        "guarantee": release.certificate.guarantee,
        "certified_epsilon": release.certificate.epsilon,
        "cpu_seconds": round(time.process_time() - processor),
    }
