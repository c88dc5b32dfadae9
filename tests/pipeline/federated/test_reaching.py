"""The server's port in this process: what a site is told when something is wrong, keys, renewal and revocation."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from federations import images

from veilset.core.errors import InputError, VeilsetError
from veilset.pipeline.federated.admission import (
    KEY,
    REQUEST,
    Invitation,
    Request,
    make_request,
    read_invitation,
    read_request,
)
from veilset.pipeline.federated.agreement import Agreement, Rule, agree
from veilset.pipeline.federated.reaching import NotReachedError, _ahead, reach_within
from veilset.pipeline.federated.server import (
    draw_agreement,
    free_port,
    read_agreement,
    renew,
    revoke,
    write_federation,
    write_invitations,
)
from veilset.pipeline.federated.state import CoordinatorState
from veilset.pipeline.job import Job
from veilset.privacy.vault import Vault

pytest.importorskip("flwr", reason="needs the extra `federated`")


class Town:
    """Two homes, a federation's folder, and its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{free_port()}"
        facts = Vault(images(60, 0)).facts
        for name in ("north", "south"):
            make_request(folder / name, facts, name=name, epsilon=5.0, delta=None)
        self.agreement = self.admit("fed")

    def admit(self, name: str, seed: int = 0) -> Agreement:
        requests = [read_request(self.folder / site / REQUEST) for site in ("north", "south")]
        job = Job(method="merf", epsilon=1.0, preset="smoke", seed=seed)
        agreement = draw_agreement(requests, job, Rule(min_sites=2), None)
        write_federation(self.folder / name, agreement, address=self.address)
        return agreement

    def reach(self, **change: Any) -> Any:
        given = {
            "server": self.address,
            "authority": (self.folder / "fed" / "keys" / "authority.pem").read_bytes(),
            "key": (self.folder / "south" / KEY).read_bytes(),
            "name": "south",
            "agreement": self.agreement.sha256,
        } | change
        # The town's own server is there, and may be slow where others are at work.
        wait = 0.0 if "server" in change else 30.0
        return reach_within(wait, given.pop("server"), given.pop("authority"), given.pop("key"), **given)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    from veilset.pipeline.federated.link import Link, app_of, listening

    made = Town(tmp_path_factory.mktemp("town"))
    keys = made.folder / "fed" / "keys"
    app = app_of(Link(made.agreement), made.agreement, lambda: {"round": 0, "rounds": 2, "connected": 0})
    with listening(app, made.address, keys / "server.pem", keys / "server.key"):
        yield made


def test_a_site_that_is_right_gets_in(town: Town) -> None:
    found = town.reach()
    assert found.health["rounds"] == 2
    assert abs(found.clock) < 2
    assert set(found.health) == {"agreement", "versions", "time", "round", "rounds", "connected"}


def test_a_slow_answer_is_not_taken_for_a_wrong_clock() -> None:
    began = datetime.now(UTC) - timedelta(seconds=9)
    for seconds, ahead in ((0, 0.0), (9, 0.0), (-20, 20.0), (309, -300.0)):
        health = {"time": (began + timedelta(seconds=seconds)).isoformat()}
        assert _ahead(health, began, "server") == pytest.approx(ahead, abs=5.0 if seconds > 9 else 1e-6)


def test_what_is_wrong_is_said_within_ten_seconds(town: Town) -> None:
    town.admit("other", seed=1)
    deaf, rude = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_answer_plainly, args=(rude,), daemon=True).start()
    port = town.address.rpartition(":")[2]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"key": (town.folder / "north" / KEY).read_bytes()}, "does not take the site's key"),
        ({"authority": (town.folder / "other" / "keys" / "authority.pem").read_bytes()}, "authority"),
        ({"authority": b"nothing"}, "Expected PEM"),
        ({"agreement": "0" * 64}, "another agreement"),
        ({"server": f"127.0.0.1:{free_port()}"}, "Nobody answers"),
        ({"server": f"127.0.0.1:{deaf.getsockname()[1]}"}, "says nothing"),
        ({"server": f"127.0.0.1:{rude.getsockname()[1]}"}, "something else"),
        ({"server": f"localhost:{port}"}, "for another address"),
        ({"server": "no.such.host.invalid:1"}, "no host"),
        ({"server": "nowhere"}, "HOST:PORT"),
    ]
    for change, words in cases:
        began = time.monotonic()
        with pytest.raises(VeilsetError, match=words):
            town.reach(**change)
        assert time.monotonic() - began < 10
    with pytest.raises(NotReachedError):
        town.reach(server=f"127.0.0.1:{free_port()}")
    deaf.close()
    rude.close()


@pytest.mark.parametrize("when", ["before the handshake", "after the question"])
def test_a_server_that_dies_under_the_question_is_asked_again(town: Town, when: str) -> None:
    keys = town.folder / "fed" / "keys"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    dying = socket.create_server(("127.0.0.1", 0))
    questions: list[bytes] = []

    def die() -> None:
        with suppress(OSError):
            while True:
                with dying.accept()[0] as taken:
                    if when == "after the question":
                        with suppress(ssl.SSLError), context.wrap_socket(taken, server_side=True) as talk:
                            questions.append(talk.recv(100))

    threading.Thread(target=die, daemon=True).start()
    with pytest.raises(NotReachedError):
        town.reach(server=f"127.0.0.1:{dying.getsockname()[1]}")
    dying.close()
    assert when == "before the handshake" or any(questions)


def test_strangers_get_nothing(town: Town) -> None:
    trust = ssl.create_default_context(cafile=str(town.folder / "fed" / "keys" / "authority.pem"))
    with httpx.Client(base_url=f"https://{town.address}", verify=trust) as client:
        protobuf = {"content-type": "application/x-protobuf"}
        for path in ("/v1/fleet/pull-messages", "/v1/fleet/activate-node", "/v1/fleet/register-node"):
            assert client.post(path, content=b"", headers=protobuf).status_code >= 400
        for path in ("/docs", "/openapi.json", "/v1/control/start-run", "/v1/runtime/get-nodes"):
            assert client.get(path).status_code == 404
            assert client.post(path, content=b"", headers=protobuf).status_code >= 400
        old = {"check": {"check": "south", "time": "2020-01-01T00:00:00+00:00"}, "signature": ""}
        assert client.post("/veilset/check", json=old).status_code == 403
        assert client.post("/veilset/check", content=iter([b"x"])).status_code == 413  # of unknown size


def test_a_port_in_use_is_said_as_such(town: Town) -> None:
    from veilset.pipeline.federated.link import listening

    keys = town.folder / "fed" / "keys"
    with (
        pytest.raises(InputError, match="it is in use"),
        listening(None, town.address, keys / "server.pem", keys / "server.key"),  # type: ignore[arg-type]
    ):
        pass


def test_a_site_compares_the_agreement_with_its_own_request(town: Town) -> None:
    request = read_request(town.folder / "south" / REQUEST)
    invited = read_invitation(town.folder / "fed" / "invitations" / "south.json")
    invited.check(request)
    with pytest.raises(InputError, match="for the site south"):
        invited.check(read_request(town.folder / "north" / REQUEST))
    for name, value in (("epsilon", 50.0), ("delta", 1e-2), ("units", 50)):
        members = tuple(replace(m, **{name: value}) if m.name == "south" else m for m in town.agreement.members)
        with pytest.raises(InputError, match=f"says {name}"):
            replace(invited, agreement=agree(replace(town.agreement, members=members))).check(request)
    quiet = tuple(replace(member, noise=member.noise / 2) for member in town.agreement.members)
    with pytest.raises(VeilsetError, match="would cost"):
        replace(invited, agreement=replace(town.agreement, members=quiet)).check(request)
    with pytest.raises(InputError, match="was made with veilset"):
        replace(invited, agreement=replace(town.agreement, versions={"veilset": "0.0"})).check(request)


def test_requests_and_invitations_are_hostile_input(town: Town) -> None:
    content = (town.folder / "south" / REQUEST).read_bytes()
    changed = json.loads(content)
    changed["request"]["units"] = 10**9
    for wrong in (json.dumps(changed).encode(), b"", b"[]", b'{"format": 1}', content[:-30]):
        with pytest.raises(InputError):
            Request.from_bytes(wrong)
    sent = (town.folder / "fed" / "invitations" / "south.json").read_bytes()
    assert Invitation.from_bytes(sent).site == "south"
    for wrong in (b"{}", sent[:-5], sent.replace(b"127.0.0.1:", b"127.0.0.1;")):
        with pytest.raises(InputError):
            Invitation.from_bytes(wrong)
    assert oct((town.folder / "south" / KEY).stat().st_mode & 0o777) == "0o600"
    with pytest.raises(InputError, match="exists already"):
        make_request(town.folder / "south", Vault(images(60, 0)).facts, name="south", epsilon=5.0, delta=None)


def test_renewal_and_revocation_leave_the_agreement_alone(town: Town) -> None:
    folder = town.folder / "kept"
    agreement = town.admit("kept")
    before = (folder / "keys" / "server.pem").read_bytes()
    assert renew(folder, ["localhost"]) > "2026"
    assert (folder / "keys" / "server.pem").read_bytes() != before
    authority = (folder / "keys" / "authority.pem").read_bytes()
    write_invitations(folder, "elsewhere.example:443", authority)
    assert read_invitation(folder / "invitations" / "north.json").address == "elsewhere.example:443"
    assert read_agreement(folder).sha256 == agreement.sha256
    revoke(folder, "north", "its disk was stolen")
    assert CoordinatorState(folder / "state", agreement).banned == {"north": "its disk was stolen"}
    with pytest.raises(InputError, match="knows no site"):
        revoke(folder, "nobody", "?")


def _answer_plainly(place: socket.socket) -> None:
    while True:
        try:
            caller, _ = place.accept()
        except OSError:
            return
        with caller:
            caller.sendall(b"220 mail.example ESMTP\r\n")
            time.sleep(0.2)
