"""A folder with the data that the pages name: drawn X-rays in every form, photographs, and a release of them."""

from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from archives import write_dicom, write_nifti
from veilset.cli.main import app

SIDE, COUNT, EACH = 16, 96, 2
CLASSES = ("healthy", "pneumonia")
FINDINGS = ("Edema", "Effusion", "Mass")


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey images with a bright spot where the label is 1."""
    coins, labels = np.random.default_rng(seed), np.arange(count) % 2
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    spots = np.exp(-((x - 5) ** 2 + (y - coins.integers(4, 12, (count, 1, 1))) ** 2) / 8)
    images = coins.normal(90, 20, (count, SIDE, SIDE)) + 120 * labels[:, None, None] * spots
    return images.clip(0, 255).astype(np.uint8), labels


def _folder(place: Path, images: np.ndarray, labels: np.ndarray) -> list[str]:
    names = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = place / CLASSES[label] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        names.append(str(path.relative_to(place)))
    return names


def _archive(place: Path, images: np.ndarray, labels: np.ndarray) -> None:
    coins, lines = np.random.default_rng(3), ["path,label," + ",".join(FINDINGS)]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        write_dicom(place / f"{number:04}.dcm", image, who=f"{place.name}-{number // EACH}", number=number)
        found = ",".join(str(value) for value in coins.integers(0, 2, len(FINDINGS)))
        lines.append(f"{number:04}.dcm,{CLASSES[label]},{found}")
    (place / "labels.csv").write_text("\n".join(lines) + "\n")


def make(place: Path) -> None:
    """Everything that needs no release."""
    (images, labels), (test, test_labels) = draw(COUNT, 0), draw(32, 1)
    patients = np.arange(COUNT) // EACH
    names = _folder(place / "xrays", images, labels)
    lines = ["file,patient", *(f"{name},P{who}" for name, who in zip(names, patients, strict=True))]
    (place / "patients.csv").write_text("\n".join(lines) + "\n")
    _folder(place / "xrays_test", test, test_labels)
    coins = np.random.default_rng(2)
    (place / "photos").mkdir()
    for number in range(40):
        photo = np.kron(coins.integers(0, 256, (4, 4)), np.ones((4, 4))) + coins.normal(0, 9, (SIDE, SIDE))
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(place / "photos" / f"{number}.png")
    arrays = {"train_images": images, "train_labels": labels, "train_patients": patients}
    arrays |= {"test_images": test, "test_labels": test_labels, "test_patients": np.arange(32) // 2}
    np.savez(place / "xrays.npz", **arrays)
    _archive(place / "archive", images, labels)
    _archive(place / "test", test, test_labels)
    lines = ["path,label"]
    for number in range(24):
        write_nifti(place / "scans" / f"{number}.nii", coins.normal(100, 20, (SIDE, SIDE, 3)).astype(np.int16))
        lines.append(f"{number}.nii,{CLASSES[number % 2]}")
    (place / "scans" / "labels.csv").write_text("\n".join(lines) + "\n")


def command(*words: str) -> None:
    """One command that has to end well."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output


def make_release() -> None:
    """In the working directory: a signed release, its key, and what was measured of it."""
    command("keygen", "key")
    words = ("--title", "X-rays", "--license", "cc-by-4.0", "--publisher", "Us", "--description", "Drawn by a test")
    kept = ("-m", "imgsyn", "--public", "photos", "-e", "4", "--samples", "24", "-y", "--sign", "key")
    command("synthesize", "xrays.npz:train", "--groups", "patients", *kept, "--out", "release", *words)
    command("evaluate", "release", "--test", "xrays.npz:test", "--epochs", "1", "--out", "evaluation.json")
