"""Whole runs on neighbouring datasets: release, certificate and workspace are equal in every byte."""

import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from veilset.audit.methods import AUDITS, public_images
from veilset.audit.neighbour_methods import groups, plain
from veilset.audit.neighbours import Neighbours, Play, neighbour_run
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.pipeline.synthesize import Job, run
from veilset.privacy.account import Account
from veilset.privacy.noise import NoiseSource
from veilset.privacy.purse import Purse
from veilset.release.verify import verify_release

RUN = uuid.UUID(int=7)


class Cut(BaseException):
    """A power cut, between two things that the run keeps."""


@pytest.fixture(autouse=True)
def same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's name is random and says nothing; here it is the same in both worlds."""
    monkeypatch.setattr(uuid, "uuid4", lambda: RUN)


def job(name: str, **options: object) -> Job:
    return Job(method=name, epsilon=4.0, preset="fast", settings=AUDITS[name][0].settings, samples=12, **options)


def whole_run(name: str, worlds: Neighbours, monkeypatch: pytest.MonkeyPatch, cut_after: int | None = None) -> Play:
    """`run`, a saved and verified release, and where asked for a cut and a second part of the run before that."""

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
        monkeypatch.setattr("veilset.privacy.noise.NoiseSource", lambda *_, **__: noise)
        vault = worlds.sealed(records)
        public = vault.check_public(public_images()) if METHODS.get(name).needs_public else None
        account, place = Account(workspace.parent / "account.sqlite"), workspace / "work"
        resume = False
        if cut_after is not None:
            with monkeypatch.context() as patch:
                _cut(patch, cut_after)
                with pytest.raises(Cut):
                    run(vault, job(name), workspace=place, public=public, account=account)
            resume = True
        release = run(vault, job(name), workspace=place, public=public, account=account, resume=resume)
        release.save(workspace / "release")
        assert verify_release(workspace / "release").ok
        return {}  # all files below the workspace leave

    return play


def _cut(patch: pytest.MonkeyPatch, after: int) -> None:
    kept = iter(range(after, -1, -1))

    def cutting(real):  # type: ignore[no-untyped-def]
        def keep(self, *arguments):  # type: ignore[no-untyped-def]
            result = real(self, *arguments)
            if next(kept, 0) <= 1:
                raise Cut
            return result

        return keep

    patch.setattr(Purse, "keep", cutting(Purse.keep))
    patch.setattr(Purse, "keep_state", cutting(Purse.keep_state))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = plain()
    assert neighbour_run(whole_run(name, worlds, monkeypatch), worlds) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run_of_groups_that_was_cut_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = groups()
    assert neighbour_run(whole_run(name, worlds, monkeypatch, cut_after=1), worlds) == []
