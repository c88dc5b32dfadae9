"""Every registered method has an audit, and no claim is contradicted."""

import pytest

from veilset.audit.game import audit, seeded
from veilset.audit.methods import method_subjects
from veilset.core.errors import InputError
from veilset.methods import METHODS

SURE = 1 - 1e-6


def claiming() -> set[str]:
    return {name for name in METHODS if METHODS.get(name).guarantee != "none"}


def test_every_method_has_an_audit() -> None:
    missing = sorted(name for name in claiming() if not METHODS.get(name).forms)
    assert not missing, f"To do: declare the forms of {missing} that are to be audited."


def test_a_method_without_a_name_or_an_audit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Did you mean merf"):
        method_subjects("merff", 1.0)
    monkeypatch.setattr(METHODS.get("merf"), "forms", ())
    with pytest.raises(InputError, match="no audit yet"):
        method_subjects("merf", 1.0)


def test_merf_is_not_contradicted_and_its_record_is_seen() -> None:
    subject = method_subjects("merf", 8.0)[0]
    finding = audit(subject, runs=100, confidence=0.9, make_noise=seeded(0))
    assert 0 < finding.lower_bound < finding.claimed_epsilon
    assert finding.claimed_epsilon == pytest.approx(8.0, rel=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_claim_is_contradicted(name: str) -> None:
    for subject in method_subjects(name, 4.0):
        assert not audit(subject, runs=60, confidence=SURE, make_noise=seeded(0)).contradicted, subject.name
