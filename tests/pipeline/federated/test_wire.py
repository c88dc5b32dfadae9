"""Letters as Flower's messages, without a network: nothing that a site said is lost by its leaving, or its company."""

from collections.abc import Mapping
from typing import Any

import pytest
from federations import KEYS, agreed

pytest.importorskip("flwr", reason="needs the extra `federated`")

from veilset.pipeline.federated.desk import introduction
from veilset.pipeline.federated.link import Link
from veilset.pipeline.federated.messages import pack, unpack
from veilset.pipeline.federated.wire import FlowerWire
from veilset.release.statements import load_site_key, signature_of

from flwr.app import Message  # isort: skip
from flwr.app.message import remove_content_from_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents


class Node:
    """A site that speaks to the link as Flower's routes do."""

    def __init__(self, link: Link, name: str) -> None:
        self.link, self.name = link, name
        (self.number,) = [node for node, site in link.sites.items() if site == name]

    def come(self) -> None:
        assert self.link.activate_node(self.number, 30.0)

    def leave(self) -> None:
        assert self.link.deactivate_node(self.number)

    def asked(self) -> Message:
        (envelope,) = self.link.get_message_ins(self.number, limit=1)
        name = envelope.metadata.message_id
        parts = iterate_object_tree(self.link.object_store.get_object_tree(name))
        contents = {part.object_id: self.link.object_store.get(part.object_id) or b"" for part in parts}
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__.update(envelope.metadata.__dict__)
        self.link.object_store.delete(name)
        return message

    def reply(self, asked: Message, facts: Mapping[str, Any]) -> None:
        message = Message(content=pack(facts), reply_to=asked)
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        session = self.link.start_session(self.link.run)
        bare = remove_content_from_message(message)
        stored, missing = self.link.store_message_and_object_tree(bare, get_object_tree(message), session)
        assert stored
        for part in missing:
            assert self.link.store_object(self.link.run, session, part, parts[part])


def test_a_site_that_answers_and_leaves_at_once_is_heard() -> None:
    agreement = agreed()
    link = Link(agreement)
    wire = FlowerWire(link, agreement)
    nodes = [Node(link, name) for name in ("north", "south")]
    for node in nodes:
        node.come()
    assert wire.present() == set()
    for node in nodes:
        greeting = node.asked()
        nonce = unpack(greeting.content)[0]["nonce"]
        proof = introduction(agreement.sha256, node.name, nonce)
        node.reply(greeting, {"signature": signature_of(proof, load_site_key(KEYS[node.name][0]))})
    assert {letter.site for letter in wire.receive()} == {"north", "south"}
    assert wire.present() == {"north", "south"}
    for node in nodes:
        wire.send(node.name, {"farewell": True}, {})
    for node in nodes:
        node.reply(node.asked(), {"statement": {}, "signature": "of its own"})
        node.leave()
    assert wire.present() == set()
    assert {letter.site for letter in wire.receive()} == {"north", "south"}


def test_a_letter_that_a_lost_site_did_not_answer_is_dropped_and_it_is_greeted_anew() -> None:
    agreement = agreed()
    link = Link(agreement)
    wire = FlowerWire(link, agreement)
    north = Node(link, "north")
    north.come()
    wire.present()
    north.leave()
    wire.present()
    assert not link.message_ins_store
    north.come()
    wire.present()
    assert "nonce" in unpack(north.asked().content)[0]
    assert link.get_message_ins(north.number, limit=None) == []


def test_parts_that_letters_share_outlive_the_first_of_them() -> None:
    """A letter is deleted while another with equal parts is registered: it waits, and takes only its own parts."""
    link = Link(agreed())
    store, held = link.object_store, []
    first, second = (Message(content=pack({"letter": number}), dst_node_id=1, message_type="query.letter", ttl=60.0)
                     for number in (1, 2))  # fmt: skip
    store.preregister(link.run, get_object_tree(first))
    inside = type(store).__mro__[1].preregister

    def watched(*arguments: Any) -> Any:
        held.append(store.lock_store._is_owned())
        return inside(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store).__mro__[1], "preregister", watched)
        store.preregister(link.run, get_object_tree(second))
    assert held == [True]
    store.delete(first.object_id)
    store.get_object_tree(second.object_id)  # raises where a part is missing
