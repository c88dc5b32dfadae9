"""Folders of DICOM files with a table of labels. PatientID is the group unless the table names one.

Of a file's tags this reads the patient, the ids that a table may name, and what decoding needs. None is kept longer
than opening takes, but for the patient, who is the group; none is printed. Errors name files and lines.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.progress import Progress
from veilset.data.archives.dicom_pixels import dicom_picture, is_deflated, quietly, undecodable
from veilset.data.archives.listing import Listing, Request, open_listing
from veilset.data.archives.reading import Reading, chosen_frames
from veilset.data.archives.survey import Survey, refuse_links
from veilset.data.archives.table import CSV_NAME, Row, Table, find_table, first_of, lines_of, read_table
from veilset.data.folder import check_listed
from veilset.data.optional import require
from veilset.data.streaming import Picture, StreamedImages
from veilset.data.tally import Tally

# What a table may call a file by, from one file to many.
KEYS = ("path", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "PatientID")
_TAGS = ("Rows", "Columns", "NumberOfFrames", "BitsAllocated", "BitsStored", "BurnedInAnnotation")


@dataclass(frozen=True)
class _Header:
    """What opening needs of one file."""

    path: str
    problem: str = ""
    has_image: bool = False
    frames: int = 1
    is_burned_in: bool = False
    ids: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class _DicomFiles:
    folder: Path
    paths: list[str]
    frames: list[int]
    window: tuple[float, float] | None

    def name(self, row: int) -> str:
        return self.paths[row]

    def picture(self, row: int) -> Picture:
        return dicom_picture(self.folder / self.paths[row], self.frames[row], self.window)


def open_dicom(found: Survey, request: Request) -> StreamedImages:
    """Check every labelled image of the folder once and keep it open for reading by row."""
    require("pydicom", "medical")
    folder, reading = found.folder, request.reading
    tally = Tally(found.found, found.ignored("dicom"))
    path = find_table(folder, reading.table)
    if path is None:
        raise InputError(
            f"{folder} holds DICOM files and no {CSV_NAME}. Add one, or pass --table FILE.csv, with the columns "
            f"{' or '.join(KEYS)} and label. (Sub-folders are not read as classes: they often name patients.)"
        )
    table = read_table(path, KEYS, request.labels, request.groups, request.reading.findings)
    headers = _headers(found, table, tally, request)
    labelled = _labelled(headers, table, tally, reading)
    _refuse_repeated([header for header, _ in labelled])
    groups = _groups(labelled, table, tally)
    paths, frames, labels, who = [], [], [], []
    for (header, row), group in zip(labelled, groups, strict=True):
        for frame in _frames(header, reading):
            paths.append(header.path)
            frames.append(frame)
            labels.append(row.label)
            who.append(group)
    burned_in = frozenset(header.path for header, _ in labelled if header.is_burned_in)
    listing = Listing(paths, labels, who, frames, burned_in=burned_in)
    return open_listing(listing, lambda some, which: _DicomFiles(folder, some, which, reading.window), tally, request)


def _headers(found: Survey, table: Table, tally: Tally, request: Request) -> list[_Header]:
    """The headers of all files, or of those that the table names by path, that hold an image."""
    paths = found.files["dicom"]
    skip = request.reading.skip_bad
    if table.key.casefold() == "path":
        listed = [row.key for row in table.rows]
        missing = check_listed(found.folder, listed, table.path.name, skip=skip)
        if missing:
            tally.said.append(f"{len(missing)} files of {table.path.name} are not there and are left out.")
        known = {Path(path) for path in paths}
        others = [path for path in listed if path not in missing and Path(path) not in known]
        if others:
            raise InputError(f"{len(others)} files of {table.path.name} are not DICOM files: {first_of(others)}.")
        named = {Path(path) for path in listed}
        tally.ignore(f"that {table.path.name} does not name", sum(Path(path) not in named for path in paths))
        paths = [path for path in paths if Path(path) in named]
    refuse_links(found, paths)
    wanted = {"patientid", "sopinstanceuid", "studyinstanceuid", table.key.casefold()}
    tags = (*_TAGS, *(name for name in KEYS[1:] if name.casefold() in wanted))
    headers = _read_headers(found.folder, paths, tags, request.progress)
    bad = [header for header in headers if header.problem]
    if bad and not skip:
        named_files = first_of([f"{header.path} ({header.problem})" for header in bad])
        raise InputError(
            f"{len(bad)} of {len(headers)} DICOM files cannot be read: {named_files}. Repair or remove them, or leave "
            "them out with --skip-bad."
        )
    tally.ignore("that cannot be read (--skip-bad)", len(bad))
    return [header for header in headers if not header.problem]


def _read_headers(folder: Path, paths: list[str], tags: tuple[str, ...], progress: Progress) -> list[_Header]:
    headers = []
    with progress.task("read headers", len(paths)) as task, ThreadPoolExecutor(4) as pool:
        for header in pool.map(lambda path: _header(folder, path, tags), paths):
            headers.append(header)
            task.advance()
    return headers


def _header(folder: Path, path: str, tags: tuple[str, ...]) -> _Header:
    pydicom = require("pydicom", "medical")
    quietly()
    try:
        if is_deflated(folder / path):
            return _Header(path, problem="stored as Deflated Explicit VR, which is not read: unpack it first")
        dataset = pydicom.dcmread(folder / path, stop_before_pixels=True, specific_tags=list(tags))
        if "Rows" not in dataset and "Columns" not in dataset:
            return _Header(path)  # a report, a plan, a presentation state
        return _Header(
            path,
            problem=undecodable(dataset),
            has_image=True,
            frames=int(dataset.get("NumberOfFrames") or 1),
            is_burned_in=str(dataset.get("BurnedInAnnotation", "")).strip().upper() == "YES",
            ids={name: str(dataset.get(name) or "").strip() for name in KEYS[1:] if name in tags},
        )
    except pydicom.errors.InvalidDicomError:
        return _Header(path, problem="not a DICOM file: its first bytes say something else")
    except OSError as error:
        return _Header(path, problem=f"unreadable: {error.strerror or 'it cannot be opened'}")
    except Exception as error:  # pydicom raises nearly every type on damaged files, with values of tags in the text
        return _Header(path, problem=f"damaged: its tags cannot be read ({type(error).__name__})")


def _labelled(headers: list[_Header], table: Table, tally: Tally, reading: Reading) -> list[tuple[_Header, Row]]:
    """Files with their lines of the table, in the order of the files."""
    rows = {key if table.key.casefold() != "path" else str(Path(key)): row for key, row in table.by_key().items()}
    key_of = _key_of(table)
    seen, pairs, without = set(), [], 0
    for header in headers:
        if not header.has_image:
            tally.ignore("without an image (reports, plans and the like)")
            continue
        key = key_of(header)
        row = rows.get(key)
        if row is None:
            without += 1
        else:
            seen.add(key)
            pairs.append((header, row))
    tally.ignore(f"without a label in {table.path.name}", without)
    if not pairs:
        raise InputError(
            f"No DICOM file has a label: of {len(headers)} files none has a {table.key} that stands in {table.path}. "
            "Check that table and files belong together."
        )
    unused = {key: row for key, row in rows.items() if key not in seen}
    if unused and not reading.skip_bad and table.key.casefold() != "path":
        raise InputError(
            f"{len(unused)} of {len(rows)} lines of {table.path} belong to no image: {lines_of(unused)}. Remove them, "
            "add the files, or pass --skip-bad."
        )
    if unused:
        tally.said.append(f"{len(unused)} lines of {table.path.name} belong to no image and are left out.")
    return pairs


def _key_of(table: Table) -> Callable[[_Header], str]:
    if table.key.casefold() == "path":
        return lambda header: str(Path(header.path))
    name = next(key for key in KEYS if key.casefold() == table.key.casefold())
    return lambda header: header.ids[name]


def _refuse_repeated(headers: list[_Header]) -> None:
    first: dict[str, str] = {}
    for header in headers:
        uid = header.ids.get("SOPInstanceUID", "")
        other = first.setdefault(uid, header.path) if uid else header.path
        if other != header.path:
            raise InputError(
                f"{other} and {header.path} have the same SOPInstanceUID: they are one image twice. Remove one of them."
            )


def _groups(labelled: list[tuple[_Header, Row]], table: Table, tally: Tally) -> list[str]:
    """To whom each file belongs: the table's word, else the patient."""
    if table.has_groups:
        pairs = {(header.ids["PatientID"], row.group) for header, row in labelled if header.ids["PatientID"]}
        apart = sum(count > 1 for count in Counter(patient for patient, _ in pairs).values())
        if apart:
            tally.said.append(
                f"{apart} PatientIDs lie in more than one group of {table.path.name}. The table is believed: what is "
                "protected is each group, not each PatientID."
            )
        return [row.group or "" for _, row in labelled]
    blank = [header.path for header, _ in labelled if not header.ids["PatientID"]]
    if blank:
        raise InputError(
            f"{len(blank)} of {len(labelled)} DICOM files have no PatientID: {first_of(blank)}. Add a column group to "
            f"{table.path.name} that says whose they are."
        )
    patient_of: dict[str, tuple[str, str]] = {}
    for header, _ in labelled:
        study, patient = header.ids["StudyInstanceUID"], header.ids["PatientID"]
        other, path = patient_of.setdefault(study, (patient, header.path)) if study else (patient, "")
        if other != patient:
            raise InputError(
                f"{path} and {header.path} belong to one study but to two patients. Correct the PatientID, or add a "
                f"column group to {table.path.name}."
            )
    patients = {header.ids["PatientID"] for header, _ in labelled}
    if len(patients) == 1 and len(patient_of) > 1:
        raise InputError(
            f"All {len(labelled)} DICOM files have one PatientID in {len(patient_of)} studies: perhaps it was "
            f"overwritten to hide who they are. Add a column group to {table.path.name} that tells patients apart."
        )
    return [header.ids["PatientID"] for header, _ in labelled]


def _frames(header: _Header, reading: Reading) -> list[int]:
    if header.frames == 1:
        return [0]
    if reading.frames is None:
        raise InputError(
            f"{header.path} has {header.frames} frames. Say which to use: --frames first, middle or all (each a record "
            "of the same patient)."
        )
    return chosen_frames(reading.frames, header.frames)
