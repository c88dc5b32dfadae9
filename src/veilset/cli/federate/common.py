"""What several commands of `veilset federate` share."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.archives import View
from veilset.cli.console import RichProgress
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.core.records import Records
    from veilset.privacy.vault import Public, Vault

Private = Annotated[str, typer.Argument(metavar="PRIVATE", help="This site's images: npz[:split], folder, ...")]
Home = Annotated[Path, typer.Option("--home", help="This site's own folder: key, request, ledger, certificate.")]
InvitationFile = Annotated[Path, typer.Option("--invitation", help="What the server's keeper sent this site.")]
ServerAddress = Annotated[
    str | None, typer.Option("--server", help="HOST:PORT of the server.", show_default="as in the invitation")
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--authority", help="Certificates that vouch for the server, in PEM.", show_default="as in the invitation"
    ),
]
PublicImages = Annotated[
    str | None, typer.Option("--public", help="Public images that help, the same at the server and at all sites.")
]
AccountFile = Annotated[
    Path | None, typer.Option("--account", help="The dataset's account.", show_default="one kept for this data")
]
_ENDING = (signal.SIGTERM, signal.SIGINT)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder, made by `federate admit`.")]


def open_vault(private: str, view: View, unit: str | None) -> "tuple[Records, Vault]":
    """The private images as every command of a site opens them."""
    from veilset.cli.synthesize import unit_of
    from veilset.data.opening import open_images
    from veilset.privacy.vault import Vault

    records = open_images(private, progress=RichProgress(), **view)
    return records, Vault(records, unit=unit_of(unit, records))


def open_site(private: str, view: View, unit: str | None, home: Path, share_out: str) -> "tuple[Records, Vault, Vault]":
    """The private images that stay at this site after the share-out of this number, the vault of all, and theirs."""
    from veilset.pipeline.federated.pseudonyms import kept_at, share_out_at
    from veilset.privacy.vault import Vault

    told = share_out_at(home)
    if share_out != ("" if told is None else told.number):
        raise InputError(
            f"The request in {home} and the share-out kept there do not belong together. Make a new home: veilset "
            "federate join-request --share-out FILE"
        )
    records, whole = open_vault(private, view, unit)
    if told is None:
        return records, whole, whole
    kept = kept_at(records, told)
    return kept, whole, Vault(kept, unit=whole.facts.unit)


def declare(vault: "Vault", units: int | None) -> None:
    """Let the custodian's number of units be the public one."""
    if units is not None:
        vault.facts = replace(vault.facts, units=units)


def public_for(vault: "Vault", public: str | None) -> "Public | None":
    """Public images, brought to the shape of the private ones and compared with them."""
    from veilset.data.opening import open_images

    if public is None:
        return None
    height, width, depth = vault.facts.shape
    side, progress = height if height == width else None, RichProgress()
    images = open_images(public, size=side, channels=depth, needs_classes=False, progress=progress)
    return vault.check_public(images, progress)


def public_for_server(shape: tuple[int, int, int], public: str | None) -> "Public | None":
    """Public images for a server, which has nothing to compare them with; every site does."""
    from veilset.data.opening import open_images
    from veilset.privacy.vault import compared_by_sites

    if public is None:
        return None
    height, width, depth = shape
    side = height if height == width else None
    return compared_by_sites(open_images(public, size=side, channels=depth, needs_classes=False))


def read_secret(path: Path, advice: str) -> bytes:
    """A file that has to be there."""
    if not path.is_file():
        raise InputError(f"{path} is missing. {advice}")
    return path.read_bytes()


def require_flower() -> None:
    """Refuse before any work where Flower is not installed."""
    if find_spec("flwr") is None:
        raise InputError("Flower is not installed. Install it with: pip install 'veilset[federated]'")


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this process, so that it ends what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGTERM and Ctrl-C back while processes are started: one that nobody knows of yet would be left behind."""
    noted: list[int] = []
    kept = {number: signal.signal(number, lambda caught, _: noted.append(caught)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if noted:
        signal.raise_signal(noted[0])
