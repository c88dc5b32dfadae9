"""Patients at several sites: keyed names, an office that shares them out, and what every command then leaves out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federations import CLASSES, images
from typer.testing import CliRunner, Result

from veilset.cli.main import app
from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.pipeline.federated.admission import KEY, REQUEST, Request, make_request, read_request
from veilset.pipeline.federated.agreement import Rule
from veilset.pipeline.federated.local import run_locally
from veilset.pipeline.federated.pseudonyms import Pseudonyms, ShareOut, kept_at, pseudonyms_of, share_out, share_out_at
from veilset.pipeline.federated.server import draw_agreement
from veilset.pipeline.federated.site import Site
from veilset.pipeline.job import Job
from veilset.privacy.vault import Vault

SECRET = bytes(range(32))
HELD = {"east": range(30), "west": range(20, 50), "north": range(25, 60)}  # patients, some of them at two or three


def patients_of(site: str, without: int | None = None) -> ImageSet:
    """Two images of each patient."""
    names = [number for number in HELD[site] if number != without for _ in range(2)]
    plain = images(len(names), sorted(HELD).index(site))
    return ImageSet(plain.images, plain.labels, CLASSES, np.array([f"patient {number}" for number in names]))


def told(without: int | None = None) -> dict[str, ShareOut]:
    lists = [pseudonyms_of(patients_of(site, without), site, SECRET) for site in HELD]
    return {one.site: replace(one, key=SECRET.hex()) for one in share_out(lists)}


def kept(site: str, word: ShareOut, without: int | None = None) -> set[str]:
    groups = kept_at(patients_of(site, without), word).groups
    assert groups is not None
    return set(groups.tolist())


def test_each_patient_stays_at_one_site() -> None:
    shares = told()
    staying = [kept(site, word) for site, word in shares.items()]
    assert sum(map(len, staying)) == len(set().union(*staying)) == 60
    alone = {f"patient {number}" for number in range(20)}
    assert alone <= kept("east", shares["east"])
    assert len({word.number for word in shares.values()}) == 1
    assert all(25 > len(HELD[site]) - len(word.keep) > 0 for site, word in shares.items())


def test_a_patient_who_came_after_the_lists_were_made_takes_part_nowhere() -> None:
    shares, plain = told(), images(2, 7)
    new = ImageSet(plain.images, plain.labels, CLASSES, np.array(["patient 99"] * 2))
    for site, word in shares.items():
        old = patients_of(site)
        assert old.groups is not None
        assert new.groups is not None
        grown = ImageSet(
            np.concatenate([old.images, new.images]),
            np.concatenate([old.labels, new.labels]),
            CLASSES,
            np.concatenate([np.asarray(old.groups), np.asarray(new.groups)]),
        )
        groups = kept_at(grown, word).groups
        assert groups is not None
        assert set(groups.tolist()) == kept(site, word)
        with pytest.raises(InputError, match="came after"):
            kept_at(new, word)


def test_a_patient_who_leaves_moves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "5" * (2 * size))
    for gone in (3, 22, 27, 55):
        before, after = told(), told(without=gone)
        for site in HELD:
            assert kept(site, before[site]) - {f"patient {gone}"} == kept(site, after[site], gone)


def test_names_are_keyed_and_lists_say_nothing_of_order_or_counts() -> None:
    east = patients_of("east")
    mine, other = pseudonyms_of(east, "east", SECRET), pseudonyms_of(east, "east", bytes(32))
    assert len(mine.names) == 30
    assert list(mine.names) == sorted(mine.names)
    assert not set(mine.names) & set(other.names)
    padded = ImageSet(east.images, east.labels, CLASSES, np.char.add(" ", np.asarray(east.groups)))
    assert pseudonyms_of(padded, "east", SECRET) == mine
    with pytest.raises(InputError, match="--groups-file"):
        pseudonyms_of(images(10, 0), "east", SECRET)


def test_the_certificate_believes_one_share_out_of_all_sites_and_no_less(tmp_path: Path) -> None:
    shares = told()
    numbers = {"one": dict.fromkeys(HELD, shares["east"].number), "two": {"east": "", "west": "a" * 32, "north": ""}}
    for case, number_of in numbers.items():
        folder = tmp_path / case
        vaults = {site: Vault(kept_at(patients_of(site), word), unit="group") for site, word in shares.items()}
        requests = [
            make_request(
                folder / site, vault.facts, name=site, epsilon=5.0, delta=None, share_out=number_of[site]
            )
            for site, vault in vaults.items()
        ]  # fmt: skip
        rule = Rule(min_sites=3, step_seconds=0.0, sum_seconds=0.0, patience=0.0)
        job = Job(method="merf", epsilon=1.0, preset="smoke", samples=20)
        agreement = draw_agreement(requests, job, rule, None)
        sites = {
            site: Site(site, agreement, vault, key=(folder / site / KEY).read_bytes(), workspace=folder / site / "run")
            for site, vault in vaults.items()
        }
        release, _ = run_locally(sites, folder)
        said = release.certificate.warnings[0]
        assert ("the largest epsilon holds for every unit" in said) == (case == "one")
        assert (shares["east"].number in said) == (case == "one")
        assert ("is protected by the sum of their epsilons" in said) == (case == "two")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["federate", *map(str, arguments)])


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites' packs, and the office's files in `office/`."""
    monkeypatch.chdir(tmp_path)
    for site in HELD:
        own = patients_of(site)
        np.savez(f"{site}.npz", images=own.images, labels=own.labels, patient=np.asarray(own.groups))
        made = run(
            "pseudonyms", f"{site}.npz", "--groups", "patient", "--name", site, "--key", "shared.key",
            "--out", f"{site}.list", *(["--new-key"] if site == "east" else []),
        )  # fmt: skip
        assert made.exit_code == 0, made.output
    done = run("share-out", *(f"{site}.list" for site in HELD), "--out", "office")
    assert done.exit_code == 0, done.output
    return tmp_path


def test_the_commands_leave_out_whom_the_office_named(shared: Path) -> None:
    declared = 0
    for site in HELD:
        joined = run(
            "join-request", f"{site}.npz", "--groups", "patient", "--unit", "group", "--name", site, "--epsilon", 5,
            "--home", site, "--share-out", f"office/{site}.json", "--pseudonym-key", "shared.key",
        )  # fmt: skip
        assert joined.exit_code == 0, joined.output
        told_here = share_out_at(Path(site))
        assert told_here is not None
        request = read_request(Path(site) / REQUEST)
        assert request.share_out == told_here.number
        assert request.units == len(told_here.keep) < len(HELD[site])
        declared += request.units
    assert declared == 60
    for secret in ("shared.key", "east.list", "office/east.json", "east/share_out.json"):
        assert oct(Path(secret).stat().st_mode & 0o777) == "0o600"
    requests = [f"{site}/{REQUEST}" for site in HELD]
    assert "patient" not in Path(requests[0]).read_text()
    admitted = run("admit", *requests, "--method", "merf", "--preset", "smoke", "--address", "127.0.0.1:9", "-o", "fed")
    assert admitted.exit_code == 0, admitted.output
    check = [
        "check", "east.npz", "--groups", "patient", "--unit", "group", "--home", "east",
        "--invitation", "fed/invitations/east.json", "--offline",
    ]  # fmt: skip
    checked = run(*check)
    assert checked.exit_code == 0, checked.output
    Path("east/share_out.json").unlink()  # the site would answer with everybody, and has declared that it does not
    refused = run(*check)
    assert refused.exit_code == 2
    assert "do not belong together" in refused.output


def test_what_is_wrong_is_said(shared: Path) -> None:
    join = ["join-request", "east.npz", "--groups", "patient", "--name", "east", "--epsilon", 5, "--home", "east"]
    cases = [
        ([*join, "--share-out", "office/east.json"], "--pseudonym-key"),
        ([*join, "--share-out", "office/west.json", "--pseudonym-key", "shared.key"], "for the site west"),
        ([*join, "--share-out", "east.list", "--pseudonym-key", "shared.key"], "no share-out"),
        ([*join, "--share-out", "office/east.json", "--pseudonym-key", "east.npz"], "no key"),
        (["share-out", "east.list", "--out", "again"], "two or more sites"),
        (["share-out", "east.list", "office/west.json", "--out", "again"], "no pseudonyms"),
        (["pseudonyms", "east.npz", "--groups", "patient", "--name", "e", "--key", "none", "--out", "x"], "--new-key"),
        (["pseudonyms", "east.npz", "--name", "e", "--key", "shared.key", "--out", "x"], "group"),
    ]
    for arguments, words in cases:
        said = run(*arguments)
        assert said.exit_code == 2, said.output
        assert words in " ".join(said.output.split()), said.output
        assert not Path("east", REQUEST).exists()
        assert not Path("again").exists()
    assert not Path("x").exists()


def test_a_request_with_a_wrong_number_is_refused(tmp_path: Path) -> None:
    facts = Vault(patients_of("east"), unit="group").facts
    make_request(tmp_path, facts, name="east", epsilon=5.0, delta=None, share_out="b" * 32)
    assert Request.from_bytes((tmp_path / REQUEST).read_bytes()).share_out == "b" * 32
    changed = json.loads((tmp_path / REQUEST).read_bytes())
    changed["request"]["share_out"] = "c" * 32
    with pytest.raises(InputError, match="not signed"):
        Request.from_bytes(json.dumps(changed).encode())
    with pytest.raises(InputError, match="number of a share-out"):
        make_request(tmp_path / "x", facts, name="east", epsilon=5.0, delta=None, share_out="../../etc")
    with pytest.raises(InputError, match="Only groups"):
        make_request(
            tmp_path / "y", replace(facts, unit="record"), name="east", epsilon=5.0, delta=None, share_out="b" * 32
        )
    for content in (b"{}", b"[]", b'{"format": 1, "pseudonyms": {"site": "a b", "names": []}}', b"\xff"):
        (tmp_path / "list").write_bytes(content)
        with pytest.raises(InputError):
            Pseudonyms.load(tmp_path / "list")
