"""A federation within one process: letters are calls. For tests, measurements, examples and the neighbour run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from veilset.methods.base import Context
from veilset.pipeline.federated.coordinator import Coordinator, Letter
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.joint import release_of
from veilset.pipeline.federated.site import Site
from veilset.pipeline.federated.state import CoordinatorState
from veilset.privacy.vault import Public
from veilset.release.format import Release


class LocalWire:
    """Desks by the name of their site; each letter is answered when it is sent."""

    def __init__(self, desks: Mapping[str, Desk]) -> None:
        self.desks = dict(desks)
        self._met: set[str] = set()
        self._letters: list[Letter] = []

    def present(self) -> set[str]:
        """All of them; each is greeted once."""
        for name in sorted(set(self.desks) - self._met):
            self._met.add(name)
            self._deliver(name, {"nonce": "local"}, {})
        return set(self.desks)

    def send(self, site: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Let the desk answer at once."""
        self._deliver(site, facts, tensors)

    def receive(self) -> list[Letter]:
        """All replies since the last time."""
        found, self._letters = self._letters, []
        return found

    def _deliver(self, site: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        said, given = self.desks[site].reply(facts, tensors)
        self._letters.append(Letter(site=site, facts=said, tensors=given))


def run_locally(
    sites: Mapping[str, Site],
    folder: Path,
    *,
    public: Public | None = None,
    wire: Callable[[Mapping[str, Desk]], LocalWire] = LocalWire,
    device: str = "cpu",
) -> tuple[Release, Coordinator]:
    """Run the federation of these sites, which share one agreement; the coordinator's state is kept in `folder`."""
    agreement = next(iter(sites.values())).agreement
    desks = {name: Desk(site, lambda _: None, clock=None) for name, site in sites.items()}
    state = CoordinatorState(folder / "state", agreement)
    coordinator = Coordinator(agreement, state, wire(desks), report=lambda _: None)
    workspace = folder / "state" / "fit"
    workspace.mkdir(exist_ok=True)
    try:
        fitted = coordinator.fit(public, Context(seed=agreement.seed, device=device, workspace=workspace))
        return release_of(agreement, state, fitted, coordinator.rounds, folder), coordinator
    finally:
        for site in sites.values():
            site.close()
