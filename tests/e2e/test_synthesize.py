"""Whole runs of the pipeline with the smallest method: order, account, resuming, and what a release depends on."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import veilset as vs
from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.pipeline.job import Job, draw_plan
from veilset.pipeline.run import run
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.session import Session
from veilset.release.verify import verify_release


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "support"))
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    yield
    sys.modules.pop("tiny_method", None)


@pytest.fixture
def records() -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (1200, 16, 16, 1), dtype=np.uint8)
    return ImageSet(images, np.arange(1200) % 3)


JOB = Job(method="tiny", epsilon=3.0, samples=30)


def test_plan_equals_ledger_equals_certificate(records: ImageSet, tmp_path: Path) -> None:
    vault = vs.Vault(records)
    release = run(vault, JOB, workspace=tmp_path / "run")
    events = check_chain(release.certificate.ledger)
    assert events == list(draw_plan(JOB, vault.facts).events)
    assert release.certificate.epsilon == pytest.approx(3.0, rel=0.01)
    assert release.certificate.epsilon <= 3.0
    release.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").ok


def test_the_python_front_door(records: ImageSet, tmp_path: Path) -> None:
    release = vs.synthesize(vs.Vault(records), method="tiny", budget=vs.Budget(2.0, 1e-5), samples=12)
    assert len(release) == 12
    release.save(tmp_path / "release")
    assert vs.verify(tmp_path / "release").ok
    image, label = release.torch()[0]
    assert image.shape == (1, 16, 16)
    assert int(label) == 0
    assert not any((tmp_path / "state" / "runs").iterdir()), "a finished run leaves nothing behind"
    with pytest.raises(InputError, match="Options:"):
        vs.synthesize(vs.Vault(records), method="tiny", budget=vs.Budget(2.0, 1e-5), sample=12)


def test_an_account_stops_the_second_run_before_it_reads(records: ImageSet, tmp_path: Path) -> None:
    account = vs.Account(tmp_path / "account.sqlite")
    account.set_limit(vs.Budget(3.0, 1e-5))
    run(vs.Vault(records), JOB, workspace=tmp_path / "one", account=account)
    with pytest.raises(BudgetError, match="overdraw"):
        run(vs.Vault(records), JOB, workspace=tmp_path / "two", account=account)
    assert not (tmp_path / "two").exists()


def test_an_interrupted_run_resumes_for_free(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = vs.Account(tmp_path / "account.sqlite")
    from tiny_method import FittedTiny

    with monkeypatch.context() as patch:

        def interrupted(self: FittedTiny, count: int, seed: int = 0) -> None:
            raise KeyboardInterrupt

        patch.setattr(FittedTiny, "sample", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(vs.Vault(records), JOB, workspace=tmp_path / "run", account=account)
    with pytest.raises(InputError, match="--resume"):
        run(vs.Vault(records), JOB, workspace=tmp_path / "run", account=account)
    other = Job(method="tiny", epsilon=4.0, samples=30)
    with pytest.raises(InputError, match=r"has other epsilon \(\S+ then, \S+ now\)"):
        run(vs.Vault(records), other, workspace=tmp_path / "run", account=account, resume=True)
    reads = []
    monkeypatch.setattr(ImageSet, "read", lambda self, rows: reads.append(rows))
    release = run(vs.Vault(records), JOB, workspace=tmp_path / "run", account=account, resume=True)
    assert not reads, "everything was paid for and kept"
    assert len(account.reservations) == 1
    assert release.certificate.guarantee == "dp"


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_was_cut_off_before_its_first_line_is_begun_anew(
    records: ImageSet, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = vs.Account(tmp_path / "account.sqlite")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", lambda self, header: os._exit(9))
        child = os.fork()
        if child == 0:
            run(vs.Vault(records), JOB, workspace=tmp_path / "run", account=account)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (tmp_path / "run" / "ledger.jsonl").write_bytes(b'{"sequence": 0')
    release = run(vs.Vault(records), JOB, workspace=tmp_path / "run", account=account, resume=resume)
    assert release.certificate.guarantee == "dp"
    assert len(account.reservations) == (1 if resume else 2), "a resumed run has paid"


@pytest.mark.parametrize("why", ["as_published", "insecure_seed"])
def test_what_has_no_guarantee_names_no_epsilon(records: ImageSet, tmp_path: Path, why: str) -> None:
    job = Job(method="tiny", epsilon=3.0, samples=30, **{why: True if why == "as_published" else 7})
    release = run(vs.Vault(records), job, workspace=tmp_path / "run")
    release.save(tmp_path / "release")
    found = verify_release(tmp_path / "release")
    assert found.ok
    assert found.guarantee == "none"
    assert found.epsilon is None
    assert release.certificate.reasons


def test_records_leave_the_vault_only_in_a_run_as_published(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(plan: object, session: Session, public: object, context: object) -> None:
        session.records_without_guarantee()

    monkeypatch.setattr(METHODS.get("tiny"), "fit", staticmethod(fit))
    with pytest.raises(BudgetError, match="as-published"):
        run(vs.Vault(records), JOB, workspace=tmp_path / "run")


def test_same_noise_gives_the_same_bytes(records: ImageSet, tmp_path: Path) -> None:
    first, second, other = (
        run(
            vs.Vault(records),
            Job(method="tiny", epsilon=3.0, samples=30, insecure_seed=seed),
            workspace=tmp_path / name,
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert np.array_equal(first.images, second.images)
    assert not np.array_equal(first.images, other.images)


def test_public_images_that_are_private_are_refused(records: ImageSet) -> None:
    with pytest.raises(InputError, match="public"):
        vs.synthesize(
            vs.Vault(records), method="tiny", budget=vs.Budget(2.0, 1e-5), public=records.subset(np.arange(50))
        )


def test_public_images_of_another_shape_are_brought_to_the_private_one(
    records: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_method import Tiny

    seen = []
    real = Tiny.fit

    def watched(plan: object, session: Session, public: object, context: object) -> object:
        seen.append(public.shape)
        return real(plan, session, public, context)

    monkeypatch.setattr(Tiny, "fit", staticmethod(watched))
    photos = ImageSet(np.random.default_rng(1).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), np.zeros(20, int))
    vs.synthesize(vs.Vault(records), method="tiny", budget=vs.Budget(2.0, 1e-5), public=photos, samples=6)
    assert seen == [(16, 16, 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "tinny"}, "Did you mean tiny"),
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"delta": 0.01}, "Pass --delta"),
        ({"settings": {"sum": "1"}}, "Did you mean sums"),
        ({"settings": {"sums": "many"}}, "Expected sums to be a whole number of at least 1, got 'many'"),
        ({"settings": {"sums": "0"}}, "Expected sums to be a whole number of at least 1, got 0"),
        ({"preset": "quick"}, "Available: default, fast"),
    ],
)
def test_bad_jobs_are_refused_before_a_read(
    records: ImageSet, tmp_path: Path, change: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = vs.Vault(records)
    monkeypatch.setattr(ImageSet, "read", lambda self, rows: pytest.fail("data was read"))
    with pytest.raises(InputError, match=message):
        run(vault, Job(**{"method": "tiny", "epsilon": 1.0, **change}), workspace=tmp_path / "run")
    assert not (tmp_path / "run").exists()
