"""A site's end of the wire: it connects to the server as Flower's SuperNode does, with TLS and a key of its own.

Flower's own SuperNode runs code that comes with a run, next to the private images. This one answers with what is
installed at the site (`Desk`), and so speaks Flower's Fleet API itself. That API is not a stable one: the extra
`federated` pins the version.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from veilset.pipeline.federated.messages import POLL_SECONDS, pack, unpack

import httpx  # isort: skip
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from veilset.core.errors import VeilsetError
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.reaching import cause_of
from veilset.release.statements import load_site_key

_BEAT_SECONDS = 4.0
_PARTING_SECONDS = 45.0  # for which a site tries to hand over its signed statement


def serve_site(
    desk: Desk, *, server: str, authority: bytes, key: bytes, report: Callable[[str], None], patience: float
) -> None:
    """Answer the server until it has the site's farewell; raises when it is lost for longer than `patience` seconds.

    A farewell that did not get through is sent again. A server that is gone by then has made its release, or will ask
    anew when it is started again; either way the site has answered everything, and ends well.
    """
    deadline = time.monotonic() + patience
    lost = has_parted = False
    with _node(server, authority, key) as node:
        while not has_parted:
            try:
                if not node.active:
                    node.activate()
                    report(f"Connected to {server}.")
                message = node.receive()
                deadline, lost = time.monotonic() + patience, False
                if message is None:
                    time.sleep(POLL_SECONDS)
                else:
                    facts, tensors = desk.reply(*unpack(message.content))
                    if desk.certificate is not None:
                        patience = min(patience, _PARTING_SECONDS)
                        deadline = min(deadline, time.monotonic() + patience)
                    node.reply(Message(content=pack(facts, tensors), reply_to=message))
                    if desk.failure is not None:
                        raise desk.failure
                    has_parted = "statement" in facts
            except (httpx.HTTPError, ObjectPullError, ObjectPushError) as error:
                node.active = False
                cause = cause_of(error, server)
                if time.monotonic() > deadline:
                    if desk.certificate is not None:
                        report(f"The server is gone: {cause}. It may lack the site's signature; all is answered.")
                        return
                    raise VeilsetError(
                        f"The server is lost: {cause}. What the site paid for is kept; start it again to go on."
                    ) from error
                if not lost:
                    report(f"The server is lost for now: {cause}. Trying again.")
                lost = True
                time.sleep(1.0)


@contextmanager
def _node(server: str, authority: bytes, key: bytes) -> "Iterator[_Node]":
    """A client of the server that signs with the site's key."""
    own = load_site_key(key)
    version, signer = RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(own, own.public_key())
    with FleetHttpClient.from_server_address(server, False, authority, interceptors=[version, signer]) as client:
        node = _Node(client, public_key_to_bytes(own.public_key()))
        try:
            yield node
        finally:
            node.leave()


class _Node:
    """A SuperNode in so far as it speaks; what it says is up to a `Desk`."""

    def __init__(self, client: FleetHttpClient, public_key: bytes) -> None:
        self._client, self._public_key = client, public_key
        self._node = Node()
        self._heart: threading.Thread | None = None
        self._over = threading.Event()
        self.active = False

    def activate(self) -> None:
        """Say that the site is there."""
        request = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        try:
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except ValueError as error:  # somebody else's web server
            raise httpx.RemoteProtocolError(str(error)) from error
        self.active = True
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, daemon=True)
            self._heart.start()

    def receive(self) -> Message | None:
        """The next message with its content, which Flower sends apart; None where there is none."""
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        envelope, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, name = envelope.metadata.run_id, envelope.metadata.message_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull)
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__.update(envelope.metadata.__dict__)
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)(name)
        return message

    def reply(self, message: Message) -> None:
        """Send a reply and its content."""
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        tree, run = get_object_tree(message), message.metadata.run_id
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )
        taken = self._client.PushMessages(request)
        push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, taken.session_id)
        push_object_contents_from_iterable(((name, parts[name]) for name in set(taken.objects_to_push)), push)

    def leave(self) -> None:
        """Say goodbye, if that is possible."""
        if self._heart is None:
            return
        self._over.set()
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def _beat(self) -> None:
        """In a thread of its own: an answer may take longer than the server waits for a sign of life."""
        while not self._over.wait(_BEAT_SECONDS):
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            with suppress(httpx.HTTPError, RuntimeError):  # the client may be closed by now
                self._client.SendNodeHeartbeat(request)
