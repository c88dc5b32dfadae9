"""croissant.json: a release in the Croissant format 1.1 of MLCommons, with its vocabulary for responsible AI (RAI).

https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veilset.release.about import UNSAID, About
from veilset.release.certificate import Certificate
from veilset.release.metadata.wording import LIMITS, NOT_COVERED, guarantee_sentence, what_it_is

NPZ = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
PARQUET, CSV, TAR, PNG = "application/x-parquet", "text/csv", "application/x-tar", "image/png"

# fmt: off
_WORDS = (
    "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileProperty",
    "fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator", "source",
    "subField", "transform",
)
# fmt: on
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
    "conformsTo": "dct:conformsTo",
    **{word: f"cr:{word}" for word in _WORDS},
}


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of the data."""

    name: str  # relative to croissant.json
    sha256: str
    size: int
    format: str


def croissant(
    certificate: Certificate, about: About, files: Sequence[DataFile], records: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The description of these files; `records` are further record sets beside the list of classes."""
    said = guarantee_sentence(certificate)
    licence, publisher = about.licence_address or UNSAID, about.publisher or UNSAID
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": about.title,
        "description": f"{what_it_is(certificate)} {said}",
        "license": licence,
        "url": UNSAID,
        "creator": {"@type": "sc:Organization", "name": publisher},
        "publisher": {"@type": "sc:Organization", "name": publisher},
        "datePublished": certificate.created,
        "version": "1.0.0",
        "isLiveDataset": False,
        "citeAs": f"{publisher}: {about.title}, {certificate.created[:4]}.",
        "keywords": ["synthetic", "image", "veilset"]
        + (["differential privacy"] if certificate.guarantee == "dp" else []),
        **_responsible(certificate, about, said),
        "distribution": [_file(found) for found in files],
        "recordSet": [_classes(certificate), *records],
    }


def _responsible(certificate: Certificate, about: About, said: str) -> dict[str, Any]:
    """The RAI fields: how the data came to be, what it is for, and what it is not for."""
    protected = certificate.guarantee == "dp"
    return {
        "rai:dataCollection": about.description or UNSAID,
        "rai:dataCollectionType": ["Synthetic: made from a private dataset that is not published"],
        "rai:dataCollectionRawData": "Private images, which stay with their custodian.",
        "rai:dataPreprocessingProtocol": [
            "All images were brought to one size and one number of channels before anything was computed."
        ],
        "rai:dataManipulationProtocol": (
            f"Made by the method {certificate.method} of Veilset {certificate.versions.get('veilset', '')}; its "
            "settings and the ledger of everything that was read are in certificate.json."
        ),
        "rai:dataAnnotationProtocol": [
            "Labels and soft labels are those that the method gives to the images as stored; no person labelled them."
        ],
        "rai:dataUseCases": ["Training and comparing image classifiers", "Teaching and testing software"],
        "rai:dataLimitations": [*LIMITS],
        "rai:dataBiases": [
            "What is rare in the private data is rarer here: noise hides small classes and small groups first.",
            *certificate.warnings,
        ],
        "rai:dataSocialImpact": LIMITS[1],
        "rai:personalSensitiveInformation": [said, *(NOT_COVERED if protected else certificate.reasons)],
        "rai:dataReleaseMaintenancePlan": "A release is never changed; another release is another dataset.",
    }


def _file(found: DataFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": found.name,
        "name": found.name,
        "contentUrl": found.name,
        "contentSize": f"{found.size} B",
        "encodingFormat": found.format,
        "sha256": found.sha256,
    }


def _classes(certificate: Certificate) -> dict[str, Any]:
    """The names of the labels, written into the description itself."""
    return {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [
            {"@type": "cr:Field", "@id": "classes/label", "name": "label", "dataType": "sc:Integer"},
            {"@type": "cr:Field", "@id": "classes/name", "name": "name", "dataType": ["sc:Text", "sc:name"]},
        ],
        "data": [
            {"classes/label": label, "classes/name": name.encode("utf-8", "replace").decode()}
            for label, name in enumerate(certificate.facts.class_names)
        ],
    }


def parquet_records(
    files: Sequence[DataFile], classes: int, *, has_soft_labels: bool, findings: bool = False
) -> list[dict[str, Any]]:
    """A record set for each parquet file: image, label (or findings) and, where there is one, soft label."""
    return [
        _table(found.name, f"part-{number}", classes, soft=has_soft_labels, findings=findings)
        for number, found in enumerate(files)
    ]


def _table(file: str, name: str, classes: int, *, soft: bool, findings: bool) -> dict[str, Any]:
    def field(column: str, kind: str, **more: Any) -> dict[str, Any]:
        source = {"fileObject": {"@id": file}, "extract": {"column": column}} | more.pop("source", {})
        return {
            "@type": "cr:Field", "@id": f"{name}/{column}", "name": column, "dataType": kind, "source": source, **more,
        }  # fmt: skip

    fields = [
        field("image", "sc:ImageObject", source={"transform": {"jsonPath": "bytes"}}),
        field("labels", "sc:Integer", isArray=True, arrayShape=str(classes))
        if findings
        else field("label", "sc:Integer", references={"field": {"@id": "classes/label"}}),
    ]
    if soft:
        fields.append(field("soft_label", "sc:Float", isArray=True, arrayShape=str(classes)))
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}
