"""Small federations for tests: three sites of random images, in one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from veilset.data.images import ImageSet
from veilset.pipeline.federated.agreement import Agreement, Member, Rule, agree
from veilset.pipeline.federated.coordinator import Coordinator, Letter
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.local import LocalWire, run_locally
from veilset.pipeline.federated.site import Site, hash_of_public
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault, compared_by_sites
from veilset.release.statements import new_site_key

NAMES = ("north", "south", "east")
KEYS = {name: new_site_key() for name in NAMES}
UNITS, EPSILONS = {"north": 60, "south": 40, "east": 40}, {"north": 5.0, "south": 2.0, "east": 2.0}
CLASSES = ("no", "yes")


def images(count: int, seed: int, size: int = 16) -> ImageSet:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count) % 2, class_names=CLASSES)


PUBLIC = images(60, 9)


def agreed(method: str = "merf", min_sites: int = 2, **settings: str) -> Agreement:
    members = tuple(
        Member(name=name, key=KEYS[name][1], units=UNITS[name], epsilon=EPSILONS[name], delta=1e-3) for name in NAMES
    )
    draft = Agreement(
        method=method, preset="smoke", settings=settings, seed=0, samples=20, shape=(16, 16, 1), class_names=CLASSES,
        unit="record", public=hash_of_public(PUBLIC) if method == "latent" else None, epsilon=1.0, delta=0.1,
        members=members,
        rule=Rule(min_sites=min_sites, step_seconds=0.0, sum_seconds=0.0, patience=0.0),
    )  # fmt: skip
    return agree(draft)


def make_site(agreement: Agreement, name: str, home: Path, **options: Any) -> Site:
    vault = Vault(images(UNITS[name], NAMES.index(name)))
    options.setdefault("account", Account(home / f"{name}.sqlite"))
    if agreement.public is not None:
        options["public"] = vault.check_public(PUBLIC)
    return Site(name, agreement, vault, key=KEYS[name][0], workspace=home / name, **options)


class Faulty(LocalWire):
    """Lets a test change, drop or repeat what a site says."""

    def __init__(self, desks: Mapping[str, Desk], change: Any = None) -> None:
        super().__init__(desks)
        self._change = change

    def receive(self) -> list[Letter]:
        letters = super().receive()
        return letters if self._change is None else [said for letter in letters for said in self._change(letter)]


def play(agreement: Agreement, home: Path, change: Any = None, sites: dict[str, Site] | None = None) -> Coordinator:
    own = sites or {name: make_site(agreement, name, home) for name in NAMES}
    public = None if agreement.public is None else compared_by_sites(PUBLIC)
    release, coordinator = run_locally(own, home, public=public, wire=lambda desks: Faulty(desks, change))
    release.save(home / "release")
    return coordinator
