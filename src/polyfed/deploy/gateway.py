"""The only door of a coordinator to the outside: a reverse proxy that forwards what `passing` lets pass, as it comes.

Behind it, on loopback, the same port of the SuperLink also takes orders (start a run, register a site) from whoever
reaches it.
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
from uvicorn.protocols.http.h11_impl import H11Protocol

import polyfed
from polyfed.deploy.allowlist import STANDING, RefusedError, Rules, Scope, names_in, sentence
from polyfed.deploy.site_registry import Standing
from polyfed.errors import InputError, RunError

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade", b"host", b"proxy-connection"}
)
MOST_CONNECTIONS = 512
HEAD_SECONDS = 15.0  # in which a request's head must be there, counted from the connection or its first byte
BODY_SECONDS = 30.0  # that a body may be behind the slowest pace, in bytes in a second
SLOWEST = 10_000.0
READ_SECONDS = 60.0  # in which a site must take a piece of an answer
QUIET_SECONDS = 60.0  # in which the same sentence is not said again

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass
class Counts:
    """What went through: bytes of bodies in both directions, and requests by path."""

    from_sites: int = 0
    to_sites: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    refused: int = 0


class Forwarder:
    """The application behind the port: checks, forwards, counts."""

    def __init__(self, rules: Rules, upstream: str, authority: Path | None, say: Callable[[str], None]) -> None:
        self.rules = rules
        self.counts = Counts()
        self._say = say
        self._said: dict[str, float] = {}
        verify = ssl.create_default_context(cafile=str(authority)) if authority is not None else False
        self._client = httpx.AsyncClient(
            base_url=upstream,
            verify=verify,
            trust_env=False,  # never through a proxy: the SuperLink is on this machine
            follow_redirects=False,
            timeout=httpx.Timeout(60.0, connect=5.0),
            # a new connection for every request: one that is kept may be closed by the SuperLink just when it
            # is used again, and a request that is lost so cannot be told from one that was answered
            limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=0),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            if scope["raw_path"] == STANDING and scope["method"] == "GET" and self.rules.standing is not None:
                await self._tell_standing(scope, send)
                return
            self.rules.check(scope)
        except RefusedError as refusal:
            self.counts.refused += 1
            self._note(f"refused a request from {(scope.get('client') or ('?',))[0]}: {refusal}")
            await _answer(send, refusal.status, {"code": refusal.status, "detail": str(refusal)})
            return
        try:
            await self._forward(scope, receive, send)
        except Exception as error:
            self._note(f"a request could not be forwarded: {type(error).__name__}: {error}")
            raise

    async def _tell_standing(self, scope: Scope, send: Send) -> None:
        headers = dict(scope["headers"])
        self.rules.check_host(headers)
        standing, name = self.rules.asked(headers)
        if standing != "admitted":
            self.counts.refused += 1
            self._note(f"refused a site at {(scope.get('client') or ('?',))[0]}: {sentence(standing, name)}")
        await _answer(
            send, 200, {"standing": standing, "name": name, "version": polyfed.__version__, "time": time.time()}
        )

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("ascii")
        self.counts.requests[path.removeprefix("/v1/fleet/")] += 1
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        request = self._client.build_request("POST", path, headers=headers, content=self._body(receive))
        begun = False
        try:
            reply = await self._client.send(request, stream=True)
            try:
                kept = [(name.lower(), value) for name, value in reply.headers.raw if name.lower() not in HOP_BY_HOP]
                await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
                begun = True
                async for piece in reply.aiter_raw():
                    self.counts.to_sites += len(piece)
                    more = {"type": "http.response.body", "body": piece, "more_body": True}
                    await asyncio.wait_for(send(more), READ_SECONDS)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await reply.aclose()
        except (httpx.HTTPError, ConnectionError, TimeoutError) as error:
            if (
                begun
            ):  # the rest cannot be sent; the server closes the connection, so that nobody takes a part for all
                raise
            self._note(f"the SuperLink did not answer: {type(error).__name__}")
            await _answer(send, 502, {"code": 502, "detail": "the coordinator is not ready; try again"})

    async def _body(self, receive: Receive) -> AsyncIterator[bytes]:
        """What a site sends, piece by piece as it comes; one that hardly sends anything is given up."""
        more, got, began = True, 0, time.monotonic()
        while more:
            patience = BODY_SECONDS + got / SLOWEST - (time.monotonic() - began)
            message = await asyncio.wait_for(receive(), max(patience, 0.0))
            if message["type"] == "http.disconnect":
                raise ConnectionError("the site went away")
            piece = message.get("body", b"")
            self.counts.from_sites += len(piece)
            got += len(piece)
            more = message.get("more_body", False)
            if piece:
                yield piece

    def _note(self, words: str) -> None:
        """Say it, but not the same again and again."""
        now = time.monotonic()
        if len(self._said) > 1000:
            self._said.clear()
        if now - self._said.get(words, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._said[words] = now
            self._say(words)


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Impatient(H11Protocol):
    """Closes connections on which nothing is asked: without this, some hundred silent ones would fill the door.

    Every request has to have its head there in time, not only the first one of a connection.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
        elif self._timer is None and self._idle():
            self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        self._timer = None
        if self._idle() and not self.transport.is_closing():
            self.transport.close()


class Gateway:
    """The door, in a thread of its own, from `start` to `stop`.

    `certificate` and `key` are files; without them it speaks plain HTTP, and `standing` must be None as well.
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
        standing: Callable[[bytes], tuple[Standing, str]] | None,
        say: Callable[[str], None],
    ) -> None:
        rules = Rules(standing, None if certificate is None else names_in(certificate))
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._forwarder = Forwarder(rules, upstream, authority, say)
        config = uvicorn.Config(
            self._forwarder,
            http=_Impatient,  # and h11, which gives the path as it was sent
            ws="none",
            lifespan="off",
            log_level="critical",  # what is worth telling is told through `say`
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
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
    def counts(self) -> Counts:
        return self._forwarder.counts

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
        raise InputError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
    return listener
