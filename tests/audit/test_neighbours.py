"""The neighbour run itself: what it must not overlook. Holes in real code are tried in `veilset audit --sabotage`."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from veilset.audit.neighbour_methods import plain
from veilset.audit.neighbours import Neighbours, Play, neighbour_run, session_play
from veilset.core.errors import VeilsetError
from veilset.data.images import ImageSet
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session

EVENT = Event(label="brightness", noise_multiplier=2.0)
PLAN = Plan(budget=Budget(4.0, 1e-5), events=(EVENT,))
WORLDS = Neighbours(records=plain().records, unit=plain().unit, places=("middle",))


def brightness(session: Session) -> None:
    session.gaussian_sum(lambda images, _: images.double().mean(dim=(1, 2, 3))[:, None] / 255, EVENT, clip_norm=1.0)


def found(run: Play) -> list[str]:
    """What is found in the whole company; in the smaller one it is the same."""
    differences = [one.what for one in neighbour_run(run, WORLDS)]
    in_few = [what for what in differences if what.endswith(", few)")]
    in_all = [what for what in differences if what not in in_few]
    assert [what.replace(", few)", ")") for what in in_few] == in_all
    return in_all


def found_in(spend: Callable[[Session], None]) -> list[str]:
    return found(session_play(WORLDS, PLAN, spend))


def found_when(leak: Callable[[ImageSet, Path], None]) -> list[str]:
    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
        del noise
        leak(records, workspace)
        return {}

    return found(play)


def test_a_paid_sum_may_leave() -> None:
    assert found_in(brightness) == []


def test_a_sum_leaves_twice() -> None:
    def twice(session: Session) -> None:
        brightness(session)
        GridSum(1, 1, 1.0).release(session._noise, EVENT.noise_multiplier, event=EVENT)

    assert found_in(twice) == ["2 sums of 'brightness' left, 1 were paid for (unit middle)"]


def test_a_sum_leaves_with_less_noise_or_without_an_event() -> None:
    def cheap(session: Session) -> None:
        GridSum(1, 1, 1.0).release(session._noise, 1.0, event=EVENT)

    def unknown(session: Session) -> None:
        GridSum(1, 1, 1.0).release(session._noise, 1.0)

    assert found_in(cheap) == ["sum 0, 'brightness', left with less noise than was paid for (unit middle)"]
    assert found_in(unknown) == ["sum 0 left without an event (unit middle)"]


def test_an_error_in_both_worlds_is_no_pass() -> None:
    def fail(records: ImageSet, workspace: Path) -> None:
        raise VeilsetError(f"There is nothing in {workspace}.")

    assert found_when(fail) == ["nothing was tried: VeilsetError: There is nothing in PLACE/run. (unit middle)"]


def test_files_of_one_name_in_two_folders() -> None:
    def write(records: ImageSet, workspace: Path) -> None:
        for folder, text in {"a": str(len(records)), "b": "equal"}.items():
            (workspace / folder).mkdir()
            (workspace / folder / "same.txt").write_text(text)

    assert found_when(write) == ["kept a/same.txt differs (unit middle)"]


def test_text_on_the_screen_and_public_random_numbers() -> None:
    def say(records: ImageSet, workspace: Path) -> None:
        warnings.warn(f"{len(records)} records", stacklevel=1)

    def draw(records: ImageSet, workspace: Path) -> None:
        torch.rand(len(records))

    assert found_when(say) == ["printed text differs (unit middle)"]
    assert found_when(draw) == ["torch's random numbers differs (unit middle)"]
