"""The server of the live page: a few questions about run folders, answered in JSON, and the page itself."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polyfed.errors import InputError, PolyfedError
from polyfed.ui.access_guard import Guard
from polyfed.ui.run_index import Runs

STATIC = Path(__file__).parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
TOGETHER = 50  # runs whose rounds are given in one answer
LARGEST = 1 << 16  # bytes of a request


@dataclass(frozen=True)
class Page:
    """A page that is ready to be served: its socket is open, so its address is known."""

    address: str
    server: uvicorn.Server
    listener: socket.socket

    def serve(self) -> None:
        """Until it is stopped."""
        self.server.run(sockets=[self.listener])


def open_page(root: Path, host: str = "127.0.0.1", port: int = 0) -> Page:
    """Bind the address, 0 for any free port, and make the server for the runs below `root`."""
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name a folder that holds runs")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    guard = Guard(secrets.token_urlsafe(24), host, port)
    config = uvicorn.Config(
        application(Runs(root.resolve()), guard),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/" + ("" if guard.open else f"?token={guard.token}")
    return Page(address, uvicorn.Server(config), listener)


def application(runs: Runs, guard: Guard) -> Starlette:
    """Everything that can be asked."""
    page = (STATIC / "index.html").read_text().replace("TOKEN", guard.token)
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in KINDS}

    def index(request: Request) -> Response:
        return Response(page, media_type="text/html")

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return Response("there is no such file", 404, media_type="text/plain")
        return Response(files[name], media_type=KINDS[Path(name).suffix])

    def changes(request: Request) -> Response:
        return answer(runs.changes(_count(request.query_params.get("since", "0"))))

    def rounds(request: Request) -> Response:
        names = request.query_params.getlist("id")[:TOGETHER]
        have = request.query_params.getlist("have")
        found = []
        for name, known in zip(names, [*have, *["0.0"] * len(names)], strict=False):
            generation, _, count = known.partition(".")
            found.append(runs.rounds(name, _count(generation), _count(count)))
        return answer({"runs": found})

    def config(request: Request) -> Response:
        return answer(runs.config(request.query_params.get("id", "")))

    async def stop(request: Request) -> Response:
        body = await _body(request)
        await run_in_threadpool(runs.stop, str(body.get("id", "")))
        return answer({"asked": True})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/static/{name}", static),
            Route("/api/runs", changes),
            Route("/api/rounds", rounds),
            Route("/api/config", config),
            Route("/api/stop", stop, methods=["POST"]),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={PolyfedError: _sentence},
    )


def answer(content: Any, status: int = 200) -> Response:
    # every character beyond ASCII is escaped: names of folders may hold what is no text
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _sentence(request: Request, error: Exception) -> Response:
    return answer({"error": str(error)}, 404 if isinstance(error, InputError) else 409)


async def _body(request: Request) -> dict[str, Any]:
    """A small JSON object; anything else is refused before it is held in memory."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST:
            raise InputError(f"a request may have {LARGEST} bytes at most")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError("expected a JSON object")
    return found


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"the page cannot be served at {host}:{port}: {why}; choose another --port or --host"
        ) from None
    return listener
