"""Archives as hospitals have them: several findings per image, a rare class, DICOM files, and images of 128 pixels.

    PYTHONPATH=src python benchmarks/archives.py findings|rare|dicom|sizes [--seeds 0] [--again]

Each cell runs in a process of its own, whose peak memory it is, and adds one line to benchmarks/results/archives.jsonl.
Cells that have a line of today's versions are passed over, unless --again. Nothing was chosen by these numbers.

findings: CelebA (64 pixels), ten of its forty attributes, imgsyn from Tiny ImageNet: mean AUC on the test set of the
teacher and of two students, from scratch and fine-tuned, beside students of the real images. rare: MNIST with a digit
cut down to one record in a hundred, with and without a paid count: recall of that digit by teacher and student. dicom:
chest X-rays written as DICOM files; the release of merf from them and from the parquet file, with the same seeded
noise. sizes: every seed method on chest X-rays of 128 pixels, by patient.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imgsyn import public_images
from machine import append
from releases import DATA, DELTA, REPOSITORY, Line, load
from veilset.core.files import sha256_of
from veilset.core.records import Images, Labels, Records
from veilset.data.archives.reading import Reading
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.data.selection import kept, key_of
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility, score
from veilset.pipeline.job import Job, draw_plan
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import Release
from veilset.training.classifier import SoftLabels
from versions import versions_of

RESULTS = REPOSITORY / "benchmarks" / "results" / "archives.jsonl"
TEN = (
    "Bangs", "Blond_Hair", "Eyeglasses", "Heavy_Makeup", "Male", "No_Beard", "Smiling", "Wavy_Hair", "Wearing_Hat",
    "Young",
)  # fmt: skip
RARE, RARE_SHARE = 8, 0.01
SEED_METHODS = ("imgsyn", "latent", "dfd", "dpaf", "sanitized_gan", "pldk")
SIDE = 128

Cell = Mapping[str, Any]


def cells(part: str, seeds: Sequence[int]) -> list[Cell]:
    """What a part consists of, the quickest first."""
    found: list[Cell] = []
    for seed in seeds:
        if part == "findings":
            found += [{"method": "imgsyn", "epsilon": epsilon, "seed": seed} for epsilon in (1.0, 10.0, None)]
        elif part == "rare":
            found += [
                {"method": "imgsyn", "epsilon": epsilon, "count_share": share, "seed": seed}
                for epsilon in (1.0, 10.0)
                for share in (0.0, 0.02)
            ]
        elif part == "dicom":
            found += [{"method": "merf", "epsilon": 1.0, "seed": seed}]
        else:
            found += [{"method": name, "epsilon": 10.0, "seed": seed} for name in SEED_METHODS]
    return [{"benchmark": "archives", "what": part, **cell} for cell in found]


def findings(cell: Cell) -> Line:
    """Teacher and student at one epsilon; without an epsilon, a student of the real images."""
    card = json.loads((DATA / "celeba_64" / "celeba_64.json").read_text(encoding="utf-8"))
    private, test = (_faces(side, tuple(card["attribute_names"])) for side in ("train", "test"))
    classes, seed = len(TEN), cell["seed"]
    if cell["epsilon"] is None:
        return {**_students(private.images, private.labels, None, test, seed), "train_images": len(private)}
    release, cost = _made(Vault(private), cell, public="tinyimagenet_64", private=private, samples=6000)
    teacher = score(release.model("teacher"), test, classes)
    return {
        "data": "celeba_64, ten attributes",
        "teacher": {name: round(found.value, 4) for name, found in teacher.values.items()},
        **_students(release.images, release.labels, release.soft_labels, test, seed),
        **cost,
    }


def _students(images: Images, labels: Labels, soft_labels: SoftLabels | None, test: ImageSet, seed: int) -> Line:
    """A network from scratch, and a pretrained one that is fine-tuned."""
    named = {"student": "convnet", "tuned": "lite0-tuned"}
    found = {
        place: evaluate_utility(
            images, labels, soft_labels, len(TEN), test, student=student, seeds=1, first_seed=seed
        ).to_json()
        for place, student in named.items()
    }
    return {place: _areas(result) for place, result in found.items()}


def _faces(side: str, names: tuple[str, ...]) -> ImageSet:
    found = open_images(
        f"{DATA / 'celeba_64'}:{side}", labels="attributes", classes=names, reading=Reading(findings=TEN)
    )
    return ImageSet(found.read(np.arange(len(found.labels))), found.labels, found.class_names)


def _areas(result: Mapping[str, Any]) -> Line:
    names = ("auc", "auc_interval", "average_precision", "balanced_accuracy")
    each = {one["name"]: round(one["auc"], 4) for one in result["per_finding"]}
    return {**{name: np.round(result[name], 4).tolist() for name in names}, "auc_of_each": each}


def rare(cell: Cell) -> Line:
    """Recall of one digit that few records show."""
    whole, test = load("mnist", validate=False)
    of_it = np.flatnonzero(whole.labels == RARE)
    others = np.flatnonzero(whole.labels != RARE)
    wanted = round(len(others) * RARE_SHARE / (1 - RARE_SHARE))
    few = of_it[kept(whole.subset(of_it), wanted / len(of_it), key_of(0, "rare"))]
    private = whole.subset(np.sort(np.concatenate([others, few])))
    settings = {"count_share": str(cell["count_share"])}
    release, cost = _made(
        Vault(private), cell, settings=settings, public="fashion_mnist", private=private, samples=12_000
    )
    teacher = score(release.model("teacher"), test, 10)
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, 10, test, seeds=1, first_seed=cell["seed"]
    ).to_json()
    return {
        "data": f"mnist, {len(few)} of {len(private)} records show {RARE}",
        "teacher": {
            "recall": round(teacher.per_class[RARE].value, 4),
            "accuracy": round(teacher.accuracy.value, 4),
        },
        "student": {
            "recall": round(result["per_class"][RARE]["recall"], 4),
            "interval": np.round(result["per_class"][RARE]["interval"], 4).tolist(),
            "accuracy": round(result["accuracy"], 4),
        },
        "warnings": list(release.certificate.warnings),
        **cost,
    }


def dicom(cell: Cell) -> Line:
    """Two releases with the same seeded noise: of the parquet file, and of the same X-rays as DICOM files."""
    source = f"{DATA / 'chest_xray_224'}:train"
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        begun = time.perf_counter()
        count = write_dicom_files(open_images(source, groups="patient"), archive)
        written = time.perf_counter() - begun
        hashes: list[str] = []
        units: list[int] = []
        for place, groups in ((source, "patient"), (str(archive), None)):
            vault = Vault.open(place, size=64, unit="group", groups=groups)
            release, cost = _made(vault, cell, preset="fast", samples=2000, noise=cell["seed"])
            release.save(Path(folder) / f"release-{len(hashes)}")
            hashes.append(sha256_of(Path(folder) / f"release-{len(hashes)}" / "data.npz"))
            units.append(vault.facts.units)
    return {
        "data": f"chest_xray_224, {count} files, {units[0]} patients",
        "writing_seconds": round(written),
        "same_patients": units[0] == units[1],
        "same_bytes": hashes[0] == hashes[1],
        "sha256": hashes,
        **cost,
    }


def write_dicom_files(records: Records, archive: Path) -> int:
    """Grey 8-bit images as DICOM files, one for each record, with a table of their labels beside them."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    assert records.groups is not None
    archive.mkdir(parents=True)
    lines = ["path,label"]
    for row, (label, who) in enumerate(zip(records.labels, records.groups, strict=True)):
        pixels = records.read(np.array([row]))[0, :, :, 0]
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["veilset", str(row)])
        file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        file.StudyInstanceUID = generate_uid(entropy_srcs=["study", str(row)])
        file.SeriesInstanceUID = generate_uid(entropy_srcs=["series", str(row)])
        file.PatientID = f"P{who}"
        file.Rows, file.Columns = pixels.shape
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
        file.BitsAllocated = file.BitsStored = 8
        file.HighBit, file.PixelRepresentation = 7, 0
        file.add_new("PixelData", "OB", pixels.tobytes())
        file.save_as(archive / f"{row:05}.dcm", enforce_file_format=True)
        lines.append(f"{row:05}.dcm,{records.class_names[label]}")
    (archive / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines) - 1


def sizes(cell: Cell) -> Line:
    """One method on chest X-rays of 128 pixels: what it takes, and its images as a picture."""
    found = open_images(f"{DATA / 'chest_xray_224'}:train", groups="patient", size=SIDE)
    private = ImageSet(found.read(np.arange(len(found.labels))), found.labels, found.class_names, found.groups)
    test = open_images(f"{DATA / 'chest_xray_224'}:test", size=SIDE)
    release, cost = _made(
        Vault(private, unit="group"), cell, preset="fast", public="photos_224", private=private, samples=1000
    )
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, 2, test, seeds=1, first_seed=cell["seed"]
    )
    if cell["method"] not in ("imgsyn", "latent"):  # these show the photographs, and their licence lets nobody do so
        name = f"{cell['method']}-chest-xray-{SIDE}.png".replace("_", "-")
        write_grid(REPOSITORY / "docs" / "images" / name, release.images, release.labels)
    return {
        "data": f"chest_xray_224 at {SIDE} pixels",
        "student": {
            "accuracy": round(result.accuracy, 4),
            "balanced_accuracy": round(result.balanced_accuracy, 4),
        },
        "student_seconds": round(result.seconds),
        **cost,
    }


def _made(
    vault: Vault,
    cell: Cell,
    *,
    preset: str = "default",
    settings: Mapping[str, str] | None = None,
    public: str | None = None,
    private: ImageSet | None = None,
    samples: int | None = None,
    noise: int | None = None,
) -> tuple[Release, Line]:
    """A release and what it took."""
    job = Job(
        method=cell["method"], epsilon=cell["epsilon"], delta=DELTA, preset=preset, settings=settings or {},
        samples=samples, seed=cell["seed"], insecure_seed=noise,
    )  # fmt: skip
    scale = draw_plan(job, vault.facts).public_scale
    images = None if public is None or private is None else public_images(public, private, scale)
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        checked = None if images is None else vault.check_public(images)
        release = run(vault, job, workspace=Path(folder) / "run", public=checked)
    return release, {
        "unit": vault.facts.unit,
        "shape": list(vault.facts.shape),
        "preset": preset,
        "samples": len(release),
        "seconds": round(time.perf_counter() - clock),
        "cpu_seconds": round(time.process_time() - processor),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def is_done(cell: Cell) -> bool:
    """Whether a line of today's versions has this cell."""
    if not RESULTS.exists():
        return False
    wanted = {**cell, "versions": versions_of(cell["method"])}
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return any(all(line.get(name) == value for name, value in wanted.items()) for line in lines)


def main() -> None:
    """Run what was asked for and is not there yet, each cell in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["findings", "rare", "dicom", "sizes"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--only", default="", help="cells of this method")
    parser.add_argument("--again", action="store_true", help="measure cells that have a line, too")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    parts = {"findings": findings, "rare": rare, "dicom": dicom, "sizes": sizes}
    found = cells(asked.part, asked.seeds)
    if asked.one is not None:
        cell = found[asked.one]
        append({**cell, **parts[asked.part](cell)}, RESULTS)
        return
    for number, cell in enumerate(found):
        if asked.only not in cell["method"] or (is_done(cell) and not asked.again):
            continue
        command = [sys.executable, __file__, asked.part, "--seeds", *map(str, asked.seeds), "--one", str(number)]
        if subprocess.run(command, check=False).returncode:
            print(f"{dict(cell)} did not end well", flush=True)


if __name__ == "__main__":
    main()
