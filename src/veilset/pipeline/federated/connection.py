"""A site's side of the wire: it connects to Flower's SuperLink as a SuperNode does, with TLS and a key of its own.

Flower's own SuperNode runs code that comes with a run, next to the private images. This one answers with what is
installed at the site (`Desk`), and so speaks Flower's Fleet API itself. That API is not a stable one: the extra
`federated` pins the version.

Secure aggregation is not used: docs/federated.md says why.
"""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from veilset.pipeline.federated.messages import FAREWELL, POLL_SECONDS, unpack

import httpx  # isort: skip
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from torch import Tensor

from veilset.core.errors import InputError, VeilsetError
from veilset.pipeline.federated.desk import Desk
from veilset.pipeline.federated.schedule import Clock
from veilset.pipeline.federated.site import Site


def serve_site(
    site: Site,
    *,
    server: str,
    authority: bytes,
    key: bytes,
    report: Callable[[str], None],
    keep_generator: Callable[[Mapping[str, Tensor]], None],
    answer_every: float | None = None,
    at_once: bool = False,
    wait: float = 10.0,
    patience: float = 120.0,
) -> None:
    """Answer the server until it says farewell; raises when it is not there within `wait` seconds, or lost for longer.

    Answers leave on a schedule (`schedule.py`), unless `at_once`, which is for simulations.
    """
    desk = Desk(site, report, answer_every=answer_every, clock=None if at_once else Clock())
    deadline = time.monotonic() + wait
    with _node(server, authority, key) as node:
        while True:
            try:
                if not node.active:
                    node.activate()
                    report(f"{site.name} is connected to {server}.")
                message = node.receive()
                deadline = time.monotonic() + patience
                if message is None:
                    time.sleep(POLL_SECONDS)
                elif message.metadata.message_type == FAREWELL:
                    keep_generator(unpack(message.content)[1])
                    report(f"The server has ended the federation; {site.steps_left} paid answers were not asked for.")
                    return
                else:
                    content = desk.reply(message.metadata.message_type, message.content)
                    node.reply(Message(content=content, reply_to=message))
            except httpx.HTTPError as error:
                node.active = False
                if time.monotonic() > deadline:
                    raise VeilsetError(
                        f"No connection to {server}: {_cause(error)}. What the site paid for is kept; start it again "
                        "to go on, with --wait SECONDS where the server is not up yet."
                    ) from error
                time.sleep(1.0)


def _cause(error: httpx.HTTPError) -> str:
    """Why there is no connection, in words for whoever runs the site."""
    text = str(error).partition("\n")[0]
    if isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error:
        return "the server does not take the site's key (--key). Ask its keeper to add the public one"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the server's certificate is not of this authority (--authority), or is for another address ({text})"
    return f"nobody answers there as the server of a federation does (--server): {text}"


@contextmanager
def _node(server: str, authority: bytes, key: bytes) -> "Iterator[_Node]":
    """A client of the SuperLink that signs with the site's key."""
    try:
        own = load_ssh_private_key(key, None)
    except ValueError as error:
        raise InputError(f"Cannot read the site's key: {error}. Write keys with: veilset federate keys") from error
    if not isinstance(own, ec.EllipticCurvePrivateKey):
        raise InputError("Expected an elliptic-curve key. Write keys with: veilset federate keys")
    version, signer = RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(own, own.public_key())
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"Expected --server HOST:PORT, got {server!r}.")
    try:
        client_of = FleetHttpClient.from_server_address(server, False, authority, interceptors=[version, signer])
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"Cannot read the authority's certificate (--authority): {error}.") from error
    with client_of as client:
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
        self._heart: HeartbeatSender | None = None
        self.active = False

    def activate(self) -> None:
        """Say that the site is there."""
        request = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except ValueError as error:  # somebody else's web server
            raise httpx.RemoteProtocolError(str(error)) from error
        self.active = True
        if self._heart is None:
            self._heart = HeartbeatSender(self._beat)
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
        self._heart.stop()
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def _beat(self) -> bool:
        """In a thread of its own: learning may take longer than the server waits for a sign of life."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        with suppress(httpx.HTTPError):
            return bool(self._client.SendNodeHeartbeat(request).success)
        return False
