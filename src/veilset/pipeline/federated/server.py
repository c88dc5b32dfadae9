"""A SuperLink of our own: started, given its sites and its run, and stopped with everything that it started."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.pipeline.federated.keys import AUTHORITY, CERTIFICATE, KEY

_START_SECONDS = 90.0
_PROJECT = """\
[project]
name = "veilset-federation"
version = "1.0.0"
description = "Names the server's code, which is installed; sites run their own."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "veilset"

[tool.flwr.app.components]
serverapp = "veilset_federation:app"
clientapp = "veilset_federation:none"

[tool.flwr.app.config]
job = ""
"""
# Flower looks for assignments.
_MODULE = """\
from veilset.pipeline.federated import rounds

app = rounds.server_app
none = rounds.no_client
"""


def run_server(
    job: Mapping[str, Any],
    *,
    workspace: Path,
    keys: Path,
    sites: Sequence[Path],
    address: str,
    report: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Serve one federation until its release is written: the bytes of a step, and how many sites took part.

    Args:
        job: settings, shape, class_names, seed, min_sites, patience, round_seconds, samples and out.
        workspace: for logs and the run's own files; it must be new.
        keys: folder with the authority's and the server's files (`keys.py`).
        sites: public keys of the sites that may connect.
        address: host and port to listen on.
        report: hears of every step.
    """
    if not sites:
        raise InputError("Expected the public key of at least one site.")
    workspace.mkdir(parents=True, exist_ok=True)
    job_file = (workspace / "job.json").resolve()
    write_whole(job_file, json.dumps(dict(job)).encode())
    with superlink(workspace, keys, address) as (process, environment):
        for site in sites:
            _flwr(["supernode", "register", str(site.resolve()), "veilset"], environment)
        _flwr(["run", str(workspace / "app"), "veilset", "--run-config", f'job="{job_file}"'], environment)
        return _follow(workspace / "status.json", process, report)


@contextmanager
def superlink(workspace: Path, keys: Path, address: str) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, str]]]:
    """A running SuperLink and the environment in which `flwr` finds it; it is stopped when the block ends."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"Expected --address HOST:PORT, got {address!r}.")
    _refuse_taken(host, int(port))
    for name in (AUTHORITY, CERTIFICATE, KEY):
        if not (keys / name).is_file():
            raise InputError(f"{keys / name} is missing. Write keys with: veilset federate keys {keys}")
    app, home = workspace / "app", workspace / "flower"
    for folder in (app, home):
        folder.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (app / "veilset_federation.py").write_text(_MODULE, encoding="utf-8")
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "veilset"\n\n[superlink.veilset]\n'
        f'address = "{address}"\nroot-certificates = "{(keys / AUTHORITY).resolve()}"\n',
        encoding="utf-8",
    )
    environment = os.environ | {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = ["flower-superlink", "--host", host, "--port", port, "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--ssl-ca-certfile", str(keys / AUTHORITY)]
    command += ["--ssl-certfile", str(keys / CERTIFICATE), "--ssl-keyfile", str(keys / KEY)]
    with (workspace / "superlink.log").open("wb") as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        except FileNotFoundError:
            raise InputError("Flower is not installed. Install it with: pip install 'veilset[federated]'") from None
        try:
            _wait_for(host, int(port), process, workspace)
            yield process, environment
        finally:
            # It leads a session of its own, so that what it started ends with it.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _refuse_taken(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on; Flower would speak to whoever is there."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise InputError(f"Cannot listen on {host}:{port}: {reason}. Pass another --address.") from error


def _wait_for(host: str, port: int, process: "subprocess.Popen[bytes]", workspace: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.2)
    log = (workspace / "superlink.log").read_text(encoding="utf-8", errors="replace")
    raise VeilsetError(f"The SuperLink did not start on {host}:{port}. Its last words: {log[-300:]}")


def _flwr(arguments: list[str], environment: Mapping[str, str]) -> None:
    ended = subprocess.run(["flwr", *arguments], env=dict(environment), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise VeilsetError(f"`flwr {arguments[0]}` failed: {_words(ended.stdout + ended.stderr)[-500:]}")


def _words(text: str) -> str:
    """Without the frames that Flower draws around its messages."""
    return " ".join(re.sub(r"[^\x20-\x7e]", " ", text).split())


def _follow(
    status: Path, process: "subprocess.Popen[bytes]", report: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """Wait for the run to end, and tell of its steps."""
    seen: dict[str, Any] = {}
    while True:
        if process.poll() is not None:
            raise VeilsetError("The SuperLink has stopped. Its log is in the workspace.")
        found = json.loads(status.read_bytes()) if status.exists() else {}
        if "failed" in found:
            raise VeilsetError(str(found["failed"]))
        if "done" in found:
            done: dict[str, Any] = found["done"]
            return done
        if found and found != seen:
            seen = found
            report(found)
        time.sleep(0.2)
