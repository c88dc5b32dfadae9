"""The commands of docs/how_to/federated.md, word by word, each site on a host of its own: a network namespace.

Four sites of unequal size and epsilon. One is killed and starts again, one is cut off for a while, one is late, and the
server is killed once. What travels is captured and searched for private pixels, and so is the server's memory.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.release.statements import unknown_signers
from veilset.release.verify import verify_release

pytest.importorskip("flwr", reason="needs the extra `federated`")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "federated.md"
SITES = {"north": (90, 8.0), "south": (60, 4.0), "east": (50, 4.0), "west": (40, 2.0)}
ROUNDS = 12
SERVER = "10.77.0.1"
# Not on the page: a small run whose every step takes a second.
SMALL = f"--preset smoke --set steps={ROUNDS} --samples 20 --step-seconds 6 --patience 200"
SNIFFER = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(wire.recv(65535))
"""


def documented(command: str) -> str:
    """The first command of the page that begins so; a backslash goes on with the next line, as in a shell."""
    lines = re.sub(r"\\\n\s*", "", PAGE.read_text(encoding="utf-8"))
    found = re.search(rf"^(veilset {command} .*)$", lines, re.MULTILINE)
    assert found, f"The page shows no veilset {command}"
    return found[1]


def can_make_hosts() -> str:
    """Why not, where this machine lets nobody make namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and iproute2"
    name = f"vs-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"cannot make a network namespace: {made.stderr.strip()}"


class Network:
    """Hosts on one switch, each with an address and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, f"vs{os.getpid() % 100_000}"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.hosts = ["server", *SITES]
        for name in ["switch", *self.hosts]:
            _ip("netns", "add", self.space(name))
        switch = self.space("switch")
        _in(switch, "ip", "link", "add", "br0", "type", "bridge")
        _in(switch, "ip", "link", "set", "br0", "up")
        for number, host in enumerate(self.hosts, start=1):
            space = self.space(host)
            _ip("link", "add", "up0", "netns", space, "type", "veth", "peer", "name", host, "netns", switch)
            _in(switch, "ip", "link", "set", host, "master", "br0", "up")
            _in(space, "ip", "addr", "add", f"10.77.0.{number}/24", "dev", "up0")
            for device in ("lo", "up0"):
                _in(space, "ip", "link", "set", device, "up")
            names = Path("/etc/netns") / space
            names.mkdir(parents=True, exist_ok=True)
            (names / "hosts").write_text(f"127.0.0.1 localhost\n{SERVER} server.example\n")
            (folder / host).mkdir()

    def space(self, host: str) -> str:
        return f"{self.tag}-{host}"

    def popen(self, host: str, command: str, log: str) -> "subprocess.Popen[bytes]":
        words = command.replace("veilset", f"{sys.executable} -m veilset", 1).split()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "VEILSET_STATE": str(self.folder / host / "state")}
        with (self.folder / log).open("ab") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.space(host), *words],
                cwd=self.folder / host, env=environment, stdout=file, stderr=file,
            )  # fmt: skip

    def start(self, host: str, command: str) -> None:
        self.children[host] = self.popen(host, command, f"{host}.log")

    def must(self, host: str, command: str) -> None:
        assert self.popen(host, command, f"{host}.log").wait(200) == 0, self.log(host)

    def sniff(self) -> Path:
        place = self.folder / "wire.bin"
        command = ["ip", "netns", "exec", self.space("switch"), sys.executable, "-c", SNIFFER, str(place)]
        self.children["sniffer"] = subprocess.Popen(command)
        return place

    def kill(self, host: str) -> None:
        self.children[host].send_signal(signal.SIGKILL)  # `ip netns exec` is the command itself by now
        self.children[host].wait()

    def cut(self, host: str, *, off: bool) -> None:
        _in(self.space("switch"), "ip", "link", "set", host, "down" if off else "up")

    def log(self, host: str) -> str:
        return (self.folder / f"{host}.log").read_text(errors="replace")

    def wait(self, until: Callable[[], bool], what: str, seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            logs = {name: self.log(name)[-600:] for name in self.hosts if (self.folder / f"{name}.log").exists()}
            assert time.monotonic() < deadline, f"Waited too long for {what}: {logs}"
            time.sleep(0.1)

    def close(self) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.terminate()
        for child in self.children.values():
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for name in ["switch", *self.hosts]:
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False)
            shutil.rmtree(Path("/etc/netns") / self.space(name), ignore_errors=True)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    why_not = can_make_hosts()
    if why_not:
        pytest.skip(why_not)
    made = Network(tmp_path)
    try:
        for place, (name, (count, _)) in enumerate(SITES.items()):
            pixels = images_of(place, count)
            for number, picture in enumerate(pixels):
                kind = tmp_path / name / "xrays" / ("no", "yes")[number % 2]
                kind.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(kind / f"{number}.png")
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_hosts_through_kills_and_cuts(network: Network, tmp_path: Path) -> None:
    captured = network.sniff()

    # 1 to 3. The files that travel between administrators, and a dry run.
    server = tmp_path / "server"
    for name, (_, epsilon) in SITES.items():
        network.must(
            name, at(documented("federate join-request"), name).replace("--epsilon 10", f"--epsilon {epsilon}")
        )
        (server / name).mkdir()
        shutil.copy(tmp_path / name / name / "request.json", server / name)
    admit = documented("federate admit")
    network.must("server", f"{admit.replace('--method merf', '--method sanitized_gan')} {SMALL}")
    for name in SITES:
        shutil.copy(server / "federation" / "invitations" / f"{name}.json", tmp_path / name)
    network.must("north", at(documented("federate check"), "north"))

    # 4 and 5. The server and the sites; one is late.
    serve, site = documented("federate server"), documented("federate site") + " --wait 100 --answer-every 1"
    network.start("server", serve)
    for name in ("north", "south", "east"):
        network.start(name, at(site, name))
    network.wait(lambda: rounds(network) >= 2, "the second round")
    network.kill("south")
    network.cut("east", off=True)
    network.start("west", at(site, "west"))
    private = images_of(0, SITES["north"][0])
    assert holds(os.getpid(), private), "the search does not find pixels where they are"
    assert not holds(network.children["server"].pid, private), "private pixels are in the server's memory"
    network.wait(lambda: "west" in network.log("server"), "the late site")
    done = rounds(network)
    network.kill("server")
    network.start("server", serve)
    network.cut("east", off=False)
    network.start("south", at(site, "south"))
    network.wait(lambda: (server / "release").is_dir(), "the release", 300)
    for name in ["server", *SITES]:
        assert network.children[name].wait(100) == 0, network.log(name)
    assert rounds(network) == ROUNDS
    assert f"round {done} of {ROUNDS}" not in network.log("server").partition("listening")[2].partition("listening")[2]

    # 6. What anybody can check.
    found = verify_release(server / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(8.0, abs=0.05)
    assert found.certificate is not None
    keys = [json.loads((server / name / "request.json").read_text())["request"]["key"] for name in SITES]
    assert unknown_signers(found.certificate.header, keys) == []
    network.must("server", documented("verify"))

    # Ledgers say what was answered, and no more was paid.
    for name, (_, epsilon) in SITES.items():
        home = tmp_path / name / name
        lines = read_ledger(home / "run" / "ledger.jsonl")
        delta = json.loads((home / "request.json").read_text())["request"]["delta"]
        assert epsilon_of(check_chain(lines), delta) == pytest.approx(epsilon, rel=0.01)
        answered = json.loads((home / "run" / "answered.json").read_bytes())
        leased = sum(line["body"]["steps"] for line in lines if line["kind"] == "lease")
        lost = 1 if name == "south" else 0  # what a killed site was computing
        assert len(answered) <= leased <= len(answered) + lost
        assert leased <= ROUNDS
        (account,) = (tmp_path / name / "state").rglob("*.sqlite")
        assert len([paid for paid in Account(account).reservations if paid.events]) == 1

    # Nothing of an image was on the wire, and the capture is one.
    wire = captured.read_bytes()
    assert b"server.example" in wire  # the name that a client asks for, in the clear
    for place, (_, (count, _)) in enumerate(SITES.items()):
        for picture in images_of(place, count):
            assert picture[:2].tobytes() not in wire


def at(command: str, name: str) -> str:
    """A command that the page shows for the site north, for another one."""
    return command.replace("north", name)


def images_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 16), dtype=np.uint8)


def rounds(network: Network) -> int:
    """The last round that the server's log tells of."""
    found = re.findall(rf"round (\d+) of {ROUNDS}", network.log("server"))
    return int(found[-1]) if found else 0


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


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _in(space: str, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", space, *words], check=True)
