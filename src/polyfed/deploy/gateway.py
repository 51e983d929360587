"""Gateway of a coordinator: a reverse proxy that streams the requests which the allowlist admits to the SuperLink.

The SuperLink listens on loopback. Its port also accepts commands (start a run, register a site) from any client that
can reach it, so the gateway is the only part of a coordinator that listens to the outside.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

import polyfed
from polyfed.deploy.certificates import certificate_hosts
from polyfed.deploy.flower_protocol import ACTIVATION, FLEET
from polyfed.deploy.header_timeout import HeaderTimeoutProtocol
from polyfed.deploy.request_filter import (
    STATUS_PATH,
    AdmissionRules,
    RefusedError,
    Scope,
    StatusOfKey,
    public_key,
    refusal_message,
)
from polyfed.deploy.site_traffic import SiteTraffic
from polyfed.errors import InputError, RunError

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade", b"host", b"proxy-connection"}
)
MAX_CONNECTIONS = 512
KEEP_SECONDS = 1.0  # that an idle connection to the SuperLink is kept
BODY_SECONDS = 15.0  # in which the next BODY_BYTES of a body must arrive
BODY_BYTES = 150_000
SEND_SECONDS = 60.0  # in which a site must accept a piece of a response
REPEAT_SECONDS = 60.0  # before the same notice is repeated

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass
class TrafficCounts:
    """Bytes of bodies in both directions, and requests by path."""

    from_sites: int = 0
    to_sites: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    refused: int = 0


class ProxyApp:
    """The ASGI application of the gateway: checks, forwards and counts requests."""

    def __init__(
        self, rules: AdmissionRules, upstream: str, authority: Path | None, notify: Callable[[str], None]
    ) -> None:
        self.rules = rules
        self.counts = TrafficCounts()
        self.traffic = SiteTraffic()
        self._notify = notify
        self._notified: dict[str, float] = {}  # times of notices
        verify = ssl.create_default_context(cafile=str(authority)) if authority is not None else False
        self._client = httpx.AsyncClient(
            base_url=upstream,
            verify=verify,
            trust_env=False,  # no HTTP proxy: the SuperLink is on this machine
            follow_redirects=False,
            timeout=httpx.Timeout(60.0, connect=5.0),
            # A connection is used again only if it was idle for less than a second. The SuperLink closes idle ones
            # after five, and a request that is lost in that way looks like one that was answered.
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_SECONDS),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            if scope["raw_path"] == STATUS_PATH and scope["method"] == "GET" and self.rules.status_of_key is not None:
                await self._send_status(scope, send)
                return
            self.rules.check(scope)
            headers = dict(scope["headers"])
            key, size = public_key(headers), int(headers[b"content-length"])
            alive = scope["raw_path"] != ACTIVATION.encode()  # which a site repeats until it succeeds
            async with self.traffic.request(key, size, is_alive=alive and bool(key)):
                if scope["raw_path"] == FLEET + b"pull-messages":
                    self.traffic.asked_for_messages(key)
                self.traffic.transferred(key, size)
                await self._forward(scope, receive, send, key)
        except RefusedError as refusal:
            self.counts.refused += 1
            self._notice(f"refused a request from {_client_address(scope)}: {refusal}")
            await _respond(send, refusal.status, {"code": refusal.status, "detail": str(refusal)})
        except Exception as error:
            self._notice(f"a request could not be forwarded: {type(error).__name__}: {error}")
            raise

    async def _send_status(self, scope: Scope, send: Send) -> None:
        """Tell a site the status of its key, and the time of this machine."""
        headers = dict(scope["headers"])
        self.rules.check_host(headers)
        status, name = self.rules.site_status(headers)
        if status != "admitted":
            self.counts.refused += 1
            self._notice(f"refused a site at {_client_address(scope)}: {refusal_message(status, name)}")
        await _respond(
            send, 200, {"standing": status, "name": name, "version": polyfed.__version__, "time": time.time()}
        )

    async def _forward(self, scope: Scope, receive: Receive, send: Send, key: bytes) -> None:
        path = scope["raw_path"].decode("ascii")
        self.counts.requests[path.removeprefix(FLEET.decode())] += 1
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        request = self._client.build_request("POST", path, headers=headers, content=self._body(receive))
        started = False
        try:
            response = await self._client.send(request, stream=True)
            try:
                headers = [(n.lower(), value) for n, value in response.headers.raw if n.lower() not in HOP_BY_HOP]
                if path == ACTIVATION and response.status_code == 200:
                    self.traffic.connected(key)
                await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
                started = True
                async for piece in response.aiter_raw():
                    self.counts.to_sites += len(piece)
                    self.traffic.transferred(key, len(piece))
                    event = {"type": "http.response.body", "body": piece, "more_body": True}
                    await asyncio.wait_for(send(event), SEND_SECONDS)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await response.aclose()
        except (httpx.HTTPError, ConnectionError, TimeoutError) as error:
            if started:
                raise  # the server closes the connection, so that no site mistakes a part for the whole
            self._notice(f"the SuperLink did not answer: {type(error).__name__}")
            await _respond(send, 502, {"code": 502, "detail": "the coordinator is not ready; try again"})

    async def _body(self, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body of a request as it arrives. Raise `TimeoutError` if it arrives too slowly.

        Only waiting for the site counts, not waiting for the SuperLink. What arrived before gives no credit: a body
        that stalls after 60 MB ends as early as one that stalls at its start.
        """
        more, received, waited = True, 0, 0.0
        while more:
            start = time.monotonic()
            event = await asyncio.wait_for(receive(), max(BODY_SECONDS - waited, 0.0))
            waited += time.monotonic() - start
            if event["type"] == "http.disconnect":
                raise ConnectionError("the site disconnected")
            piece = event.get("body", b"")
            self.counts.from_sites += len(piece)
            received += len(piece)
            if received >= BODY_BYTES:
                received, waited = 0, 0.0
            more = event.get("more_body", False)
            if piece:
                yield piece

    def _notice(self, text: str) -> None:
        """Pass a notice on, unless the same one was passed on a short time ago."""
        now = time.monotonic()
        if len(self._notified) > 1000:
            self._notified.clear()
        if now - self._notified.get(text, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._notified[text] = now
            self._notify(text)


def _client_address(scope: Scope) -> str:
    return str((scope.get("client") or ("?",))[0])


async def _respond(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Gateway:
    """The gateway, which runs in a thread from `start` to `stop`.

    `certificate` and `key` are the files for TLS. Without them the gateway uses plain HTTP, and `status_of_key` must
    be None as well. `authority` is the file of the authority that signed the certificate of `upstream`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        upstream: str,
        *,
        certificate: Path | None,
        key: Path | None,
        authority: Path | None,
        status_of_key: StatusOfKey | None,
        notify: Callable[[str], None],
    ) -> None:
        rules = AdmissionRules(status_of_key, None if certificate is None else certificate_hosts(certificate))
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._app = ProxyApp(rules, upstream, authority, notify)
        config = uvicorn.Config(
            self._app,
            http=HeaderTimeoutProtocol,  # based on h11, which passes paths on unchanged
            ws="none",
            lifespan="off",
            log_level="critical",  # `notify` reports what matters
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
            ssl_certfile=None if certificate is None else str(certificate),
            ssl_keyfile=None if key is None else str(key),
        )
        config.load()
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="gateway", daemon=True
        )

    @property
    def traffic(self) -> SiteTraffic:
        return self._app.traffic

    @property
    def counts(self) -> TrafficCounts:
        return self._app.counts

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RunError(f"the gateway at port {self.port} did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
