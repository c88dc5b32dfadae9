"""A certificate is a stranger's file: whatever it holds, `verify` ends soon, in little memory and with a verdict."""

import copy
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilset.core.errors import InputError
from veilset.privacy.events import Event
from veilset.release import layout
from veilset.release.format import load_release
from veilset.release.verify import verify_release

SECONDS, MEGABYTES = 10, 500


def seconds_of(path):
    """Verify, and the processor's seconds that it took; clocks of a busy machine would say nothing."""
    before = time.process_time()
    outcome = verify_release(path)
    return outcome, time.process_time() - before


def forge_events(path, forge, rechain, events, **also):
    """Let plan and ledger agree on `events`, each hash fit, and epsilon be claimed to be small."""

    def edit(content):
        header, spend = content["ledger"][0], content["ledger"][1]
        header["body"]["plan"] = events
        content["ledger"] = [header, *({**spend, "body": {"event": event}} for event in events)]
        rechain(content["ledger"])
        content["epsilon"] = content["accountant"]["pld"] = content["accountant"]["rdp"] = 0.5
        content.update(also)

    forge(path, edit)


def event(**other):
    base = {"label": "x", "noise_multiplier": 1.0, "sampling_rate": 1.0, "count": 1, "partition": None, "shard": None}
    return base | other


BUSY = {
    "a billion steps at a tiny rate": [event(sampling_rate=1e-9, count=10**9)],
    "a million steps at a tiny rate": [event(sampling_rate=1e-9, count=10**6)],
    "a fine grid": [event(noise_multiplier=0.3, sampling_rate=1e-9, count=10**6)],
    "a billion steps at a high rate": [event(noise_multiplier=1e6, sampling_rate=0.5, count=10**9)],
    "hardly any noise": [event(noise_multiplier=1e-9, sampling_rate=0.5)],
    "much noise": [event(noise_multiplier=1e10, sampling_rate=1e-3, count=1000)],
    "thousands of kinds": [event(noise_multiplier=1 + i / 1e5, sampling_rate=0.01) for i in range(4000)],
    "dozens of fine kinds": [event(noise_multiplier=1 + i / 1e5, sampling_rate=1e-3, count=10) for i in range(40)],
    "many worlds": [
        event(noise_multiplier=5.0 + i % 2, partition=f"p{i // 2}", shard=i % 2) for i in range(60)
    ],
    "many sampled shards": [
        event(noise_multiplier=3 + i / 1e5, sampling_rate=0.1, partition="p", shard=i) for i in range(2000)
    ],
    "a sum beside a fine grid": [
        event(noise_multiplier=3.0), event(noise_multiplier=5.0, sampling_rate=1e-8, count=10**7)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BUSY)
def test_events_that_would_keep_the_reader_busy_are_given_up(make, forge, rechain, name):
    path = make.saved()
    forge_events(path, forge, rechain, BUSY[name])
    outcome, seconds = seconds_of(path)
    assert not outcome.ok
    assert seconds < SECONDS
    json.dumps(outcome.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 1.99}, {"count": "3"}, {"count": True}, {"count": 1.0}, {"count": 10**10}, {"noise_multiplier": "5"},
        {"noise_multiplier": 1e-43}, {"noise_multiplier": 10**400}, {"sampling_rate": 8e-315}, {"sampling_rate": True},
        {"label": 7}, {"label": "x" * 1000}, {"shard": 0}, {"extra": 1}, {"source": "0" * 32}, {"source": None},
    ],
)  # fmt: skip
def test_an_event_that_is_not_exactly_one_fails_the_release(make, forge, rechain, change):
    path = make.saved()
    forge_events(path, forge, rechain, [event(noise_multiplier=5.0) | change])
    outcome, _ = seconds_of(path)
    assert not outcome.ok
    assert any("event" in problem for problem in outcome.problems)


def test_a_world_that_cannot_be_priced_does_not_vanish_behind_another(make, forge, rechain, monkeypatch):
    from veilset.privacy import accounting

    plan = [event(noise_multiplier=5.0, partition="p", shard=0), event(noise_multiplier=6.0, partition="p", shard=1)]
    costs = iter([0.5, math.nan])
    monkeypatch.setattr(accounting, "gaussian_epsilon", lambda *_: next(costs))
    assert accounting.epsilon_of([Event.from_json(one) for one in plan], 1e-5) == math.inf


def _many_lists():
    return "[" + "[]," * 10_000_000 + "[]]"


def _many_keys():
    return "{" + ",".join(f'"{i}":1' for i in range(3_000_000)) + "}"


@pytest.mark.parametrize("text", [_many_lists, _many_keys])
def test_json_that_swells_in_memory_is_not_parsed(make, text):
    path = make.saved()
    (path / "certificate.json").write_text(text())
    outcome, seconds = seconds_of(path)
    assert any("too costly" in problem or "larger" in problem for problem in outcome.problems)
    assert seconds < SECONDS


def test_a_zip_with_a_long_list_of_entries_is_not_opened(make, forge):
    path = make.saved()
    with zipfile.ZipFile(path / "data.npz", "w") as archive:
        for number in range(2000):
            archive.writestr(f"{number}.npy", b"")
    forge(path, lambda content: content["declared_public"].update(shape=[400, 400, 1]))
    assert any("small zip" in problem for problem in verify_release(path).problems)
    # The same by the record that large zips have.
    path = make.saved()
    content = (path / "data.npz").read_bytes()
    end = content[-22:]
    large = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1 << 40, 0)
    place = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(content) - 22, 1)
    (path / "data.npz").write_bytes(content[:-22] + large + place + end)
    forge(path, lambda content: None)
    assert any("small zip" in problem for problem in verify_release(path).problems)


def test_weights_with_a_giant_header_are_not_opened(make, forge):
    path = make.saved(model=True)
    with (path / "generator.safetensors").open("wb") as file:
        file.write((90 << 20).to_bytes(8, "little"))
        file.truncate(90 << 20)
    forge(path, lambda content: None)
    assert any("too costly" in problem for problem in verify_release(path).problems)


def test_files_beyond_what_is_ever_read_are_not_hashed(make):
    path = make.saved(model=True)
    problems = layout.file_problems(path, load_release(path).certificate, most_bytes=10)
    assert any("too costly" in problem for problem in problems)
    assert layout.MOST_BYTES == 1 << 32


def test_a_directory_of_many_files_is_given_up(make):
    path = make.saved()
    for number in range(1001):
        (path / f"{number}.txt").touch()
    assert verify_release(path).problems == ["The directory holds more than 1000 entries, which a release never does."]


def test_memory_stays_small(make, forge, rechain):
    places = []
    for events in (BUSY["a fine grid"], BUSY["a billion steps at a tiny rate"], BUSY["a sum beside a fine grid"]):
        path = make.saved()
        forge_events(path, forge, rechain, events)
        places.append(str(path))
    path = make.saved()
    (path / "certificate.json").write_text("[" + "[]," * 499_000 + "[]]")
    places.append(str(path))
    code = (
        "import re, sys; from veilset.release.verify import verify_release\n"
        "print(any(verify_release(path).ok for path in sys.argv[1:]))\n"
        # The peak by `resource` would include that of the process that started this one.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, *places], capture_output=True, text=True, check=True)
    verdict, megabytes = done.stdout.split()
    assert verdict == "False"
    assert int(megabytes) < MEGABYTES


def test_an_unreadable_file_is_no_forgery(make, monkeypatch):
    path = make.saved(model=True)
    may_read = os.access
    for name in ("generator.safetensors", "certificate.json", "data.npz"):
        with monkeypatch.context() as patched:
            # The tests may run as root, who may read everything.
            patched.setattr(
                os, "access", lambda place, mode, name=name: Path(place).name != name and may_read(place, mode)
            )
            with pytest.raises(InputError, match="not readable for you"):
                verify_release(path)


def test_all_files_of_a_release_are_readable_for_everybody(make):
    path = make.saved(model=True)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.iterdir()} == dict.fromkeys(
        (
            "card.md",
            "certificate.json",
            "croissant.json",
            "data.npz",
            "generator.json",
            "generator.safetensors",
            "label.md",
            "train.parquet",
        ),
        "0o644",
    )


def test_what_file_managers_and_git_leave_behind_is_noted_and_not_fatal(make):
    path = make.saved()
    for name in (".DS_Store", "Thumbs.db", ".gitattributes", "README.md"):
        (path / name).write_text("x")
    outcome = verify_release(path)
    assert outcome.ok, outcome.problems
    assert [note.split()[0] for note in outcome.notes] == [".DS_Store", ".gitattributes", "README.md", "Thumbs.db"]
    assert len(load_release(path)) == 12
    (path / "README.md").unlink()
    (path / "README.md").symlink_to("/etc/hosts")
    assert not verify_release(path).ok


def test_the_inputs_of_a_run_must_fit_what_it_carries(make, forge, rechain):
    carried = event(noise_multiplier=5.0, source="0" * 32)
    others = {"name": "a", "run": "b", "certificate_sha256": "c" * 64, "is_of_others": True}

    def problems(inputs, kind="spend"):
        path = make.saved()

        def edit(content):
            lines = content["ledger"]
            lines[0]["body"]["inputs"] = inputs
            if kind == "carried":
                lines[0]["body"]["plan"].append(carried)
                lines.insert(1, {**lines[1], "kind": "carried", "body": {"event": carried}})
            rechain(lines)

        forge(path, edit)
        return " ".join(verify_release(path).problems)

    assert problems([]) == ""
    assert "does not say so" in problems([others])
    assert "which releases" in problems([{**others, "is_of_others": 1}])
    assert "which releases" in problems("a")
    assert "names no release" in problems([], "carried")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
    | st.sampled_from([10**400, 1e-320, 1e308, -1, 0, "", "1e999", [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def places_of(data, before=()):
    """Every place in a JSON value."""
    yield before
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places_of(data[key], (*before, key))


def protected(path):
    """What a person relies on."""
    content = json.loads((path / "certificate.json").read_text())
    names = ("guarantee", "epsilon", "delta", "unit", "relation", "files", "samples")
    facts = {name: value for name, value in content["declared_public"].items() if name != "statement"}
    events = [line["body"]["event"] for line in content["ledger"] if line["kind"] == "spend"]
    return json.dumps([facts, events, *(content[name] for name in names)], sort_keys=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_to_a_certificate_passes_for_the_truth(pristine, tmp_path_factory, forge, rechain, data):
    """A forger without the key makes every hash fit again. With the key nothing passes; without, no claim changes."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "release"
    path.mkdir()
    for name, content in pristine.items():
        (path / name if name != "key" else folder / "key.pub").write_bytes(content)
    before, truth = protected(path), json.loads((path / "certificate.json").read_text())
    place = data.draw(st.sampled_from([place for place in places_of(truth) if place and place[0] != "content_sha256"]))
    value = data.draw(JSON | st.just("remove"))

    def edit(content):
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        if value == "remove":
            del inner[place[-1]]
        else:
            inner[place[-1]] = copy.deepcopy(value)
        if isinstance(content.get("ledger"), list) and all(isinstance(line, dict) for line in content["ledger"]):
            rechain(content["ledger"])

    forge(path, edit)
    changed = json.dumps(json.loads((path / "certificate.json").read_text()), sort_keys=True) != json.dumps(
        truth, sort_keys=True
    )
    outcome, seconds = seconds_of(path)
    assert seconds < SECONDS
    assert not (outcome.ok and changed)
    assert not verify_release(path, folder / "key.pub").ok or not changed
    (path / "certificate.sig").unlink()
    outcome = verify_release(path)
    json.dumps(outcome.to_json(), allow_nan=False)
    assert not outcome.ok or protected(path) == before
    shutil.rmtree(folder)
