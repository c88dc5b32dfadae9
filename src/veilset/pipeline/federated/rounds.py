"""The server's side as a Flower ServerApp: invite sites as they come, ask those that are there, step, release."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from veilset.pipeline.federated.messages import (
    FAREWELL,
    INVITATION,
    POLL_SECONDS,
    QUESTION,
    bytes_of,
    pack,
    unpack,
)

from flwr.app import Context, Message, RecordDict  # isort: skip
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from veilset.core.errors import VeilsetError
from veilset.core.files import write_whole
from veilset.pipeline.federated.coordinator import Coordinator

_SLACK = 1.5


def run_rounds(
    grid: Grid,
    coordinator: Coordinator,
    *,
    min_sites: int,
    patience: float,
    round_seconds: float,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Invite sites as they come, ask those that are there, and step whenever enough of them answered.

    Args:
        min_sites: fewer answers make no step.
        patience: seconds to wait for that many sites before giving up.
        round_seconds: seconds to wait for an answer, or longer where a site's schedule says so; a site that misses it
            is asked again once it has said hello.
        report: hears of every step.
    """
    hall = _Hall(grid, coordinator)
    sent = received = 0
    alone_since = time.monotonic()
    while coordinator.steps_done < coordinator.steps:
        hall.greet()
        ready = hall.ready()
        if len(ready) < min_sites:
            if time.monotonic() - alone_since > patience:
                raise VeilsetError(
                    f"Only {len(ready)} of at least {min_sites} sites were there for {patience:.0f} seconds, after "
                    f"{coordinator.steps_done} of {coordinator.steps} steps. {hall.complaints()}"
                )
            time.sleep(POLL_SECONDS)
            continue
        asked = {node: pack({}, query) for node, query in coordinator.queries(ready).items()}
        # A site answers on its own schedule, which may be slow, but not without end.
        slowest = max(coordinator.members[node].seconds for node in ready)
        replies = hall.ask(asked, max(round_seconds, min(patience, _SLACK * slowest)))
        answers: dict[int, Tensor] = {}
        for node, content in replies.items():
            facts, tensors = unpack(content)
            if "answer" in tensors:
                answers[node] = tensors["answer"]
            else:
                hall.dismiss(node, str(facts.get("refused", "no answer")))
        sent, received = sum(map(bytes_of, asked.values())), sum(map(bytes_of, replies.values()))
        if len(answers) >= min_sites:
            coordinator.take(answers)
            alone_since = time.monotonic()
            report({"step": coordinator.steps_done, "sites": len(answers), "sent": sent, "received": received})
    hall.part()
    return {"bytes_sent": sent, "bytes_received": received, "sites": len(coordinator.members)}


class _Hall:
    """Who is there: nodes that were invited, have joined, are late, or were sent away."""

    def __init__(self, grid: Grid, coordinator: Coordinator) -> None:
        self._grid, self._coordinator = grid, coordinator
        self._invited: dict[str, int] = {}
        self._joined: set[int] = set()
        self._refused: dict[int, str] = {}

    def greet(self) -> None:
        """Invite whoever is new or came back, without waiting, and take in those who accepted."""
        present = set(self._grid.get_node_ids())
        self._joined &= present
        waiting = set(self._invited.values())
        for node in present - self._joined - waiting - set(self._refused):
            invitation = self._message(node, INVITATION, pack(self._coordinator.invitation()))
            self._invited.update(dict.fromkeys(self._grid.push_messages([invitation]), node))
        for reply in self._pull(list(self._invited)):
            node = self._invited.pop(str(reply.metadata.reply_to_message_id))
            if reply.has_error():
                continue
            facts, _ = unpack(reply.content)
            if "refused" in facts:
                self._refused[node] = str(facts["refused"])
            else:
                self._coordinator.welcome(node, facts)
                self._joined.add(node)
        gone = {message: node for message, node in self._invited.items() if node not in present}
        for message in gone:
            del self._invited[message]

    def ready(self) -> list[int]:
        """Sites that may be asked."""
        return sorted(self._joined)

    def ask(self, contents: Mapping[int, RecordDict], seconds: float) -> dict[int, RecordDict]:
        """Replies of those who answer in time. Who does not is invited anew, when it is heard of again."""
        messages = [self._message(node, QUESTION, content) for node, content in contents.items()]
        nodes = dict(zip(self._grid.push_messages(messages), contents, strict=True))
        replies: dict[int, RecordDict] = {}
        deadline = time.monotonic() + seconds
        while nodes and time.monotonic() < deadline:
            for reply in self._pull(list(nodes)):
                node = nodes.pop(str(reply.metadata.reply_to_message_id))
                if reply.has_error():
                    self._joined.discard(node)
                else:
                    replies[node] = reply.content
            time.sleep(POLL_SECONDS)
        self._joined -= set(nodes.values())
        return replies

    def dismiss(self, node: int, why: str) -> None:
        """A site that answers no more, for instance because its plan is spent."""
        self._joined.discard(node)
        self._refused[node] = why

    def part(self) -> None:
        """Send the trained generator to all sites, and let them go."""
        weights = dict(self._coordinator.rounds.training.average.state)
        content = pack({}, {name: value for name, value in weights.items() if value.is_floating_point()})
        present = [node for node in self._grid.get_node_ids() if node in self._coordinator.members]
        self._grid.push_messages([self._message(node, FAREWELL, content) for node in present])
        time.sleep(1.0)

    def complaints(self) -> str:
        """Why sites refused."""
        return " ".join(f"A site refused: {why}" for why in self._refused.values())

    def _message(self, node: int, kind: str, content: RecordDict) -> Message:
        return Message(content=content, dst_node_id=node, message_type=kind)

    def _pull(self, messages: list[str]) -> Iterable[Message]:
        return self._grid.pull_messages(messages) if messages else []


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run the federation that the file `job` describes; say in `status.json` beside it how that goes."""
    place = Path(str(context.run_config["job"]))
    job = json.loads(place.read_text(encoding="utf-8"))

    def report(status: dict[str, Any]) -> None:
        write_whole(place.with_name("status.json"), json.dumps(status | {"pid": os.getpid()}).encode())

    try:
        coordinator = Coordinator(
            job["settings"],
            shape=tuple(job["shape"]),
            class_names=tuple(job["class_names"]),
            seed=job["seed"],
        )
        report({"step": 0, "sites": 0})
        result = run_rounds(
            grid,
            coordinator,
            min_sites=job["min_sites"],
            patience=job["patience"],
            round_seconds=job["round_seconds"],
            report=report,
        )
        coordinator.release(job["samples"], place.parent).save(Path(job["out"]))
        report({"done": result})
    except VeilsetError as error:
        report({"failed": str(error), "exit_code": error.exit_code})


no_client = ClientApp()
