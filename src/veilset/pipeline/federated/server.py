"""The server of a federation: its folder, its port, its rounds and the release. It holds nothing private.

The folder is what `admit` wrote: the agreement, the invitations, and the server's own keys unless an organisation has
its own. What the coordinator needs to go on after a kill lies there as well (`state.py`), so starting the same command
again is all there is to resuming.
"""

import fcntl
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.core.files import require_absent, write_whole
from veilset.methods.base import Context
from veilset.pipeline.federated.admission import Invitation, Request, host_and_port, versions
from veilset.pipeline.federated.agreement import Agreement, Rule, agree
from veilset.pipeline.federated.coordinator import Coordinator
from veilset.pipeline.federated.joint import release_of
from veilset.pipeline.federated.keys import AUTHORITY, CERTIFICATE, KEY, hosts_of, write_authority, write_certificate
from veilset.pipeline.federated.site import hash_of_public
from veilset.pipeline.federated.state import CoordinatorState
from veilset.pipeline.job import Job
from veilset.privacy.vault import Public

AGREEMENT, KEYS, INVITATIONS, STATE = "agreement.json", "keys", "invitations", "state"


def draw_agreement(requests: Sequence[Request], job: Job, rule: Rule, public: Public | None) -> Agreement:
    """One agreement for all these sites; sites that do not fit together raise."""
    if not requests:
        raise InputError("Expected the request of at least one site.")
    first = requests[0]
    for other in requests[1:]:
        for name in ("unit", "shape", "class_names"):
            if getattr(other, name) != getattr(first, name):
                raise InputError(
                    f"{first.name} declares {name} {getattr(first, name)} and {other.name} {getattr(other, name)}. "
                    "All sites need the same."
                )
    draft = Agreement(
        method=job.method,
        preset=job.preset,
        settings=dict(job.settings),
        seed=job.seed,
        samples=job.samples,
        shape=first.shape,
        class_names=first.class_names,
        unit=first.unit,
        public=None if public is None else hash_of_public(public),
        epsilon=1.0,
        delta=0.1,
        members=tuple(request.member for request in requests),
        rule=rule,
        versions=versions(),
    )
    return agree(draft)


def write_federation(
    folder: Path, agreement: Agreement, *, address: str, hosts: Sequence[str] = (), authority: bytes | None = None
) -> None:
    """Write the server's folder: agreement, invitations, and keys unless `authority` vouches for the server already."""
    require_absent(folder)
    host, _ = host_and_port(address, "--address")
    folder.mkdir(parents=True)
    if authority is None:
        write_authority(folder / KEYS)
        write_certificate(folder / KEYS, [host, *hosts])
        authority = (folder / KEYS / AUTHORITY).read_bytes()
    write_whole(folder / AGREEMENT, agreement.to_bytes())
    write_invitations(folder, address, authority)


def write_invitations(folder: Path, address: str, authority: bytes) -> list[Path]:
    """An invitation for each site of the folder's agreement."""
    agreement = read_agreement(folder)
    try:
        vouched = authority.decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError("The authority's certificate is not in PEM.") from error
    places = []
    for member in agreement.members:
        invitation = Invitation(site=member.name, address=address, authority=vouched, agreement=agreement)
        places.append(folder / INVITATIONS / f"{member.name}.json")
        write_whole(places[-1], invitation.to_bytes())
    return places


def renew(folder: Path, hosts: Sequence[str] = ()) -> str:
    """A new certificate of the server from the federation's own authority; sites need nothing new."""
    read_agreement(folder)
    known = hosts_of(folder / KEYS) if (folder / KEYS / CERTIFICATE).exists() else []
    return write_certificate(folder / KEYS, [*known, *hosts]).isoformat()


def revoke(folder: Path, site: str, why: str) -> None:
    """Take a site's place away: its key opens nothing more, and a server that runs takes no more answers from it."""
    agreement = read_agreement(folder)
    CoordinatorState(folder / STATE, agreement).ban(agreement.member(site).name, why)


def read_agreement(folder: Path) -> Agreement:
    """The agreement of a server's folder."""
    path = folder / AGREEMENT
    if not path.is_file():
        raise InputError(f"There is no {path}. Admit sites first: veilset federate admit REQUESTS --out {folder}")
    return Agreement.from_bytes(path.read_bytes())


def serve(
    folder: Path,
    out: Path,
    *,
    bind: str,
    report: Callable[[Mapping[str, Any]], None],
    public: Public | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Serve the folder's federation until its release is at `out`; bytes sent and received, and who took part."""
    from veilset.pipeline.federated.link import Link, app_of, listening
    from veilset.pipeline.federated.wire import FlowerWire

    agreement = read_agreement(folder)
    found = None if public is None else hash_of_public(public)
    if found != agreement.public:
        about = "no public images" if agreement.public is None else "other public images"
        raise InputError(f"The agreement is about {about}. Pass the same --public as when the sites were admitted.")
    require_absent(out)
    with _alone(folder / STATE):
        state = CoordinatorState(folder / STATE, agreement)
        link = Link(agreement)
        wire = FlowerWire(link, agreement)
        coordinator = Coordinator(agreement, state, wire, report=report)

        def health() -> dict[str, Any]:
            return {"round": coordinator.rounds_closed, "rounds": coordinator.rounds, "connected": len(wire.met)}

        keys = folder / KEYS
        with listening(app_of(link, agreement, health), bind, certificate or keys / CERTIFICATE, key or keys / KEY):
            report({"listening": bind, "agreement": agreement.sha256})
            workspace = folder / STATE / "fit"
            workspace.mkdir(exist_ok=True)
            fitted = coordinator.fit(public, Context(seed=agreement.seed, device=device, workspace=workspace))
        release = release_of(agreement, state, fitted, coordinator.rounds, folder / STATE)
        release.save(out)
        sent, received = wire.traffic()
        sites = [site["name"] for site in release.certificate.header["sites"]]
        return {"bytes_sent": sent, "bytes_received": received, "sites": sites, "epsilon": release.certificate.epsilon}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One server for one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"Another server is at work in {folder}. Stop that one first.") from error
        yield
