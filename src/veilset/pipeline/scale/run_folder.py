"""The folder of a run whose images are still to be drawn: the fitted method, the certificate to come, the networks.

Privacy: everything in it follows from noisy results and public inputs (methods/stored.py refuses to write anything
else), so it may be copied to machines that must not see the private images.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilset._version import __version__
from veilset.core.errors import InputError, VerificationError
from veilset.core.files import save_tensors, sha256_of, whole_directory
from veilset.core.records import Records
from veilset.methods.base import Fitted
from veilset.methods.stored import StoredFit, needs_public, restore, store
from veilset.release import layout, strict_json
from veilset.release.certificate import Certificate, read_certificate
from veilset.release.format import Model, write_model

FITTED, TENSORS, RUN = "fitted.json", "fitted.safetensors", "run.json"
_SIZE_LIMIT = 1 << 28
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SamplingRun:
    """A run to draw from."""

    path: Path
    certificate: Certificate  # without files; `finish` fills them in
    stored: StoredFit

    @property
    def needs_public(self) -> bool:
        """Whether the run's public images have to be brought along."""
        return needs_public(self.stored)

    def fitted(self, public: Records | None = None) -> Fitted:
        """What images are drawn from."""
        return restore(self.stored, public)


def save_run(path: Path, fitted: Fitted, certificate: Certificate, models: Mapping[str, Model]) -> None:
    """Write the folder, whole or not at all."""
    stored = store(fitted)
    with whole_directory(path) as building:
        (building / layout.CERTIFICATE).write_bytes(certificate.to_bytes())
        for name, model in models.items():
            write_model(building, name, model, certificate.guarantee)
        (building / FITTED).write_text(json.dumps(stored.objects), encoding="utf-8")
        save_tensors(stored.tensors, building / TENSORS)
        files = {file.name: sha256_of(file) for file in sorted(building.iterdir())}
        about = {"format_version": _FORMAT, "veilset": __version__, "files": files}
        (building / RUN).write_bytes(strict_json.dump(about))
        (building / layout.SHARDS).mkdir()


def open_run_folder(path: Path) -> SamplingRun:
    """Read a run's folder; one that was damaged, or that another version wrote, is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (path / RUN).is_file():
        raise InputError(
            f"{path} is not a run to draw from: it holds no {RUN}. Make one with: veilset synthesize ... --sample-later"
        )
    about = strict_json.load(path / RUN, _SIZE_LIMIT)
    _require_known(path, about)
    for name, expected in about["files"].items():
        if Path(name).name != name or not (path / name).is_file() or sha256_of(path / name) != expected:
            raise VerificationError(f"{path / name} is missing or was altered. Copy the run's folder anew.")
    try:
        objects = json.loads((path / FITTED).read_text(encoding="utf-8"))
        tensors = load_file(path / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise VerificationError(f"{path} cannot be read: {error}. Copy the run's folder anew.") from error
    stored = StoredFit(objects=objects, tensors=tensors)
    return SamplingRun(path=path, certificate=read_certificate(path / layout.CERTIFICATE), stored=stored)


def _require_known(path: Path, about: Any) -> None:
    if (
        not isinstance(about, dict)
        or not isinstance(about.get("files"), dict)
        or about.get("format_version") != _FORMAT
    ):
        raise InputError(f"{path / RUN} is not of a form that this version reads.")
    if about.get("veilset") != __version__:
        raise InputError(
            f"{path} was made by veilset {about.get('veilset')}, this is {__version__}. Draw from it with the version "
            "that made it: another one may give other images."
        )
