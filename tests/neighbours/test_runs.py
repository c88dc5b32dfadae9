"""Whole runs on neighbouring datasets: release, certificate and workspace are equal in every byte."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilset.audit.methods import public_images
from veilset.audit.neighbour_methods import groups, plain
from veilset.audit.neighbours import Neighbours, Play, neighbour_run
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.account import Account
from veilset.privacy.mechanisms.shard_critics import Critics
from veilset.privacy.noise import NoiseSource
from veilset.privacy.spending import PaidSteps, Spending
from veilset.release.verify import verify_release

RUN = uuid.UUID(int=7)


class Cut(BaseException):
    """A power cut, between two things that the run keeps."""


@pytest.fixture(autouse=True)
def same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's name is random and says nothing; here it is the same in both worlds."""
    monkeypatch.setattr(uuid, "uuid4", lambda: RUN)


def job(name: str, **options: object) -> Job:
    return Job(
        method=name, epsilon=4.0, preset="fast", settings=METHODS.get(name).forms[0].settings, samples=12, **options
    )


def whole_run(name: str, worlds: Neighbours, monkeypatch: pytest.MonkeyPatch, *, cut: bool = False) -> Play:
    """`run`, a saved and verified release, and where asked for a cut and a second part of the run before that."""

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
        monkeypatch.setattr("veilset.privacy.noise.NoiseSource", lambda *_, **__: noise)
        vault = worlds.sealed(records)
        public = vault.check_public(public_images()) if METHODS.get(name).needs_public else None
        account, place = Account(workspace.parent / "account.sqlite"), workspace / "work"
        if cut:
            with monkeypatch.context() as patch:
                _cut(patch)
                with pytest.raises(Cut):
                    run(vault, job(name), workspace=place, public=public, account=account)
        release = run(vault, job(name), workspace=place, public=public, account=account, resume=cut)
        release.save(workspace / "release")
        assert verify_release(workspace / "release").ok
        return {}  # all files below the workspace leave

    return play


def _cut(patch: pytest.MonkeyPatch) -> None:
    """End the run once it has kept something, or, where a method keeps nothing so early, in its third step."""

    def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
        def keep(self: Any, *arguments: Any) -> None:
            real(self, *arguments)
            raise Cut

        return keep

    taken = []

    def step(self: Critics, query: Any) -> Any:
        taken.append(real_step(self, query))
        if len(taken) == 3:
            raise Cut
        return taken[-1]

    real_step = Critics.step
    patch.setattr(Critics, "step", step)
    patch.setattr(Spending, "keep", cutting(Spending.keep))
    patch.setattr(PaidSteps, "keep", cutting(PaidSteps.keep))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = replace(plain(), places=("first",))  # the others are tried with sessions
    assert neighbour_run(whole_run(name, worlds, monkeypatch), worlds) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run_of_groups_that_was_cut_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = groups()
    assert neighbour_run(whole_run(name, worlds, monkeypatch, cut=True), worlds) == []
