"""Releases that enter a run: verified, and what they cost comes along.

Post-processing is free of what is on the same ledger, or of other people. A release of the same people that another
run made is neither, so its events are part of whatever is built upon it: of plan, ledger and certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilset.core.errors import BudgetError, InputError, VerificationError
from veilset.core.files import sha256_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan, source_of
from veilset.privacy.ledger import check_chain
from veilset.release import layout
from veilset.release.certifying import OF_OTHERS
from veilset.release.format import Release, load_release
from veilset.release.verify import verify_release

_DEEPEST = 3  # folders from a file of a release or an export up to its certificate, at most


@dataclass(frozen=True, kw_only=True)
class InputRelease:
    """A verified release that a run builds upon; `events` are all that it cost, as another run carries them."""

    path: Path
    guarantee: str
    unit: str
    run: str
    certificate_sha256: str
    events: tuple[Event, ...]
    is_of_others: bool

    def to_json(self) -> dict[str, Any]:
        """What the ledger's first line says of it: no place on the disk."""
        names = ("run", "certificate_sha256", "is_of_others")
        return {"name": self.path.name, **{name: getattr(self, name) for name in names}}

    def statement(self) -> str:
        """The sentence for certificate and card."""
        what = f"Made from the release {self.path.name!r} (SHA-256 of its certificate {self.certificate_sha256})."
        if self.is_of_others:
            return f"{what} {OF_OTHERS}"
        return f"{what} What that release cost is part of this guarantee."


def open_input(path: Path, *, is_of_others: bool = False) -> InputRelease:
    """Verify the release at `path` in full, and say what it cost."""
    try:
        layout.require_release(path)
    except InputError as error:
        raise InputError(f"There is no release at {path} to build upon. {error}") from error
    digest = sha256_of(path / layout.CERTIFICATE)
    found = verify_release(path)
    certificate = found.certificate
    if not found.ok or certificate is None or sha256_of(path / layout.CERTIFICATE) != digest:
        raise VerificationError(
            f"{path} does not verify, so nothing can be built upon it. " + " ".join(found.problems[:3])
        )
    spent = check_chain(certificate.ledger) if certificate.guarantee == "dp" else []
    return InputRelease(
        path=path,
        guarantee=certificate.guarantee,
        unit=certificate.unit,
        run=str(certificate.header.get("run")),
        certificate_sha256=digest,
        events=tuple(replace(event, source=source_of(digest, event.source)) for event in spent),
        is_of_others=is_of_others,
    )


def inputs_at(place: str, *, is_of_others: bool = False) -> tuple[InputRelease, ...]:
    """The release at `place`, or that `place` is a file of; none where no certificate lies there."""
    path = Path(place).resolve()  # a link to a release's file is that file
    folder = path if path.is_dir() else path.parent
    if not place or not (folder / layout.CERTIFICATE).exists():
        return ()
    return (open_input(folder, is_of_others=is_of_others),)


def load_input(found: InputRelease) -> Release:
    """The content of a verified release; one that was exchanged since is refused."""
    release = load_release(found.path)
    if sha256_of(found.path / layout.CERTIFICATE) != found.certificate_sha256:
        raise VerificationError(f"{found.path} is not the release that was verified. Do not change it during a run.")
    return release


def budget_with(budget: Budget, inputs: Sequence[InputRelease], unit: str, *, claims_dp: bool) -> Budget:
    """The budget of a run that takes `inputs`, with what they cost those whom the run protects.

    Privacy: no release without a guarantee enters a run that claims one, not even one of other people. Events of a
    release of the same people are composed with the run's own; their unit must be the run's.
    """
    for found in inputs:
        if claims_dp and found.guarantee != "dp":
            raise VerificationError(
                f"{found.path} has no privacy guarantee, so nothing that is built upon it has one. Take a release "
                "with a guarantee, or start from something else."
            )
        if claims_dp and not found.is_of_others and found.unit != unit:
            raise InputError(
                f"{found.path} protects each {found.unit}, this run each {unit}: their costs do not add up. "
                f"Take a release whose unit is {unit}."
            )
    return replace(budget, carried=tuple(event for found in inputs if not found.is_of_others for event in found.events))


def require_carried(inputs: Sequence[InputRelease], plan: Plan) -> None:
    """Refuse to build upon releases whose cost is not in the plan."""
    for found in inputs:
        if not found.is_of_others and not set(found.events) <= set(plan.events):
            raise BudgetError(
                f"What {found.path} cost is not in the plan, so it cannot be built upon. Use veilset.synthesize."
            )


def refuse_release_as_public(source: str | None) -> None:
    """Refuse to take a release, an export of one, or a part of either for public images: its cost would be forgotten.

    `source` is a data argument. A folder within a release or an export is part of it, and so is what a link leads to
    or, as in caches of downloads, a link itself.
    """
    if source is None or source.startswith("builtin:"):
        return
    whole, before = Path(source), Path(source.rpartition(":")[0] or source)
    path = whole if whole.exists() else before
    places = (path.absolute(), path.resolve())
    if any((folder / layout.CERTIFICATE).exists() for p in places for folder in (p, *p.parents[:_DEEPEST])):
        raise InputError(
            f"{path} is a release, and what it cost its people would be forgotten if it passed for public images. If "
            "they are not the people of your data, copy its images to a folder without its certificate."
        )
