"""From a trained network to a release, without its training data: the conversion that DPDFD is named for.

The network is either a classifier of a release of ours, or the user's own. What a release guarantees carries over, for
the new images are computed from it and from coins alone (post-processing): the new certificate repeats its ledger, and
both releases together cost what the first did. Of the user's own network nobody here knows what it remembers, so the
result has no guarantee and says so. The same holds for several networks of the user's own that answer together: that
their training images are disjoint, and that each image's part depends on no other image, are what the noise of many
teachers is measured by, and no file of weights shows either.
"""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from veilset.core.errors import InputError, VerificationError
from veilset.core.progress import SILENT, Progress
from veilset.methods.shared.facts import require_square
from veilset.privacy.vault import PublicFacts
from veilset.release import layout
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify
from veilset.release.format import Release, load_release
from veilset.release.verify import verify_release

if TYPE_CHECKING:
    from torch import nn

    from veilset.pipeline.model_files import Declared

_OWN_NETWORK = (
    "The teacher is a network of the user's own. Nobody here saw how it was trained, so nothing is known of what it "
    "tells about its training images."
)
_OWN_NETWORKS = (
    "The teachers are networks of the user's own. Nobody here saw how they were trained, nor on whose images, so no "
    "noise on their answers could be said to hide anybody, and none is added."
)
_CARRIED_OVER = "Made from a classifier of another release by post-processing; the ledger is that release's."
_PARTS = ("teacher", "student")  # the better one first


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to make of a network; `settings` are those of dfd, without statistics."""

    samples: int = 20_000
    seed: int = 0
    device: str = "cpu"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"Expected --samples of at least 1, got {self.samples}.")


def convert_release(
    path: Path, conversion: Conversion, progress: Progress = SILENT, *, public_key: Path | None = None
) -> Release:
    """New images from the teacher or student of the release at `path`, under that release's certificate.

    With a public key, its owner must have signed that release. Without one the claim is its publisher's, and whoever
    signs the new release signs a stranger's word.

    Privacy: post-processing of a release; unit, relation, events and epsilon are those of its certificate, which is
    verified first.
    """
    found = verify_release(path, public_key)
    if not found.ok:
        raise VerificationError(f"{path} does not verify, so nothing can be made of it. " + " ".join(found.problems))
    source = load_release(path)
    if source.certificate != found.certificate:
        raise VerificationError(f"{path} is not the release that was verified. Do not change it during a conversion.")
    part = next((name for name in _PARTS if name in source.models), None)
    if part is None:
        raise InputError(f"{path} holds no classifier to learn from. Take a release of dfd, imgsyn, pate or pldk.")
    require_square(source.certificate.facts)
    warnings = (*source.certificate.warnings, _CARRIED_OVER)
    certificate = dataclasses.replace(source.certificate, samples=conversion.samples, warnings=warnings, files={})
    return _distil(source.model(part), certificate, conversion, progress)


def convert_networks(
    paths: Sequence[Path], declared: "Declared", conversion: Conversion, progress: Progress = SILENT
) -> Release:
    """Images from the user's own networks: files of weights, and what is declared of all of them.

    Several answer together, by the mean of their probabilities: the paper's Algorithm 2 without its noise.

    Privacy: none, and the certificate says why. No record is read.
    """
    from veilset.pipeline.model_files import Together, read_model

    if not paths:
        raise InputError("Expected at least one file of weights.")
    for path in paths:
        if len(paths) > 1 and (path / layout.CERTIFICATE).exists():
            raise InputError(
                f"{path} is a release, which converts alone: a certificate repeats one ledger, and what several "
                "releases cost the same people would have to be added up. Convert them one by one."
            )
    read = [read_model(path, declared) for path in paths]
    (_, facts, name) = read[0]
    for path, (_, others, _) in zip(paths, read, strict=True):
        if others != facts:
            raise InputError(
                f"Expected networks of one shape and the same classes; {path} differs from {paths[0]}. "
                "Convert it alone."
            )
    require_square(facts)
    teacher = read[0][0] if len(read) == 1 else Together([network for network, _, _ in read])
    return _distil(teacher, _none(name, len(read), facts, conversion), conversion, progress)


def convert_network(path: Path, declared: "Declared", conversion: Conversion, progress: Progress = SILENT) -> Release:
    """Images from one network of the user's own.

    Privacy: none, and the certificate says why. No record is read.
    """
    return convert_networks([path], declared, conversion, progress)


def _distil(teacher: "nn.Module", certificate: Certificate, conversion: Conversion, progress: Progress) -> Release:
    from veilset.methods.base import Context
    from veilset.methods.dfd.config import Dfd
    from veilset.methods.shared.data_free import DataFreeTraining

    settings = Dfd.configure("conversion", conversion.settings).settings
    if settings.statistics_share:
        raise InputError("A conversion reads no records, so it has no statistics. Leave statistics_share out.")
    context = Context(seed=conversion.seed, device=conversion.device, progress=progress)
    training = DataFreeTraining(settings, certificate.facts, context)
    distilled = training.distil(teacher.to(conversion.device))
    samples = distilled.sample(conversion.samples, conversion.seed)
    return Release(
        images=samples.images,
        labels=samples.labels,
        soft_labels=samples.soft_labels,
        models={name: (model.weights, model.description) for name, model in distilled.models().items()},
        certificate=certificate,
    )


def _none(network: str, count: int, facts: PublicFacts, conversion: Conversion) -> Certificate:
    """A certificate without a guarantee: a ledger that spent nothing, and the reason."""
    from veilset.privacy.ledger import Ledger

    settings = {"teacher_network": network, **({"teachers": count} if count > 1 else {}), **conversion.settings}
    header = {
        "method": "dfd", "settings": settings, "facts": facts.to_json(), "delta": 1 / (2 * facts.units), "plan": [],
        "noise": "os-entropy", "seed": conversion.seed, "as_published": True,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", header)
        lines = ledger.lines
        ledger.close()
    return certify(lines, samples=conversion.samples, reasons=(_OWN_NETWORK if count == 1 else _OWN_NETWORKS,))
