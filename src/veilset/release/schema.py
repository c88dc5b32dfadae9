"""The form of certificate.json as a JSON Schema, for people who read certificates with other tools.

The strict reader (certificate.py) decides; a test holds the two to the same verdicts. A schema can say what is there
and of which type. It cannot say that the checksum fits, that the ledger's lines follow from each other, or that epsilon
is that of the events: `veilset verify` does.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from veilset.release.certificate import (
    FORMAT_VERSION,
    LARGEST_NUMBER,
    LONGEST_SIDE,
    MOST_SAMPLES,
    MOST_UNITS,
    Guarantee,
)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TITLE = f"certificate.json of a Veilset release, format {FORMAT_VERSION}"

Number = Annotated[float, Field(gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]
Side = Annotated[int, Field(ge=1, le=LONGEST_SIDE)]
Unit = Literal["record", "group"]


class _Form(BaseModel):
    """Exactly these keys, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class DeclaredPublic(_Form):
    """What the custodian declares public; the guarantee does not cover it."""

    model_config = ConfigDict(extra="allow")

    units: Annotated[int, Field(ge=1, le=MOST_UNITS, description="How many units there are.")]
    unit: Annotated[Unit, Field(description="What is protected.")]
    shape: Annotated[list[Side], Field(min_length=3, max_length=3, description="Height, width and channels.")]
    class_names: Annotated[list[str], Field(min_length=1, description="Classes, in the order of the labels.")]
    findings: Annotated[
        Literal[True], Field(description="Labels are (images, class_names) zeros and ones. Left out otherwise.")
    ] = True


class LedgerLine(_Form):
    """A line of the run's ledger, chained to the line before it by a hash."""

    sequence: int
    kind: str
    body: dict[str, Any]
    previous: str
    hash: str


class Accountants(_Form):
    """Epsilon of the ledger's events by two accountants; null without a guarantee."""

    pld: Number | None
    rdp: Number | None


class SpentBudget(_Form):
    """What the run was allowed to spend."""

    epsilon: Number
    delta: Number


class CertificateForm(_Form):
    """What a release guarantees, for whom, and from which events."""

    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    content_sha256: Annotated[str, Field(description="SHA-256 of everything else, as sorted JSON without spaces.")]
    guarantee: Annotated[Guarantee, Field(description="dp, or none: then nothing is promised.")]
    epsilon: Annotated[Number | None, Field(description="Of the ledger's events; null without a guarantee.")]
    delta: Annotated[Number | None, Field(description="The chance that the bound fails; null without a guarantee.")]
    unit: Annotated[Unit, Field(description="What is protected, as in declared_public.")]
    relation: Annotated[Literal["add/remove-one"], Field(description="What neighbouring datasets differ by.")]
    declared_public: DeclaredPublic
    ledger: Annotated[list[LedgerLine], Field(min_length=1)]
    accountant: Accountants
    method: str
    settings: Annotated[dict[str, Any], Field(description="The method's public settings as they ran.")]
    seed: Annotated[int | None, Field(description="Of everything but the privacy noise.")]
    budget: SpentBudget | None
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES, description="How many images were released.")]
    versions: Annotated[dict[str, str], Field(description="Of the software that made the release.")]
    reasons: Annotated[list[str], Field(description="Why there is no guarantee, where there is none.")]
    warnings: list[str]
    created: Annotated[str, Field(description="A date.")]
    files: Annotated[dict[str, str], Field(description="SHA-256 of every other file of the release.")]


def certificate_schema() -> dict[str, Any]:
    """The JSON Schema of certificate.json in the version that this Veilset writes."""
    return {"$schema": _DIALECT, **CertificateForm.model_json_schema(), "title": _TITLE}
