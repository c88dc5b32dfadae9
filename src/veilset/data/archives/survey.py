"""What lies in a folder, by name and by the first bytes, before anything is read."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from veilset.core.errors import InputError
from veilset.data.archives.reading import Kind
from veilset.data.archives.table import CSV_NAME
from veilset.data.decoding import EXTENSIONS

DICOM_EXTENSIONS = (".dcm", ".dicom", ".ima")
NIFTI_EXTENSIONS = (".nii", ".nii.gz")
_SYSTEM_FILES = ("thumbs.db", "ehthumbs.db", "desktop.ini", "dicomdir", "icon\r")
_SYSTEM_FOLDERS = ("__macosx", "$recycle.bin", "system volume information", "@eadir")
SYSTEM = "of the system (.DS_Store, Thumbs.db and the like)"
_LONGEST_SUFFIX = 6  # a longer one may be part of an id
_MARK = b"DICM"  # at byte 128 of every DICOM file


@dataclass
class Survey:
    """Files of a folder and of its sub-folders, relative to it and sorted, by kind."""

    folder: Path
    files: dict[Kind, list[str]] = field(default_factory=lambda: {"images": [], "dicom": [], "nifti": []})
    others: Counter[str] = field(default_factory=Counter)  # why not -> how many
    linked: list[Path] = field(default_factory=list)  # folders that are links

    @property
    def found(self) -> int:
        """All files."""
        return sum(map(len, self.files.values())) + self.others.total()

    def kind(self, wanted: Kind | None) -> Kind:
        """The kind of files to read. Refuses to choose where there are several."""
        there = [kind for kind, files in self.files.items() if files]
        if wanted is not None:
            if wanted not in there:
                raise InputError(f"{self.folder} holds no {_called(wanted)}. Leave --kind out to see what it holds.")
            return wanted
        if len(there) > 1:
            counts = " and ".join(f"{len(self.files[kind])} {_called(kind)}" for kind in there)
            options = " or ".join(f"--kind {kind}" for kind in there)
            raise InputError(f"{self.folder} holds {counts}. Say which to read: {options}.")
        return there[0] if there else "images"

    def ignored(self, kind: Kind) -> Counter[str]:
        """Why files are left out, if this kind is read."""
        other = Counter({f"of another kind ({_called(k)})": len(f) for k, f in self.files.items() if k != kind and f})
        return self.others + other


def survey(folder: Path) -> Survey:
    """Look through a folder. Links to folders are noted and not followed; hidden folders are passed over."""
    found = Survey(folder)

    def fail(error: OSError) -> None:
        raise InputError(f"Cannot read {error.filename}: {error.strerror or error}.") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        inside = os.path.relpath(parent, folder)
        folders[:] = sorted(name for name in folders if not is_system_folder(name))
        found.linked += [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        for name in sorted(names):
            kind = _kind_of(name, parent)
            if kind is not None:
                found.files[kind].append(name if inside == "." else os.path.join(inside, name))  # noqa: PTH118
            elif (why := _why_not(name)) is not None:
                found.others[why] += 1
    return found


def is_system_folder(name: str) -> bool:
    """True for folders that a system keeps for itself."""
    return name.startswith(".") or name.casefold() in _SYSTEM_FOLDERS


def refuse_links(survey: Survey, paths: list[str]) -> None:
    """Refuse folders that are links, and files that are links to the outside or to nothing but themselves."""
    for linked in survey.linked:
        refuse_linked_folder(linked)
    root = survey.folder.resolve()
    for path in paths:
        refuse_leaving(survey.folder / path, root)


def refuse_linked_folder(path: Path) -> None:
    """Refuse a folder that is a link: it may lead anywhere, also back."""
    if path.is_symlink():
        raise InputError(f"{path} is a link to another folder. Put the folder itself there, or link its files.")


def refuse_leaving(path: Path, root: Path) -> None:
    """Refuse a file that is a link out of `root`."""
    if path.is_symlink() and not resolved(path).is_relative_to(root):
        raise InputError(f"{path} is a link that leaves {root}. Put the file itself there.")


def resolved(path: Path) -> Path:
    """Where a path leads."""
    try:
        return path.resolve()
    except (RuntimeError, OSError) as error:  # a RuntimeError where links go round in a circle
        raise InputError(f"{path} is a link that leads nowhere. Put the file itself there.") from error


def _kind_of(name: str, parent: str) -> Kind | None:
    lower = name.casefold()
    if _is_system_file(name):
        return None
    if lower.endswith(EXTENSIONS):
        return "images"
    if lower.endswith(DICOM_EXTENSIONS):
        return "dicom"
    if lower.endswith(NIFTI_EXTENSIONS):
        return "nifti"
    return "dicom" if _is_marked(os.path.join(parent, name), Path(lower).suffix) else None  # noqa: PTH118


def _why_not(name: str) -> str | None:
    """Why a file is left out; None for the table, which is read."""
    if _is_system_file(name):
        return SYSTEM
    suffix = Path(name.casefold()).suffix
    if name.casefold() == CSV_NAME:
        return None
    return f"of another kind ({suffix})" if 0 < len(suffix) <= _LONGEST_SUFFIX else "of another kind"


def _is_system_file(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _SYSTEM_FILES


def _is_marked(path: str, suffix: str) -> bool:
    """True for a DICOM file without the ending: scanners name files by numbers and ids, which may hold dots."""
    if suffix[1:].isalpha() and suffix:
        return False
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(132)[128:] == _MARK
    except OSError:
        return False


def _called(kind: str) -> str:
    return {"images": "image files", "dicom": "DICOM files", "nifti": "NIfTI files"}[kind]
