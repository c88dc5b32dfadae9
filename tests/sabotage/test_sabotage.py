"""Each broken twin must be caught, and nothing but the audit may reach them. Noise is seeded."""

import ast
from pathlib import Path

import pytest

from veilset.audit.game import audit, seeded
from veilset.audit.mechanisms import mechanism_subject
from veilset.audit.neighbours import NeighbourSubject
from veilset.audit.sabotage import SABOTAGES, Sabotage, try_sabotage
from veilset.audit.sabotage_neighbours import neighbour_sabotages, sound_twin

SOURCE = Path(__file__).parent.parent.parent / "src" / "veilset"
# Seconds each with these runs; the curves of sampled claims take longer and are tried with --nightly.
QUICK = {
    "noise removed": 100,
    "clip removed": 100,
    "clip per batch instead of per record": 400,
    "noise too small by C (DPDFD)": 400,
    "co-trained layers without noise (DPAF)": 100,
    "aggregate without noise upstream (DPAF)": 100,
    "statistics without noise (DP-ImgSyn)": 100,
    "a fixed seed": 100,
    "BatchNorm slipped in": 100,
    "normalisation by the private mean": 100,
}


def by_name(sabotage: Sabotage) -> str:
    return sabotage.name


def test_there_are_thirty_five() -> None:
    names = [sabotage.name for sabotage in SABOTAGES] + [subject.name for subject in neighbour_sabotages()]
    assert len(set(names)) == len(names) == 35
    assert set(QUICK) <= {sabotage.name for sabotage in SABOTAGES}


@pytest.mark.parametrize("sabotage", [s for s in SABOTAGES if s.name in QUICK], ids=by_name)
def test_it_is_caught(sabotage: Sabotage) -> None:
    finding = try_sabotage(sabotage, runs=QUICK[sabotage.name], make_noise=seeded(0))
    assert finding.contradicted, f"{finding.lower_bound:.2f} against a claim of {finding.claimed_epsilon:.2f}"
    assert finding.confidence == 0.95


@pytest.mark.nightly
@pytest.mark.parametrize("sabotage", [s for s in SABOTAGES if s.name not in QUICK], ids=by_name)
def test_the_slower_ones_are_caught_too(sabotage: Sabotage) -> None:
    finding = try_sabotage(sabotage, make_noise=seeded(0))
    assert finding.contradicted, f"{finding.lower_bound:.2f} against a claim of {finding.claimed_epsilon:.2f}"


@pytest.mark.parametrize("subject", neighbour_sabotages(), ids=lambda subject: subject.name)
def test_the_neighbour_run_catches_it(subject: NeighbourSubject) -> None:
    finding = subject.finding()
    assert finding.contradicted, f"{finding.lower_bound:.2f} against a claim of {finding.claimed_epsilon:.2f}"


def test_the_neighbour_run_lets_the_sound_sum_pass() -> None:
    assert not sound_twin().finding().contradicted


@pytest.mark.parametrize("name", ["gaussian_sum", "dpsgd_step"])
def test_the_sound_twin_is_not(name: str) -> None:
    finding = audit(mechanism_subject(name, 1.0), runs=200, confidence=1 - 1e-6, make_noise=seeded(0))
    assert not finding.contradicted


def test_nothing_but_the_audit_and_its_command_reaches_them() -> None:
    allowed = {
        SOURCE / "audit" / "sabotage.py",
        SOURCE / "audit" / "sabotage_neighbours.py",
        SOURCE / "cli" / "audit.py",
    }
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert path in allowed or not any("sabotage" in name for name in names), f"{path} imports the sabotages"
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            assert path in allowed or "audit.sabotage" not in text, f"{path} names the sabotages"
