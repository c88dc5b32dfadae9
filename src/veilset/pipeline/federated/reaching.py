"""Whether a site can reach its server, said in words for whoever runs the site; nothing is paid and nothing is read.

Each step has a few seconds, so that a wrong address, authority or key, or a port on which something else speaks, is
known within ten.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from veilset.core.errors import InputError, VeilsetError
from veilset.pipeline.federated.admission import host_and_port, version_differences, versions
from veilset.pipeline.federated.paths import CHECK, HEALTH
from veilset.release.statements import load_site_key, message_of, signature_of

_SECONDS = 3.0
_CLOCK_AHEAD, _CLOCK_BEHIND = 4.0, 290.0  # what Flower's signatures bear, and a little less


class NotReachedError(VeilsetError):
    """Nobody answers there, or no longer: it may be worth to try again."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What a server said of itself."""

    health: Mapping[str, Any]
    clock: float  # seconds by which this machine is ahead
    warnings: tuple[str, ...]


def reach(server: str, authority: bytes, key: bytes, *, name: str, agreement: str) -> Reached:
    """Go through the door as far as the site's own key; the first thing that is wrong raises."""
    host, port = host_and_port(server, "--server")
    _connect(host, port, server)
    with _client(server, authority) as client:
        began = datetime.now(UTC)
        health = _asked(server, lambda: client.get(HEALTH))
        clock = _ahead(health, began, server)
        if health["agreement"] != agreement:
            raise InputError(
                f"{server} serves another agreement ({str(health['agreement'])[:16]}) than this invitation "
                f"({agreement[:16]}). Ask the server's keeper for the newest invitation."
            )
        if clock > _CLOCK_AHEAD or -clock > _CLOCK_BEHIND:
            raise InputError(
                f"This machine's clock is {abs(clock):.0f} seconds {'ahead of' if clock > 0 else 'behind'} the "
                "server's. Set both by a time server: signatures carry the time."
            )
        words = {"check": name, "time": datetime.now(UTC).isoformat()}
        said = {"check": words, "signature": signature_of(message_of(words), load_site_key(key))}
        known = _asked(server, lambda: client.post(CHECK, json=said), refused=True)
        if known.get("site") != name:
            raise InputError(
                f"The server at {server} does not take the site's key as that of {name}. Start with the home in which "
                "the request was made, or ask the server's keeper which key was admitted."
            )
    other = version_differences(health["versions"])
    warnings = [
        f"The server has {package} {theirs}, and this site {versions()[package]}." for package, theirs in other.items()
    ]
    return Reached(health=health, clock=clock, warnings=tuple(warnings))


def reach_within(seconds: float, server: str, authority: bytes, key: bytes, *, name: str, agreement: str) -> Reached:
    """As `reach`, trying again for so long where nobody answers yet, or a server dies under the question."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return reach(server, authority, key, name=name, agreement=agreement)
        except NotReachedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def cause_of(error: Exception, server: str) -> str:
    """Why there is no connection, in words for whoever runs the site."""
    text = str(error).partition("\n")[0] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"the certificate at {server} is not of the invitation's authority, has run out, or is for another address "
            f"({text}). Ask the server's keeper for the newest invitation, or pass --authority and --server"
        )
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        if code in (401, 403):
            return f"the server at {server} does not take the site's key, or the clocks differ"
        return f"{server} answered with {code}, which is not how the server of a federation does"
    if any(word in text for word in ("SSL", "WRONG_VERSION", "RECORD_LAYER", "EOF occurred")):
        return f"{server} speaks something else than TLS ({text}). Check the port"
    if isinstance(error, httpx.TimeoutException):
        return f"{server} takes connections and says nothing. Check the port, and any proxy in between"
    return f"nobody answers at {server} as the server of a federation does: {text}"


def _connect(host: str, port: int, server: str) -> None:
    """Reach the port itself, unless a proxy is set up for that."""
    proxies = httpx.Client()._mounts
    if any(proxies.values()):
        return
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except socket.gaierror as error:
        raise InputError(f"There is no host {host}: {error.strerror}. Check the address, or pass --server.") from error
    except OSError as error:
        raise NotReachedError(
            f"Nobody answers at {server}: {error.strerror or error}. Check that the server runs, the address "
            "(--server) and firewalls; --wait SECONDS waits for a server that starts later."
        ) from error


@contextmanager
def _client(server: str, authority: bytes) -> Iterator[httpx.Client]:
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        trust.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"Cannot read the authority's certificate: {error}. Expected PEM.") from error
    with httpx.Client(base_url=f"https://{server}", verify=trust, timeout=_SECONDS) as client:
        yield client


def _asked(server: str, ask: Callable[[], httpx.Response], *, refused: bool = False) -> dict[str, Any]:
    try:
        answer = ask()
        if not (refused and answer.status_code == httpx.codes.FORBIDDEN):
            answer.raise_for_status()
        found = answer.json()
    except httpx.HTTPError as error:
        kind = NotReachedError if _may_pass(error) else InputError
        raise kind(f"No federation there: {cause_of(error, server)}.") from error
    except ValueError:
        found = None
    if not isinstance(found, dict) or not ({"agreement", "versions", "time"} <= set(found) or "site" in found):
        raise InputError(f"{server} speaks something else than the server of a federation. Check address and port.")
    return found


def _may_pass(error: httpx.HTTPError) -> bool:
    """Whether the same question may be answered later: so it is of a server that was killed before it answered."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (502, 503, 504)  # a proxy's, in front of a server that is not there
    return not any(word in str(error) for word in ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION", "RECORD_LAYER"))


def _ahead(health: Mapping[str, Any], began: datetime, server: str) -> float:
    """By how many seconds this clock is ahead, at least: the server looked at its own while the question was open."""
    try:
        theirs = datetime.fromisoformat(health["time"])
        least, most = ((moment - theirs).total_seconds() for moment in (began, datetime.now(UTC)))
        return max(least, min(most, 0.0))
    except (TypeError, ValueError) as error:
        raise InputError(f"{server} does not say what time it is there.") from error
