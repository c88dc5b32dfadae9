"""The static rules find what they forbid, and sealed tensors raise wherever they would leave."""

import copy
import io
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from veilset.audit.code import check_source
from veilset.audit.game import MemoryLedger
from veilset.audit.mechanisms import dots, pixels
from veilset.audit.methods import public_images, strange_records
from veilset.audit.taint import LeakError, TaintedSession, private_call, seal
from veilset.core.errors import VeilsetError
from veilset.dpsgd import PrivateTraining, train_private
from veilset.methods import METHODS
from veilset.methods.base import AuditForm, Context
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.noise import NoiseSource

SUM = Event(label="sum", noise_multiplier=1.0)
STEPS = Event(label="dp-sgd", noise_multiplier=1.0, sampling_rate=0.9, count=3)


def test_the_package_breaks_no_rule() -> None:
    assert [str(breach) for breach in check_source()] == []


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("methods/x.py", "from veilset.privacy.vault import contents_of", "contents_of"),
        ("pipeline/x.py", "import veilset.privacy.vault as v\nv.contents_of(1)", "contents_of"),
        ("methods/x.py", "from veilset.privacy.vault import Vault", "names Vault"),
        ("methods/x.py", "from veilset.privacy.noise import NoiseSource", "NoiseSource"),
        ("methods/x.py", "def f(session): return session._rows", "_rows"),
        ("training/x.py", "def f(steps): return steps._cache", "_cache"),
        ("dpsgd/x.py", "def f(session): return session._opened()", "_opened"),
        ("teachers/x.py", "def f(session): return session._spending", "_spending"),
        ("dpsgd/x.py", "from veilset.privacy.noise import NoiseSource", "NoiseSource"),
        ("teachers/x.py", "eval('1')", "eval"),
        ("evaluate/x.py", "def f(session): session.records_without_guarantee()", "without a guarantee"),
        ("training/x.py", "import pickle", "pickle"),
        ("methods/x.py", "print(1)", "print"),
        ("methods/x.py", "eval('1')", "eval"),
    ],
)
def test_each_rule_can_fail(tmp_path: Path, file: str, text: str, rule: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    found = check_source(tmp_path)
    assert found
    assert rule in str(found[0])


def session(*events: Event) -> TaintedSession:
    plan = Plan(budget=Budget(1e3, 1e-5), events=events)
    return TaintedSession(dots().vault(present=True), plan, MemoryLedger(), NoiseSource(1))


def sum_of(per_image: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return session(SUM).gaussian_sum(per_image, SUM, clip_norm=1.0)


def test_an_honest_sum_passes_and_its_result_is_free() -> None:
    released = sum_of(pixels)
    assert type(released) is Tensor
    assert len(repr(released)) > 0
    assert len(pickle.dumps(released)) > 0


def leak_by_text(images: Tensor, labels: Tensor) -> Tensor:
    raise ValueError(f"bad image {images}")


def leak_by_log(images: Tensor, labels: Tensor) -> Tensor:
    stream = logging.StreamHandler(io.StringIO())
    stream.format(logging.LogRecord("x", logging.INFO, "x", 1, "image %s", (images,), None))
    return pixels(images, labels)


def leak_by_pickle(images: Tensor, labels: Tensor) -> Tensor:
    pickle.dumps(images)
    return pixels(images, labels)


def leak_by_save(images: Tensor, labels: Tensor) -> Tensor:
    torch.save(images * 2, io.BytesIO())
    return pixels(images, labels)


def leak_by_list(images: Tensor, labels: Tensor) -> Tensor:
    images.float().mean(dim=0).tolist()
    return pixels(images, labels)


def leak_by_array(images: Tensor, labels: Tensor) -> Tensor:
    (images + 0).numpy()
    return pixels(images, labels)


def leak_by_copy(images: Tensor, labels: Tensor) -> Tensor:
    copy.deepcopy(images)
    return pixels(images, labels)


@pytest.mark.parametrize(
    "leak", [leak_by_text, leak_by_log, leak_by_pickle, leak_by_save, leak_by_list, leak_by_array, leak_by_copy]
)
def test_private_tensors_do_not_leave_during_a_call(leak: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(LeakError):
        sum_of(leak)


def test_a_tensor_that_a_method_keeps_is_found() -> None:
    kept = []

    def keeping(images: Tensor, labels: Tensor) -> Tensor:
        kept.append(images.float().mean(dim=0))
        return pixels(images, labels)

    with pytest.raises(LeakError, match="were kept"):
        sum_of(keeping)
    with pytest.raises(LeakError, match="after the private call"):
        kept[0] + 1


def test_what_is_computed_from_a_private_tensor_is_private() -> None:
    with private_call():
        value = torch.cat([seal(torch.ones(2)), torch.zeros(1)]).softmax(dim=0).sum()
    with pytest.raises(LeakError):
        float(value)


@pytest.mark.parametrize("kind", ["linear", "network"])
def test_training_keeps_nothing(kind: str) -> None:
    network = nn.Linear(16, 2) if kind == "linear" else nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    prepare = (lambda images: images.flatten(1).float() / 255) if kind == "linear" else None
    trained = train_private(session(STEPS), network, STEPS, PrivateTraining(), prepare=prepare)
    assert all(type(value.data) is Tensor for value in trained.parameters())


def fit_sealed(name: str, entry: AuditForm) -> None:
    method = METHODS.get(name).configure("fast", entry.settings)
    worlds = strange_records(entry.records, entry.declared)
    plan = method.plan(worlds.facts, Budget(4.0, 1e-5))
    tainted = TaintedSession(worlds.vault(present=True), plan, MemoryLedger(), NoiseSource(1))
    try:
        method.fit(plan, tainted, public_images() if method.needs_public else None, Context())
    except LeakError:
        raise
    except VeilsetError:
        pass  # toys may be too few for what follows the private calls
    tainted.finish()


def test_a_method_keeps_nothing() -> None:
    fit_sealed("merf", METHODS.get("merf").forms[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"merf"}))
def test_no_method_keeps_anything(name: str) -> None:
    for entry in METHODS.get(name).forms:
        fit_sealed(name, entry)
