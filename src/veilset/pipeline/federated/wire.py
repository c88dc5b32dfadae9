"""Letters between the coordinator and its sites, as Flower's messages.

A site counts as present once it has answered a nonce of this server under the agreement, with its own signature. One
that starts again, or was lost for a while, is asked for a new proof: so the coordinator knows that letters to it, or
from it, may be gone, and asks again. Nothing is lost by that: a site keeps its answers.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from veilset.pipeline.federated.messages import LETTER, POLL_SECONDS, pack, unpack

from flwr.app import Message  # isort: skip
from flwr.app.message import remove_content_from_message
from flwr.supercore.constant import NodeStatus
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from torch import Tensor

from veilset.core.errors import InputError
from veilset.pipeline.federated.agreement import Agreement
from veilset.pipeline.federated.coordinator import Letter
from veilset.pipeline.federated.desk import introduction
from veilset.pipeline.federated.link import Link
from veilset.release.statements import is_signed

_TIME_TO_LIVE = 7 * 86_400.0


class FlowerWire:
    """The coordinator's end."""

    def __init__(self, link: Link, agreement: Agreement) -> None:
        self._link, self._agreement = link, agreement
        self._node_of = {name: node for node, name in link.sites.items()}
        self._seen: dict[int, int] = {}  # of each node that is greeted: which of its activations
        self._nonces: dict[int, str] = {}
        self._met: set[int] = set()
        self._sent: dict[str, int] = {}  # messages without a reply, and to whom
        self._arriving: dict[str, Message] = {}  # replies whose content is not there yet

    def present(self) -> set[str]:
        """Sites that are connected and have proved who they are; whoever is new is greeted."""
        online = {node.node_id for node in self._link.get_node_info(statuses=[NodeStatus.ONLINE])}
        for node in list(self._seen):
            if node not in online or self._seen[node] != self._link.activations.get(node):
                self._forget(node)
        for node in online - set(self._seen):
            self._seen[node] = self._link.activations.get(node, 0)
            self._nonces[node] = secrets.token_hex(16)
            self._push(node, {"nonce": self._nonces[node]}, {})
        return self.met

    @property
    def met(self) -> set[str]:
        """Sites that have proved who they are, by the last look."""
        return {self._link.sites[node] for node in self._met}

    def send(self, site: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Send without waiting."""
        self._push(self._node_of[site], facts, tensors)

    def receive(self) -> list[Letter]:
        """What came since; waits a moment where nothing did."""
        letters = [letter for reply in self._replies() if (letter := self._letter(reply)) is not None]
        if not letters:
            time.sleep(POLL_SECONDS)
        return letters

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received, as Flower counts them."""
        (run,) = self._link.get_run_info(run_ids=[self._link.run])
        return run.bytes_sent, run.bytes_recv

    def _push(self, node: int, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        link = self._link
        message = Message(content=pack(facts, tensors), dst_node_id=node, message_type=LETTER, ttl=_TIME_TO_LIVE)
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        session = link.start_session(link.run)
        bare = remove_content_from_message(message)
        stored, missing = link.store_message_and_object_tree(bare, get_object_tree(message), session)
        for name in missing:
            link.store_object(link.run, session, name, parts[name])
        if stored:
            self._sent[message.object_id] = node

    def _replies(self) -> list[Message]:
        """Replies whose content has come, too.

        They are taken from Flower's store: `get_message_res` has none of a site that answered and left.
        """
        link = self._link
        with link.lock:
            for asked, node in list(self._sent.items()):
                answer = link.message_ins_id_to_message_res_id.get(asked)
                if answer is None:
                    if asked not in link.message_ins_store:
                        self._sent.pop(asked, None)
                    continue
                reply = link.message_res_store[answer]
                del self._sent[asked]
                link.delete_messages({asked})
                if reply.has_error():
                    self._forget(node)
                else:
                    self._arriving[answer] = reply
        found = []
        for name, reply in list(self._arriving.items()):
            contents = self._contents(name)
            if contents is None or all(contents.values()):
                del self._arriving[name]
            if contents is not None and all(contents.values()):
                found.append(self._whole(name, reply, contents))
                link.object_store.delete(name)
        return found

    def _contents(self, name: str) -> dict[str, bytes] | None:
        """The parts of a reply, empty where one has not come yet; None where it never will."""
        try:
            tree = self._link.object_store.get_object_tree(name)
        except NoObjectInStoreError:
            return None
        parts = {
            part.object_id: self._link.get_object(self._link.run, part.object_id) for part in iterate_object_tree(tree)
        }
        return None if None in parts.values() else {key: value or b"" for key, value in parts.items()}

    def _whole(self, name: str, reply: Message, contents: dict[str, bytes]) -> Message:
        try:
            whole = inflate_object_from_contents(name, contents)
        except Exception:  # whatever a hostile site makes Flower raise
            return reply
        if isinstance(whole, Message):
            whole.metadata.__dict__.update(reply.metadata.__dict__)
            return whole
        return reply

    def _letter(self, reply: Message) -> Letter | None:
        node = reply.metadata.src_node_id
        site = self._link.sites[node]
        try:
            facts, tensors = unpack(reply.content)
        except (InputError, ValueError):
            return Letter(site=site, facts={"malformed": True}, tensors={})
        is_signed_itself = "answer" in tensors or "statement" in facts  # the coordinator looks at the signature
        if node not in self._met and "refused" not in facts and not is_signed_itself:
            nonce = self._nonces.get(node, "")
            proof = introduction(self._agreement.sha256, site, nonce)
            if not nonce or not is_signed(proof, facts.get("signature"), self._agreement.member(site).key):
                return None
            self._met.add(node)
        return Letter(site=site, facts=facts, tensors=tensors)

    def _forget(self, node: int) -> None:
        """A site that is back is greeted anew; letters that it has not answered are gone, and asked again."""
        self._met.discard(node)
        self._seen.pop(node, None)
        self._nonces.pop(node, None)
        with self._link.lock:
            answered = self._link.message_ins_id_to_message_res_id
            open_letters = {name for name, to in self._sent.items() if to == node and name not in answered}
            self._link.delete_messages(open_letters)
        self._sent = {name: to for name, to in self._sent.items() if name not in open_letters}
