"""The release: images, labels, optional networks and the certificate, in memory and as a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError, VerificationError
from veilset.core.files import require_absent, save_tensors, sha256_of, whole_directory
from veilset.core.records import Images, Labels
from veilset.release import layout, strict_json
from veilset.release.about import About, about_of
from veilset.release.card import card_text
from veilset.release.card_forms import RELEASE, RELEASE_WITHOUT_TABLE, SHARDED_RELEASE, CardForm
from veilset.release.certificate import Certificate, read_certificate
from veilset.release.manifest import Manifest, read_manifest
from veilset.release.metadata.croissant import NPZ, PARQUET, DataFile, croissant
from veilset.release.metadata.label import label_text
from veilset.release.pack import Pack, SoftLabels, pack_problems, read_pack, write_pack
from veilset.release.redaction import redact
from veilset.release.sharded import data_file, read_sharded, shard_files, shard_problems
from veilset.release.signing import load_private_key, signature_file
from veilset.release.table import loading_text, write_table

if TYPE_CHECKING:
    import torch
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from veilset.release.dataset import ReleaseDataset

Model = tuple["Mapping[str, torch.Tensor]", Mapping[str, Any]]
"""The weights of a network by name, and the description that rebuilds it."""

_DESCRIPTION_LIMIT = 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What is published. Arrays are read only; soft labels, where there are any, are those of the 8-bit images."""

    images: Images  # (N, H, W, C)
    labels: Labels  # (N,), or findings (N, K) of zeros and ones
    certificate: Certificate
    soft_labels: SoftLabels | None = None  # (N, K)
    models: Mapping[str, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = content_problems(self.pack, self.certificate)
        problems += [f"Unknown model {name!r}." for name in self.models if name not in layout.MODELS]
        if problems:
            raise InputError(" ".join(problems))
        for name in ("images", "labels", "soft_labels"):
            array = getattr(self, name)
            if array is not None:
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        height, width, channels = self.images.shape[1:]
        certificate = self.certificate
        claim = f", epsilon {certificate.epsilon:.4g}" if certificate.epsilon is not None else ""
        return f"Release({len(self)} images {height}x{width}x{channels}, guarantee {certificate.guarantee}{claim})"

    def save(self, path: str | Path, sign_key: str | Path | None = None, *, about: About | None = None) -> Path:
        """Write the directory, whole or not at all, signed when a private key file is given.

        `about` is what the publisher says of it: a title, a licence, who publishes it, and whose images it is of.
        """
        path, about = Path(path), About() if about is None else about
        require_absent(path)
        key = None if sign_key is None else load_private_key(Path(sign_key))
        with whole_directory(path) as building:
            write_pack(building / layout.DATA, self.pack)
            files = [data_file(building, layout.DATA, NPZ)]
            has_table = write_table(building / layout.TABLE, self.pack, self.certificate.facts)
            if has_table:
                files.append(data_file(building, layout.TABLE, PARQUET))
            write_descriptions(
                building,
                self.certificate,
                about,
                files,
                RELEASE if has_table else RELEASE_WITHOUT_TABLE,
                has_soft_labels=self.soft_labels is not None,
            )
            for name, model in self.models.items():
                write_model(building, name, model, self.certificate.guarantee)
            seal_directory(building, self.certificate, key)
        return path

    def torch(self) -> "ReleaseDataset":
        """A torch Dataset of (image, soft label), or (image, class or findings) where there are no soft labels."""
        from veilset.release.dataset import ReleaseDataset

        return ReleaseDataset(self.images, self.labels, self.soft_labels)

    def hugging_face(self) -> Any:
        """A Hugging Face `Dataset` with image, label or findings and, where there are any, soft labels.

        Needs the extra `readers`.
        """
        from veilset.release.hugging_face import dataset_of

        return dataset_of(self.pack, self.certificate.facts)

    def model(self, name: str) -> Any:
        """The `generator`, `student` or `teacher` of the release, rebuilt and ready to use; no code of its own runs.

        Students and teachers take floats in [0, 1], (batch, channels, height, width), to logits. Generators take
        latents and classes to images; that of a release of latent is its space and its Gaussians
        (`methods.latent.sampling.rebuild_sampler`).
        """
        from veilset.release.models import rebuild_model

        if name not in self.models:
            held = ", ".join(self.models) or "none"
            raise InputError(f"The release holds no model {name!r}. It holds: {held}.")
        weights, description = self.models[name]
        return rebuild_model(name, description, weights, self.certificate.facts)

    @property
    def pack(self) -> Pack:
        """The arrays together."""
        return Pack(images=self.images, labels=self.labels, soft_labels=self.soft_labels)


def write_descriptions(
    building: Path,
    certificate: Certificate,
    about: About,
    files: Sequence[DataFile],
    form: CardForm,
    *,
    has_soft_labels: bool,
) -> None:
    """Write the small files that people and other tools read first."""
    if certificate.guarantee == "none":
        about = About(**redact(asdict(about)))
    card = card_text(certificate, about, form, has_soft_labels=has_soft_labels)
    (building / layout.CARD).write_text(card, encoding="utf-8")
    (building / layout.LABEL).write_text(label_text(certificate, about), encoding="utf-8")
    (building / layout.CROISSANT).write_bytes(strict_json.dump(croissant(certificate, about, files)))


def describe_shards(
    building: Path, certificate: Certificate, about: About, manifest: Manifest, *, has_soft_labels: bool
) -> None:
    """As `write_descriptions`, for a release in shards, and what tells `datasets` which files are the data."""
    files, form = shard_files(manifest), SHARDED_RELEASE[manifest.form]
    write_descriptions(building, certificate, about, files, form, has_soft_labels=has_soft_labels)
    (building / layout.LOADING).write_text(loading_text(manifest.form), encoding="utf-8")


def write_model(building: Path, name: str, model: Model, guarantee: str) -> None:
    """Write the weights and the description of a network."""
    weights, description = model
    save_tensors(weights, building / layout.weights_file(name))
    if guarantee == "none":
        description = redact(description)
    (building / layout.description_file(name)).write_bytes(strict_json.dump(description))


def seal_directory(building: Path, certificate: Certificate, key: "Ed25519PrivateKey | None") -> Certificate:
    """Write the certificate with the hash of every file that is there, signed where there is a key."""
    files = {file.name: sha256_of(file) for file in sorted(building.iterdir()) if file.is_file()}
    sealed = replace(certificate, files=files)
    content = sealed.to_bytes()
    (building / layout.CERTIFICATE).write_bytes(content)
    if key is not None:
        (building / layout.SIGNATURE).write_bytes(signature_file(content, key))
    return sealed


def load_release(path: str | Path) -> Release:
    """Read a release after checking the hash of every file. `verify_release` checks its privacy claim as well.

    >>> import veilset as vs
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit("builtin:digits:train")
    >>> path = release.save("release")
    >>> vs.load_release("release").torch()[0][0].shape  # an image, and its soft label or class
    torch.Size([1, 16, 16])
    """
    path = Path(path)
    layout.require_release(path)
    problems = layout.entry_problems(path)
    if not problems:
        certificate = read_certificate(path / layout.CERTIFICATE)
        problems = layout.file_problems(path, certificate)
    if problems:
        raise VerificationError(f"{path} is not as it was published. " + " ".join(problems))
    pack = _read_images(path, certificate)
    problems = content_problems(pack, certificate)
    if problems:
        raise VerificationError(f"{path} is not a sound release. " + " ".join(problems))
    return Release(
        images=pack.images,
        labels=pack.labels,
        soft_labels=pack.soft_labels,
        models={name: _read_model(path, name) for name in model_names(certificate)},
        certificate=certificate,
    )


def read_about(path: Path) -> About:
    """What the publisher of the release at `path` says of it; nothing where its croissant.json is missing."""
    place = path / layout.CROISSANT
    return about_of(strict_json.load(place, layout.LARGEST_TEXT)) if place.exists() else About()


def _read_images(path: Path, certificate: Certificate) -> Pack:
    if layout.MANIFEST not in certificate.files:
        return read_pack(path / layout.DATA)
    manifest = read_manifest(path / layout.MANIFEST, certificate)
    problems = shard_problems(path, certificate, manifest, range(len(manifest.shards)), whole=False)
    if problems:
        raise VerificationError(f"{path} is not as it was published. " + " ".join(problems))
    return read_sharded(path, certificate)


def model_names(certificate: Certificate) -> list[str]:
    """The networks that a release holds."""
    return [name for name in layout.MODELS if layout.weights_file(name) in certificate.files]


def read_description(path: Path, name: str) -> dict[str, Any]:
    """What rebuilds a network of the release at `path`."""
    description = strict_json.load(path / layout.description_file(name), _DESCRIPTION_LIMIT)
    if not isinstance(description, dict):
        raise VerificationError(f"{layout.description_file(name)} does not hold a mapping.")
    return description


def _read_model(path: Path, name: str) -> Model:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path / layout.weights_file(name))
    except (SafetensorError, OSError, ValueError) as error:
        raise VerificationError(f"{layout.weights_file(name)} cannot be read: {error}.") from error
    return weights, read_description(path, name)


def content_problems(pack: Pack, certificate: Certificate) -> list[str]:
    """Where the arrays of a release differ from what its certificate describes."""
    facts = certificate.facts
    problems = pack_problems(pack, facts.shape, facts.classes, findings=facts.findings)
    if len(pack.images) != certificate.samples:
        problems.append(f"Expected {certificate.samples} images as in the certificate, got {len(pack.images)}.")
    return problems
