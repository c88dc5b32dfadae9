"""One vault in several processes (torchrun): units are shared out, noise is added once, the ledger is written once.

Every process opens the same data and works on its own share of the units. A unit's owner is a keyed hash of its own id
(privacy/unit_rows.py), and not its place: processors of different kinds compute rows that differ in the last bits, and
one unit more would hand all others to another processor. The processes compare their records first, so that a unit has
one owner. Each owner tosses the coins of its units, so that a Poisson sample over all processes is the one that the
event claims. Sums are added over the processes before rank 0 adds the noise; all get the noisy sum and nothing else.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import distributed as dist

from veilset.core.errors import InputError, VeilsetError
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger, Line
from veilset.privacy.noise import Claim, NoiseSource


def join_if_launched(device: str = "cpu") -> tuple[int, int]:
    """Join the group when torchrun started this process, otherwise do nothing; returns `rank_and_size`.

    On CUDA every process of a machine gets a device of its own; what is kept on the CPU (the ledger's numbers) still
    travels by gloo.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        on_cuda = device.startswith("cuda")
        if on_cuda:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
    return rank_and_size()


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) when it is alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def wait_for_all() -> None:
    """Go on when every process has come here."""
    if rank_and_size()[1] > 1:
        dist.barrier()


def release_to_all(total: torch.Tensor, claim: Claim, noise: NoiseSource) -> torch.Tensor:
    """An exact sum in grid steps, of this process's units, as the noisy sum over all of them that every process gets.

    The one door through which sums leave: what the processes hold is added, as integers and so exactly, and the noise
    is that of rank 0.
    """
    if rank_and_size()[1] > 1:
        dist.all_reduce(total)
    return from_first(noise.release(total, claim))


def require_alike(content: bytes) -> None:
    """Raise, in every process, where one of them holds other bytes than rank 0."""
    if rank_and_size()[1] == 1:
        return
    differs = torch.tensor(int(bytes_from_first(content) != content))
    dist.all_reduce(differs)
    if int(differs):
        raise InputError(
            "The processes of this run opened different records, or the same ones in another order, so that a unit "
            "could count in two of them. Start again once the data stays as it is. No data was read."
        )


def from_first(value: torch.Tensor) -> torch.Tensor:
    """What rank 0 holds; the others pass a tensor of the same shape."""
    if rank_and_size()[1] > 1:
        value = value.contiguous()
        dist.broadcast(value, src=0)
    return value


class RunLedger(Protocol):
    """What a session needs of a ledger."""

    def spend(self, event: Event) -> int:
        """Record that `event` is spent, durably."""

    def lease(self, event: Event, steps: int, line: int) -> int:
        """Record that steps of an event that `line` spent are about to be taken."""

    @property
    def header(self) -> Mapping[str, Any]:
        """What the run is."""

    @property
    def lines(self) -> list[Line]:
        """All lines."""


class SharedLedger:
    """The ledger of a run in several processes. Rank 0 writes; every other waits until the line is on disk."""

    def __init__(self, ledger: Ledger | None) -> None:
        if (ledger is None) == (rank_and_size()[0] == 0):
            raise VeilsetError("Expected the ledger on rank 0 and on no other.")
        self._ledger = ledger
        self._known: list[Line] = []
        self.synchronise()

    def synchronise(self) -> None:
        """Let every process know all lines up to now; all must call it."""
        content = json.dumps(self._ledger.lines).encode() if self._ledger else b""
        self._known = json.loads(bytes_from_first(content))

    def spend(self, event: Event) -> int:
        """Record that `event` is spent; no process goes on before that is durable."""
        return self._numbered(None if self._ledger is None else self._ledger.spend(event))

    def lease(self, event: Event, steps: int, line: int) -> int:
        """Record that steps are about to be taken; no process goes on before that is durable."""
        return self._numbered(None if self._ledger is None else self._ledger.lease(event, steps, line))

    @property
    def header(self) -> Mapping[str, Any]:
        """What the run is."""
        header: Mapping[str, Any] = self._known[0]["body"]
        return header

    @property
    def lines(self) -> list[Line]:
        """All lines up to the last `synchronise`; on rank 0 all of them."""
        return self._known if self._ledger is None else self._ledger.lines

    def close(self) -> None:
        """Let go of the file."""
        if self._ledger is not None:
            self._ledger.close()

    def _numbered(self, sequence: int | None) -> int:
        return int(from_first(torch.tensor(-1 if sequence is None else sequence)))


def bytes_from_first(content: bytes) -> bytes:
    """What rank 0 holds; what the others pass is not looked at."""
    if rank_and_size()[1] == 1:
        return content
    size = int(from_first(torch.tensor(len(content))))
    sent = torch.zeros(size, dtype=torch.uint8)
    if rank_and_size()[0] == 0 and size:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return from_first(sent).numpy().tobytes()
