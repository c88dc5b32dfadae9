import json
import math
import re

import numpy as np
import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.release.verify import Verification, verify_release


def test_a_sound_release_verifies_with_the_keys_of_the_interface(make):
    release = make.release()
    outcome = verify_release(release.save(make.folder / "out"))
    outcome.raise_if_failed()
    assert outcome.to_json() == {
        "ok": True,
        "guarantee": "dp",
        "epsilon": release.certificate.epsilon,
        "delta": 1e-5,
        "unit": "record",
        "relation": "add/remove-one",
        "recomputed": dict(release.certificate.accountant),
        "problems": [],
        "signed_by": None,
        "notes": [],
    }
    json.dumps(outcome.to_json(), allow_nan=False)


def test_sampled_and_sharded_events_are_priced_again(make):
    plan = (
        Event(label="sgd", noise_multiplier=1.0, sampling_rate=0.01, count=200),
        *(Event(label=f"shard {i}", noise_multiplier=4.0 + i % 2, partition="critics", shard=i) for i in range(20)),
    )
    outcome = verify_release(make.saved(plan=plan, leases=[("sgd", 150), ("sgd", 50)]))
    assert outcome.ok, outcome.problems
    assert outcome.epsilon == epsilon_of(plan, 1e-5)
    assert outcome.recomputed["rdp"] > outcome.recomputed["pld"]


def test_a_release_without_a_guarantee_verifies_and_states_no_epsilon(make):
    path = make.saved(noise="seeded", model=True)
    outcome = verify_release(path)
    assert outcome.ok, outcome.problems
    assert outcome.guarantee == "none"
    assert outcome.epsilon is outcome.delta is None
    assert outcome.recomputed == {"pld": None, "rdp": None}
    assert "epsilon" not in (path / "card.md").read_text()


def test_of_a_failed_release_no_number_is_stated(make):
    path = make.saved()
    (path / "card.md").write_text("better")
    outcome = verify_release(path)
    assert not outcome.ok
    assert outcome.guarantee is outcome.epsilon is outcome.delta is None
    with pytest.raises(VerificationError, match=r"card\.md was altered") as raised:
        outcome.raise_if_failed()
    assert raised.value.exit_code == 5


def test_a_missing_directory_is_an_input_error_and_a_missing_certificate_a_problem(make):
    with pytest.raises(InputError, match="does not exist"):
        verify_release(make.folder / "gone")
    path = make.saved()
    (path / "certificate.json").unlink()
    assert verify_release(path).problems == ["certificate.json is missing."]


def _set(*keys_and_value):
    *keys, last, value = keys_and_value

    def edit(content):
        for key in keys:
            content = content[key]
        content[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(epsilon=c["epsilon"] * 0.999), "states epsilon"),
        (lambda c: c.update(epsilon=c["epsilon"] * 1.01), "states epsilon"),
        (_set("epsilon", None), "needs epsilon"),
        (_set("epsilon", "1"), "epsilon to be a number"),
        (_set("accountant", "rdp", 0.1), "states rdp"),
        (_set("accountant", {"pld": 1.0}), "accountant"),
        (_set("delta", 1e-4), "delta is not the one"),
        (_set("unit", "group"), "unit"),
        (_set("relation", "replace-one"), "relation"),
        (_set("samples", 13), "13 images"),
        (_set("samples", True), "samples"),
        (_set("samples", 10**400), "samples"),
        (_set("samples", 10**10), "samples"),
        (_set("seed", 4), "seed is not the one"),
        (_set("seed", None), "seed is not the one"),
        (_set("seed", 3.0), "seed"),
        (_set("budget", "epsilon", 0.5), "budget is not the one"),
        (_set("budget", None), "budget is not the one"),
        (_set("settings", "features", 100.0), "settings is not the one"),
        (_set("method", "other"), "method is not the one"),
        (_set("settings", "features", 7), "settings is not the one"),
        (_set("declared_public", "units", 2000), "units is not the one"),
        (_set("declared_public", "units", 0), "declared_public"),
        (_set("declared_public", "shape", [6, 8, 1]), "shape is not the one"),
        (_set("declared_public", "class_names", ["a", "b", "c"]), "class_names is not the one"),
        (_set("declared_public", None), "declared_public"),
        (_set("reasons", ["None at all."]), "gives reasons"),
        (_set("guarantee", "none"), "without a guarantee states"),
        (_set("guarantee", "maybe"), "guarantee"),
        (_set("format_version", 1), "another version of veilset"),
        (_set("ledger", []), "ledger"),
        (_set("ledger", [1]), "ledger"),
        (_set("ledger", 0, "body", 3), "ledger"),
        (_set("ledger", 1, "body", "event", "noise_multiplier", 50.0), "line 1"),
        (_set("files", {}), "does not list data.npz"),
        (_set("files", "../secret", "0" * 64), "never holds"),
        (_set("files", "student.json", "0" * 64), "not both"),
        (lambda c: c.pop("seed"), "missing keys"),
        (_set("extra", 1), "unknown keys"),
    ],
)
def test_a_forged_certificate_is_found_even_with_a_fitting_checksum(make, forge, edit, message):
    path = make.saved()
    forge(path, edit)
    outcome = verify_release(path)
    assert not outcome.ok
    assert any(re.search(message, problem) for problem in outcome.problems), outcome.problems
    json.dumps(outcome.to_json(), allow_nan=False)


def _drop_event(lines):
    del lines[-1]


def _weaken_event(lines):
    lines[1]["body"]["event"]["noise_multiplier"] = 50.0


def _repeat_event(lines):
    lines.append(dict(lines[-1]))


def _seed_noise(lines):
    lines[0]["body"]["noise"] = "seeded"


def _lose_plan(lines):
    del lines[0]["body"]["plan"]


def _lose_facts(lines):
    lines[0]["body"]["facts"] = 5


def _spoil_plan(lines):
    lines[0]["body"]["plan"] = [7, {"label": {}}]


def _spoil_event(lines):
    lines[1]["body"] = {"event": []}


def _infinite_count(lines):
    for event in (lines[0]["body"]["plan"][0], lines[1]["body"]["event"]):
        event["count"] = 10**320


def _no_noise(lines):
    for event in (lines[0]["body"]["plan"][0], lines[1]["body"]["event"]):
        event["noise_multiplier"] = 1e-200


def _much_cost(lines):
    for event in (lines[0]["body"]["plan"][0], lines[1]["body"]["event"]):
        event.update(noise_multiplier=1e-3, sampling_rate=0.5)


def _many_worlds(lines):
    template = lines[1]
    for i in range(20):
        for shard in range(2):
            event = template["body"]["event"] | {"partition": f"p{i}", "shard": shard, "noise_multiplier": 5.0 + shard}
            lines.append({**template, "body": {"event": event}})
            lines[0]["body"]["plan"].append(event)


def _odd_kind(lines):
    lines[1]["kind"] = "refund"


def _odd_lease(lines):
    lines.append({**lines[1], "kind": "lease", "body": {"label": "class means", "steps": -5}})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_drop_event, "no more and no fewer"),
        (_weaken_event, "no more and no fewer"),
        (_repeat_event, "no more and no fewer"),
        (_seed_noise, "os-entropy"),
        (_lose_plan, "plan"),
        (_lose_facts, "declared public"),
        (_spoil_plan, "Not an event"),
        (_spoil_event, "no valid event"),
        (_infinite_count, ""),
        (_no_noise, ""),
        (_much_cost, "protects nothing"),
        (_many_worlds, "too costly"),
        (_odd_kind, "unknown kind"),
        (_odd_lease, "how many steps"),
    ],
)
def test_a_forged_ledger_is_found_even_with_a_fitting_chain(make, forge, rechain, edit, message):
    path = make.saved()

    def both(content):
        edit(content["ledger"])
        rechain(content["ledger"])

    forge(path, both)
    outcome = verify_release(path)
    assert not outcome.ok
    assert any(message in problem for problem in outcome.problems), outcome.problems


def test_no_epsilon_is_computed_for_a_release_that_only_claims_a_guarantee(make, forge, rechain):
    path = make.saved()

    def seed(content):
        _seed_noise(content["ledger"])
        rechain(content["ledger"])

    forge(path, seed)
    outcome = verify_release(path)
    assert not outcome.ok
    assert outcome.recomputed == {"pld": None, "rdp": None}


def test_a_weakened_plan_and_ledger_together_do_not_fit_the_stated_epsilon(make, forge, rechain):
    path = make.saved()

    def weaken(content):
        lines = content["ledger"]
        lines[0]["body"]["plan"][0]["noise_multiplier"] = lines[1]["body"]["event"]["noise_multiplier"] = 2.0
        rechain(lines)

    forge(path, weaken)
    problems = verify_release(path).problems
    assert [problem.split(",")[0][:27] for problem in problems] == [
        "The certificate states epsi",
        "The certificate states pld ",
        "The certificate states rdp ",
    ]


def test_a_large_delta_is_found(make, forge, rechain):
    path = make.saved()

    def widen(content):
        content["delta"] = content["ledger"][0]["body"]["delta"] = 0.001
        rechain(content["ledger"])

    forge(path, widen)
    assert any("1/1000" in problem for problem in verify_release(path).problems)


def test_a_release_without_a_guarantee_may_not_name_a_budget(make, forge, rechain):
    for edit in (
        _set("warnings", ["but epsilon = 1 all the same"]),
        _set("settings", "epsilon", 1.0),
        _set("budget", {"epsilon": 1.0, "delta": 1e-5}),
        _set("accountant", "pld", 1.0),
        _set("reasons", []),
    ):
        path = make.saved(noise="seeded")
        forge(path, edit)
        assert not verify_release(path).ok
    path = make.saved(noise="seeded")
    with (path / "card.md").open("a") as card:
        card.write("This is private with epsilon 1.\n")
    forge(path, lambda content: None)
    assert any("card" in problem for problem in verify_release(path).problems)


def test_arrays_that_do_not_fit_are_found_even_with_fitting_hashes(make, forge):
    path = make.saved()
    good = dict(np.load(path / "data.npz"))
    for name, bad in {
        "labels": good["labels"] + 5,
        "images": good["images"][:5],
        "soft_labels": good["soft_labels"] * 3,
    }.items():
        np.savez(path / "data.npz", **(good | {name: bad}))
        forge(path, lambda content: None)
        assert not verify_release(path).ok
    np.savez(path / "data.npz", **good)
    forge(path, lambda content: None)
    assert verify_release(path).ok
    np.savez_compressed(path / "data.npz", **good)
    forge(path, lambda content: None)
    assert any("compressed" in problem for problem in verify_release(path).problems)


def test_broken_weights_are_found_even_with_fitting_hashes(make, forge):
    path = make.saved(model=True)
    (path / "generator.safetensors").write_bytes(b"\xff" * 100)
    forge(path, lambda content: None)
    assert any("generator.safetensors" in problem for problem in verify_release(path).problems)
    path = make.saved(model=True)
    (path / "generator.json").write_text("[]")
    forge(path, lambda content: None)
    assert any("generator.json" in problem for problem in verify_release(path).problems)


def test_a_ledger_that_carries_a_clock_is_refused(make, forge, rechain):
    """How long a step took depends on private rows."""
    path = make.saved()

    def add_clock(content):
        for line in content["ledger"]:
            line["time"] = "2026-01-31T12:00:00+00:00"
        rechain(content["ledger"])

    forge(path, add_clock)
    assert any("ledger" in problem for problem in verify_release(path).problems)


def test_what_is_not_finite_is_no_number_for_scripts():
    outcome = Verification(pld=math.inf, rdp=math.nan)
    assert outcome.recomputed == {"pld": None, "rdp": None}
