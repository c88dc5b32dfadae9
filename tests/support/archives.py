"""DICOM and NIfTI files for tests, written from arrays."""

from pathlib import Path
from typing import Any

import numpy as np

SECRET = "SECRET-PATIENT"  # part of every patient's id and name: it must never be printed


def patient(number: int) -> str:
    return f"{SECRET}-{number:04}"


def uid(*numbers: int) -> str:
    return ".".join(map(str, (1, 2, 826, 0, 1, 3680043, 9, *numbers)))


def write_dicom(
    path: Path, pixels: np.ndarray, *, who: str, number: int, study: int | None = None, **tags: Any
) -> Path:
    """(H, W), (F, H, W) with `NumberOfFrames`, or (H, W, 3) pixels; `tags` go over what follows from them."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = tags.pop("TransferSyntaxUID", ExplicitVRLittleEndian)
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = uid(1, number)
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    is_colour = pixels.ndim == 3 and pixels.shape[-1] == 3 and "NumberOfFrames" not in tags
    rows, columns = pixels.shape[:2] if is_colour else pixels.shape[-2:]
    dataset.update(
        {
            "SOPClassUID": meta.MediaStorageSOPClassUID,
            "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
            "StudyInstanceUID": uid(2, number if study is None else study),
            "SeriesInstanceUID": uid(3, number),
            "PatientID": who,
            "PatientName": f"{SECRET}^Ann",
            "Rows": rows,
            "Columns": columns,
            "SamplesPerPixel": 3 if is_colour else 1,
            "PhotometricInterpretation": "RGB" if is_colour else "MONOCHROME2",
            "BitsAllocated": 8 * pixels.itemsize,
            "BitsStored": 8 * pixels.itemsize,
            "HighBit": 8 * pixels.itemsize - 1,
            "PixelRepresentation": int(pixels.dtype.kind == "i"),
        }
    )
    if is_colour:
        dataset.PlanarConfiguration = 0
    content = pixels.tobytes()
    dataset.add_new("PixelData", "OB" if pixels.itemsize == 1 else "OW", content + b"\0" * (len(content) % 2))
    for name, value in tags.items():
        if value is None:
            del dataset[name]
        else:
            setattr(dataset, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_dicom_archive(folder: Path, images: np.ndarray, labels: list[str], patients: list[str]) -> Path:
    """A pack of 8-bit images (N, H, W) or (N, H, W, 3) as DICOM files with a table."""
    lines = ["path,label"]
    for number, (image, label, who) in enumerate(zip(images, labels, patients, strict=True)):
        name = f"{number // 100:03}/{number:05}.dcm"
        write_dicom(folder / name, image, who=who, number=number)
        lines.append(f"{name},{label}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path
