"""The part of Flower's SuperLink that a federation needs, in the server's own process: the Fleet API over TLS.

Flower's own SuperLink also takes runs, that is code, from whoever reaches its port, and starts processes. This one has
no such door: it serves the sites of one agreement, which sign every call with their keys, a health page, and a check
by which a site learns whether its key is known. It ends with the process. The API is not a stable one: the extra
`federated` pins the version.
"""

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from veilset.pipeline.federated.paths import CHECK, HEALTH

import uvicorn  # isort: skip
from fastapi import Body, FastAPI
from fastapi.responses import JSONResponse
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from veilset.core.errors import InputError, VeilsetError
from veilset.pipeline.federated.admission import host_and_port, versions
from veilset.pipeline.federated.agreement import Agreement
from veilset.release.statements import is_signed, load_public, message_of

_LARGEST_BODY = 1 << 28
_START_SECONDS = 30.0
_CLOCKS = 300.0  # seconds by which a signed check may be old


class _Store(InMemoryObjectStore):
    """Flower's store of contents, for the threads that serve sites beside the one that coordinates.

    Letters share parts that are equal. Flower registers a letter part by part; where another letter with the same part
    is deleted in between, the new one is left without it.
    """

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Register all parts of a letter at once."""
        with self.lock_store:
            return super().preregister(run_id, object_tree)


class Link(InMemoryLinkState):
    """Flower's state for the sites of one agreement: one run, one node for each site, all in memory.

    What matters is on the coordinator's disk; a server that starts anew has a new link, and the sites come back to it.
    """

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(NoOpFederationManager(), _Store())
        self.activations: dict[int, int] = {}
        self.sites = {self._node_of(member.key): member.name for member in agreement.members}
        self.run = self.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )  # fmt: skip
        (task,) = self.task_store
        self.claim_task(task)
        self.activate_task(task)
        self.task_token_store.clear()  # no other process has to say that the run is alive
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run, task, SUPERLINK_NODE_ID

    def state(self) -> "Link":
        """As Flower's factory of states."""
        return self

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """Let a site in, also one that was killed and starts again before Flower has noticed."""
        with self.lock:
            self.deactivate_node(node_id)
            self.activations[node_id] = self.activations.get(node_id, 0) + 1
            return super().activate_node(node_id, heartbeat_interval)

    def _node_of(self, key: str) -> int:
        return self.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key_to_bytes(load_public(key)), 0)


def app_of(link: Link, agreement: Agreement, health: Callable[[], Mapping[str, Any]]) -> FastAPI:
    """What the server's port offers. `health` gives public facts alone."""
    middleware = [
        Middleware(BaseHTTPMiddleware, dispatch=_bounded),
        Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
        Middleware(ProtobufTranslationMiddleware),
        Middleware(NodeAuthMiddleware),
        Middleware(BaseHTTPMiddleware, dispatch=_own_messages),
    ]
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, middleware=middleware)
    app.state.linkstate_factory, app.state.enable_supernode_auth = link, True
    app.include_router(fleet_router)

    @app.get(HEALTH)
    def health_page() -> dict[str, Any]:
        now = datetime.now(UTC).isoformat()
        return {"agreement": agreement.sha256, "versions": versions(), "time": now, **health()}

    @app.post(CHECK)
    def check(said: Annotated[dict[str, Any], Body()]) -> JSONResponse:
        words, signature = said.get("check"), said.get("signature")
        if isinstance(words, dict) and _is_new(words.get("time")):
            for member in agreement.members:
                if is_signed(message_of(words), signature, member.key):
                    return JSONResponse({"site": member.name})
        return JSONResponse({"site": None}, status_code=403)

    return app


@contextmanager
def listening(app: FastAPI, bind: str, certificate: Path, key: Path) -> Iterator[None]:
    """Serve on `bind` over TLS until the block ends. A place that is taken, or keys that do not fit, raise."""
    for path in (certificate, key):
        if not path.is_file():
            raise InputError(f"{path} is missing. Pass --certificate and --certificate-key, or admit the sites anew.")
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # every call of every site would be a line
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with closing(_bound(bind)) as place:
        config = uvicorn.Config(
            app,
            ssl_certfile=certificate,
            ssl_keyfile=str(key),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
        )
        try:
            config.load()
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InputError(f"The certificate {certificate} and the key {key} do not fit: {error}.") from error
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            _wait_for(server, thread, bind)
            yield
        finally:
            server.should_exit = True
            thread.join(2.0)
            server.force_exit = True
            thread.join(5.0)


def _wait_for(server: uvicorn.Server, thread: threading.Thread, bind: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise VeilsetError(f"The server did not start on {bind}.")
        time.sleep(0.02)


def _bound(bind: str) -> socket.socket:
    """A socket at this place; one that somebody else has raises, so no site ever speaks to a stranger."""
    host, port = host_and_port(bind, "--bind")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(128)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise InputError(f"Cannot listen on {bind}: {reason}. Pass another --bind.") from error
    return made


def _is_new(moment: Any) -> bool:
    try:
        return abs((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()) < _CLOCKS
    except (TypeError, ValueError):
        return False


async def _bounded(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse what is too large, or of no known size, before it is read."""
    size = request.headers.get("content-length", "" if request.method == "POST" else "0")
    if not size.isdecimal() or int(size) > _LARGEST_BODY:
        return JSONResponse({"detail": "too large"}, status_code=413)
    return await call_next(request)


async def _own_messages(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse a reply in another site's name: Flower compares the key with the caller, and not with the message."""
    asked = getattr(request.state, "protobuf_request", None)
    if isinstance(asked, PushMessagesRequest):
        own = asked.node.node_id
        if any(message.metadata.src_node_id != own for message in asked.messages_list):
            return JSONResponse({"detail": "not your message"}, status_code=401)
    return await call_next(request)
