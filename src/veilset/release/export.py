"""A release in the forms that other tools read: Hugging Face, a folder of PNGs, Parquet, WebDataset, npz.

Every folder carries the certificate (with its signature, where there is one), a card that fits it (README.md), a label
and a Croissant description along. The hashes in the certificate are those of the release; the npz export of a release
in one file keeps data.npz byte for byte, so they hold for it as well. Descriptions alone are single files.
"""

import csv
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.files import require_absent, sha256_of, whole_directory, whole_file, write_whole
from veilset.core.registry import unknown_name
from veilset.release import card_forms, layout, strict_json
from veilset.release.about import About
from veilset.release.card import card_text
from veilset.release.card_forms import CardForm
from veilset.release.format import Release, load_release, read_about
from veilset.release.metadata.croissant import CSV, NPZ, PARQUET, TAR, DataFile, croissant, parquet_records
from veilset.release.metadata.datasheet import datasheet_text
from veilset.release.metadata.label import label_text
from veilset.release.metadata.registry_entry import registry_entry
from veilset.release.pack import write_pack
from veilset.release.redaction import redact
from veilset.release.sharded import data_files
from veilset.release.shards import ShardForm, pngs, soft_row, stem, write_shard
from veilset.release.verify import verify_release

README = "README.md"
_ROWS_PER_FILE = 10_000
# Images of a folder are too many to describe one by one; metadata.csv names them all.
_MEDIA = {".parquet": PARQUET, ".tar": TAR, ".npz": NPZ, ".csv": CSV}
# What makes a spreadsheet compute a cell (full-width forms, too) instead of showing it.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# Windows keeps these names for devices, with any extension.
_RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{i}" for name in ("com", "lpt") for i in range(1, 10))}


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What an export is made from."""

    release: Release
    path: Path
    about: About

    @property
    def has_soft_labels(self) -> bool:
        return self.release.soft_labels is not None


def export_release(path: str | Path, to: str, out: str | Path, *, about: About | None = None) -> Path:
    """Verify the release at `path` and write it to `out`, which is new, whole or not at all.

    `out` becomes a folder, or a file where the form is one file: `croissant`, `label`, `datasheet`, `registry`, and
    `npz` where `out` ends in `.npz`. `about` replaces what the release says of its title, licence and publisher.

    >>> import veilset as vs
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit("builtin:digits:train")
    >>> path = release.save("release")
    >>> vs.export("release", "npz", "images.npz").name
    'images.npz'
    """
    path, out = Path(path), Path(out)
    if to not in FORMS:
        raise unknown_name("export format", to, list(FORMS))
    layout.require_release(path)
    if out.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{out} lies inside the release, which must hold nothing else. Choose another --out.")
    require_absent(out)
    verify_release(path).raise_if_failed()
    release = load_release(path)
    about = read_about(path) if about is None else about
    if release.certificate.guarantee == "none":
        about = About(**redact(asdict(about)))
    source = _Source(release=release, path=path, about=about)
    if to in _TEXTS:
        write_whole(out, _TEXTS[to](source))
        return out
    if to == "npz" and out.suffix == ".npz":
        with whole_file(out) as building:
            _write_pack(release, path, building)
        return out
    with whole_directory(out) as building:
        write, form = _FOLDERS[to]
        write(release, path, building)
        _describe(source, form, building)
    return out


def _describe(source: _Source, form: CardForm, building: Path) -> None:
    """The card, the label, the Croissant description and the certificate beside the data of an export."""
    certificate, about = source.release.certificate, source.about
    files = [
        DataFile(
            name=str(place.relative_to(building)),
            sha256=sha256_of(place),
            size=place.stat().st_size,
            format=_MEDIA[place.suffix],
        )
        for place in sorted(building.rglob("*"))
        if place.suffix in _MEDIA
    ]
    tables = [found for found in files if found.format == PARQUET]
    facts = certificate.facts
    records = parquet_records(tables, facts.classes, has_soft_labels=source.has_soft_labels, findings=facts.findings)
    card = card_text(certificate, about, form, has_soft_labels=source.has_soft_labels)
    (building / README).write_text(card, encoding="utf-8")
    (building / layout.LABEL).write_text(label_text(certificate, about), encoding="utf-8")
    (building / layout.CROISSANT).write_bytes(strict_json.dump(croissant(certificate, about, files, records)))
    for name in (layout.CERTIFICATE, layout.SIGNATURE):
        if (source.path / name).exists():
            shutil.copyfile(source.path / name, building / name)


def folder_names(class_names: Sequence[str]) -> list[str]:
    """A safe, distinct folder name for each class, which sort in the order of the classes.

    Readers number classes by the sorted names of their folders; where that would change a label, or two names become
    one, the number goes in front.
    """
    plain = [_safe(name) for name in class_names]
    folded = [name.casefold() for name in plain]
    # Some readers sort 9 before 10 and others after it, so numbers stay as they are only when both agree.
    numbers = [int(name) for name in plain] if all(name.isdecimal() for name in plain) else []
    if sorted(plain) == plain and sorted(numbers) == numbers and len(set(folded)) == len(folded):
        return plain
    width = len(str(len(plain) - 1))
    return [f"{number:0{width}d}_{name}" for number, name in enumerate(plain)]


def _safe(name: str) -> str:
    safe = re.sub(r"[^\w.-]+", "_", name.encode("utf-8", "replace").decode()).strip("._ ").lstrip("-._ ")
    while len(safe.encode()) > 100:
        safe = safe[:-1]
    return f"class_{safe}" if not safe or safe.partition(".")[0].casefold() in _RESERVED else safe


def _write_folder(release: Release, _: Path, building: Path) -> None:
    """One folder of PNGs per class, and metadata.csv with a line per image in the order of the release.

    Class names may come from anywhere, and people open such tables in spreadsheets: no cell is a formula.
    """
    names = release.certificate.facts.class_names
    if release.certificate.facts.findings:
        _write_findings(release, building)
        return
    folders = folder_names(names)
    # Folders of classes without an image are kept: without them a reader would number the others anew.
    for folder in folders:
        (building / folder).mkdir()
    with (building / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        soft_columns = [f"soft_{i}" for i in range(len(names))] if release.soft_labels is not None else []
        table.writerow(["file_name", "label", "class_name", *soft_columns])
        for index, png in enumerate(pngs(release.images)):
            label = int(release.labels[index])
            place = f"{folders[label]}/{stem(index)}.png"
            (building / place).write_bytes(png)
            table.writerow([place, label, _as_text(names[label]), *soft_row(release.pack, index)])


def _write_findings(release: Release, building: Path) -> None:
    """One folder of PNGs, and labels.csv with a column of zeros and ones for each finding, as `--findings` reads it."""
    names = [_as_text(name) for name in release.certificate.facts.class_names]
    (building / "images").mkdir()
    soft_columns = [f"soft_{i}" for i in range(len(names))] if release.soft_labels is not None else []
    with (building / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", *names, *soft_columns])
        for index, png in enumerate(pngs(release.images)):
            place = f"images/{stem(index)}.png"
            (building / place).write_bytes(png)
            table.writerow([place, *release.labels[index].tolist(), *soft_row(release.pack, index)])


def _write_parquet(release: Release, _: Path, building: Path) -> None:
    """Parquet files in the image layout of Hugging Face, with its features in the metadata."""
    files = _parts(len(release))
    for number, rows in enumerate(files):
        place = building / f"train-{number:05d}-of-{len(files):05d}.parquet"
        _write_part(place, release, rows, "parquet")


def _write_webdataset(release: Release, _: Path, building: Path) -> None:
    """Tar files in which the image, its class and what else is known of it follow each other under one stem."""
    for number, rows in enumerate(_parts(len(release))):
        _write_part(building / f"shard-{number:06d}.tar", release, rows, "webdataset")


def _write_part(place: Path, release: Release, rows: range, form: ShardForm) -> None:
    part = release.pack.part(rows.start, rows.stop)
    write_shard(place, [part], release.certificate.facts.class_names, first=rows.start, form=form)


def _write_npz(release: Release, path: Path, building: Path) -> None:
    _write_pack(release, path, building / layout.DATA)


def _write_pack(release: Release, path: Path, place: Path) -> None:
    if (path / layout.DATA).exists():
        shutil.copyfile(path / layout.DATA, place)
    else:
        write_pack(place, release.pack)


def _write_hf(release: Release, path: Path, building: Path) -> None:
    """Parquet files in a folder `data`, as repositories on the Hugging Face Hub have them."""
    (building / "data").mkdir()
    _write_parquet(release, path, building / "data")


_FOLDERS: dict[str, tuple[Callable[[Release, Path, Path], None], CardForm]] = {
    "hf": (_write_hf, card_forms.HF),
    "folder": (_write_folder, card_forms.FOLDER),
    "parquet": (_write_parquet, card_forms.PARQUET),
    "webdataset": (_write_webdataset, card_forms.WEBDATASET),
    "npz": (_write_npz, card_forms.NPZ),
}
_TEXTS: dict[str, Callable[[_Source], bytes]] = {
    "croissant": lambda s: strict_json.dump(
        croissant(s.release.certificate, s.about, data_files(s.path, s.release.certificate))
    ),
    "label": lambda s: label_text(s.release.certificate, s.about).encode(),
    "datasheet": lambda s: datasheet_text(s.release.certificate, s.about, has_soft_labels=s.has_soft_labels).encode(),
    "registry": lambda s: registry_entry(s.release.certificate, s.about).encode(),
}
FORMS = (*_FOLDERS, *_TEXTS)


def _parts(count: int) -> list[range]:
    return [range(start, min(start + _ROWS_PER_FILE, count)) for start in range(0, count, _ROWS_PER_FILE)]


def _as_text(name: str) -> str:
    """A class name as a spreadsheet shows it: one that would be taken for a formula gets an apostrophe in front."""
    text = re.sub(r"[\x00-\x1f]", " ", _writable(name))  # a tab or a line's end would begin another cell
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
