"""A federation of real processes over TLS: one site is killed, two join late, a stranger is turned away.

The server's process is searched for private pixels while it works, and a site's process as well, to see that the search
finds them where they are.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilset.pipeline.federated.server import free_port
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import default_delta
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.release.verify import verify_release

pytest.importorskip("flwr", reason="needs the extra `federated`")

SITES = ("north", "south", "east", "west")
STEPS = 12
SETTINGS = [
    "--preset=fast", f"--set=steps={STEPS}", "--set=critics=4", "--set=warmup=3", "--set=critic_updates=1",
    "--set=pictures=80", "--set=code_size=16", "--set=width=16", "--set=latent_size=16",
]  # fmt: skip
VEILSET = [sys.executable, "-m", "veilset", "federate"]


class Federation:
    """The processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.children = folder, dict[str, "subprocess.Popen[bytes]"]()
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}

    def start(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(arguments, stdout=log, stderr=log, env=self.environment)

    def site(self, name: str, key: str | None = None) -> None:
        keys = self.folder / "keys"
        data = [str(self.folder / f"{name}.npz"), "--name", name, "--epsilon", "8", "--server", self.address]
        secrets = ["--authority", str(keys / "authority.pem"), "--key", str(keys / f"{key or name}.key")]
        out = ["--out", str(self.folder / name), "--wait", "120"]
        self.start(name, [*VEILSET, "site", *data, *secrets, *out])

    def status(self) -> dict[str, Any]:
        place = self.folder / "release.veilset-server" / "status.json"
        return json.loads(place.read_bytes()) if place.exists() else {}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, until: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            logs = {name: self.log(name)[-400:] for name in self.children}
            assert self.children["server"].poll() is None or until(), f"The server has ended before {what}: {logs}"
            assert time.monotonic() < deadline, f"Waited too long for {what}: {self.status()} {logs}"
            time.sleep(0.05)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    for place, name in enumerate(SITES):
        pixels = np.random.default_rng(place).integers(0, 256, (60, 16, 16), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=np.arange(60) % 2)
    subprocess.run([*VEILSET, "keys", str(tmp_path / "keys"), "--sites", ",".join(SITES)], check=True)
    subprocess.run([*VEILSET, "keys", str(tmp_path / "others"), "--sites", "stranger"], check=True)
    (tmp_path / "keys" / "stranger.key").write_bytes((tmp_path / "others" / "stranger.key").read_bytes())
    yield made
    for child in made.children.values():
        if child.poll() is None:
            child.terminate()
            child.wait(20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_federation_of_processes(federation: Federation, tmp_path: Path) -> None:
    server = [*VEILSET, "server", "--out", str(tmp_path / "release"), "--keys", str(tmp_path / "keys"), "--json"]
    server += ["--address", federation.address, "--shape", "16x16x1", "--classes", "0,1", "--min-sites", "2"]
    federation.start("server", [*server, "--samples", "20", "--round-seconds", "30", *SETTINGS])
    for name in ("north", "south"):  # two begin, so both are there from the first step on
        federation.site(name)
    np.savez(tmp_path / "stranger.npz", **np.load(tmp_path / "north.npz"))
    federation.site("stranger")

    federation.wait(lambda: federation.status().get("step", 0) >= 2, "the second step")
    federation.children["south"].send_signal(signal.SIGKILL)
    for name in ("east", "west"):  # late, and without them the federation would be one site short
        federation.site(name)
    private = np.load(tmp_path / "north.npz")["images"]
    assert holds(federation.children["north"].pid, private), "the search does not find pixels where they are"
    assert not holds(federation.status()["pid"], private), "private pixels are in the server's memory"
    federation.wait(lambda: (tmp_path / "release").is_dir(), "the release")
    federation.wait(lambda: federation.children["server"].poll() is not None, "the server's end", 60)

    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(8.0, abs=0.05)
    result = json.loads(federation.log("server").splitlines()[-1])
    assert 0 < result["bytes_received"] < result["bytes_sent"]
    for name in ("north", "east"):
        federation.children[name].wait(60)
        assert (tmp_path / name / "certificate.json").is_file(), federation.log(name)
        assert (tmp_path / name / "generator.safetensors").is_file()
    for name in SITES:
        lines = read_ledger(tmp_path / name / "ledger.jsonl")
        assert epsilon_of(check_chain(lines), default_delta(60)) == pytest.approx(8.0, abs=0.05)
        answered = sum(line["body"]["steps"] for line in lines if line["kind"] == "lease")
        assert answered == STEPS if name == "north" else 1 <= answered < STEPS, name
    assert not (tmp_path / "stranger" / "ledger.jsonl").exists(), "a stranger was invited"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_site_that_cannot_connect_says_why_and_ends(federation: Federation, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    server = [*VEILSET, "server", "--keys", str(keys), "--shape", "16x16x1", "--classes", "0,1", *SETTINGS]
    server += ["--address", federation.address, "--out"]
    federation.start("server", [*server, str(tmp_path / "release")])
    federation.site("north")
    federation.wait(lambda: "is connected" in federation.log("north"), "the first site")
    taken = subprocess.run([*server, str(tmp_path / "again")], capture_output=True, text=True, check=False)
    assert taken.returncode == 2
    assert "it is in use" in taken.stderr
    right = {"--server": federation.address, "--authority": keys / "authority.pem", "--key": keys / "south.key"}
    for change, words in (
        ({"--key": keys / "stranger.key"}, "does not take the site's key"),
        ({"--authority": tmp_path / "others" / "authority.pem"}, "not of this authority"),
        ({"--server": f"127.0.0.1:{free_port()}"}, "nobody answers there"),
    ):
        given = ["--epsilon", "8", "--out", str(tmp_path / "south"), "--wait", "3"]
        given += [str(text) for pair in (right | change).items() for text in pair]
        command = [*VEILSET, "site", str(tmp_path / "south.npz"), "--name", "south", *given]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=federation.environment)
        assert ended.returncode == 1
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr
        assert time.monotonic() - began < 60
    assert not (tmp_path / "south" / "ledger.jsonl").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_simulation_is_charged_to_its_dataset(federation: Federation, tmp_path: Path) -> None:
    account = tmp_path / "account.sqlite"
    command = [*VEILSET, "simulate", str(tmp_path / "north.npz"), "--epsilon", "5", "--sites", "2", "--samples", "20"]
    command += ["--account", str(account), *SETTINGS]
    federation.start("server", [*command, "--out", str(tmp_path / "release")])
    assert federation.children["server"].wait(200) == 0, federation.log("server")
    paid = [reservation for reservation in Account(account).reservations if reservation.events]
    assert [event.shard for reservation in paid for event in reservation.events] == [0, 1]
    assert Account(account).spent(default_delta(60)) == pytest.approx(5.0, abs=0.01)
    assert not (tmp_path / "state" / "veilset" / "accounts").exists(), "a site opened an account of its own"
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(5.0, abs=0.01)

    federation.start("second", [*command, "--out", str(tmp_path / "second")])
    started = tmp_path / "second.veilset-simulation" / "site-2.log"
    federation_ended = time.monotonic() + 100
    while not started.exists() and time.monotonic() < federation_ended:
        time.sleep(0.1)
    children = children_of(federation.children["second"].pid)
    assert len(children) == 3
    federation.children["second"].terminate()
    assert federation.children["second"].wait(30) != 0
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def children_of(pid: int) -> list[int]:
    """The processes that a process started."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def holds(pid: int, images: np.ndarray) -> bool:
    """Whether the memory of a process holds the pixels of any of the images, as bytes or as floats."""
    wanted = [images[0, :8].tobytes(), images[7, :8].tobytes(), (images[3, :4].astype(np.float32) / 255).tobytes()]
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            if not rights.startswith("rw") or "[v" in line:
                continue
            start, end = (int(text, 16) for text in place.split("-"))
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except OSError:
                continue
            if any(pixels in content for pixels in wanted):
                return True
    return False
