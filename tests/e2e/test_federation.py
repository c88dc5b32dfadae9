"""A federation of real processes over TLS on loopback: what is said when something is wrong, and a simulation.

Hosts of their own, kills and cuts are in test_federation_hosts.py.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from veilset.cli.federate.common import signals_held
from veilset.pipeline.federated.server import free_port
from veilset.privacy.account import Account
from veilset.privacy.budget import default_delta
from veilset.release.verify import verify_release

pytest.importorskip("flwr", reason="needs the extra `federated`")

VEILSET = [sys.executable, "-m", "veilset", "federate"]


class Town:
    """A folder with two sites, a server's folder and the processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.children: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*VEILSET, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def must(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start(self, *arguments: str, log: str) -> "subprocess.Popen[bytes]":
        with (self.folder / log).open("ab") as file:
            child = subprocess.Popen(
                [*VEILSET, *arguments], cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self.children.append(child)
        return child

    def log(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def wait_for(self, words: str, log: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.log(log):
            assert time.monotonic() < deadline, self.log(log)
            time.sleep(0.1)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    for place, name in enumerate(("north", "south")):
        pixels = np.random.default_rng(place).integers(0, 256, (60, 16, 16), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=np.arange(60) % 2)
    yield made
    for child in made.children:
        if child.poll() is None:
            child.terminate()
            child.wait(100)


def test_a_stolen_request_a_taken_port_and_sigterm(town: Town, tmp_path: Path) -> None:
    address = f"127.0.0.1:{town.port}"
    for name in ("north", "south"):
        town.must("join-request", f"{name}.npz", "--name", name, "--epsilon", "5", "--home", name)
    requests = ["north/request.json", "south/request.json", "--method", "merf", "--preset", "smoke"]
    town.must("admit", *requests, "--address", address, "--out", "fed")
    server = town.start("server", "fed", "--out", "release", "--bind", address, log="server.log")
    town.wait_for("listening", "server.log")
    (tmp_path / "thief").mkdir()
    (tmp_path / "thief" / "request.json").write_bytes((tmp_path / "south" / "request.json").read_bytes())
    (tmp_path / "thief" / "site.key").write_bytes((tmp_path / "north" / "site.key").read_bytes())
    invited = ["--invitation", "fed/invitations/south.json", "--wait", "60"]
    stolen = town.run("site", "south.npz", "--home", "thief", *invited)
    assert (stolen.returncode, "does not take the site's key" in stolen.stderr) == (2, True), stolen.stderr
    assert not (tmp_path / "thief" / "run").exists(), "something was paid"
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "agreement.json").write_bytes((tmp_path / "fed" / "agreement.json").read_bytes())
    keys = ["--certificate", "fed/keys/server.pem", "--certificate-key", "fed/keys/server.key"]
    taken = town.run("server", "copy", "--out", "again", "--bind", address, *keys)
    assert (taken.returncode, "it is in use" in taken.stderr) == (2, True), taken.stderr
    server.terminate()
    assert server.wait(100) != 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", town.port)) != 0, "something still listens"


@pytest.mark.slow
def test_a_simulation_is_charged_to_its_dataset(town: Town, tmp_path: Path) -> None:
    account = tmp_path / "account.sqlite"
    command = ["simulate", "north.npz", "--epsilon", "5", "--sites", "2", "--samples", "20", "--preset", "smoke"]
    command += ["--account", str(account)]
    town.must(*command, "--out", "release")
    paid = [reservation for reservation in Account(account).reservations if reservation.events]
    assert {event.shard for reservation in paid for event in reservation.events} == {0, 1}
    assert Account(account).spent(default_delta(60)) == pytest.approx(5.0, abs=0.01)
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(5.0, abs=0.01)

    second = town.start(*command, "--out", "second", log="second.log")
    deadline = time.monotonic() + 200
    children: list[int] = []
    while len(children) < 3 and time.monotonic() < deadline:  # a log is there before its process is
        time.sleep(0.1)
        children = [int(text) for text in Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split()]
    assert len(children) == 3
    second.terminate()
    assert second.wait(100) != 0
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that puts a test run in the background may start it with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_waits_until_what_is_started_is_known() -> None:
    started = []

    def start() -> None:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            started.append("a process")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["a process"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
