"""Web server of the dashboard: the page, and a small JSON interface to the run folders."""

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
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polyfed.comparison.palette import DARK, LIGHT
from polyfed.errors import InputError, PolyfedError
from polyfed.ui.access_guard import AccessGuard, GuardMiddleware
from polyfed.ui.event_stream import MAX_STREAMS, EventStreams
from polyfed.ui.run_index import RunIndex

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_RUNS = 50  # whose rounds are sent in one response
MAX_BODY = 1 << 16  # bytes of a request


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that is ready to serve: its socket is open, so its address is known."""

    address: str
    server: uvicorn.Server
    listener: socket.socket

    def serve(self) -> None:
        """Serve until the server is stopped."""
        self.server.run(sockets=[self.listener])


def open_dashboard(
    root: Path, host: str = "127.0.0.1", port: int = 0, *, max_streams: int = MAX_STREAMS
) -> Dashboard:
    """Bind the address and create the server for the runs below `root`. Port 0 picks a free port.

    At most `max_streams` pages receive server-sent events; others poll.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name a folder that holds runs")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    guard = AccessGuard(secrets.token_urlsafe(24), host, port)
    streams = EventStreams(RunIndex(root.resolve()), max_streams)
    config = uvicorn.Config(
        application(streams, guard),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/" + ("" if guard.loopback_only else f"?token={guard.token}")
    server = uvicorn.Server(config)
    streams.closing = lambda: server.should_exit
    return Dashboard(address, server, listener)


def application(streams: EventStreams, guard: AccessGuard) -> Starlette:
    """Create the web application."""
    runs = streams.runs
    page = (STATIC / "index.html").read_text().replace("TOKEN", guard.token)
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}
    files["palette.css"] = palette_css().encode()

    def index(request: Request) -> Response:
        return Response(page, media_type="text/html")

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return Response("there is no such file", 404, media_type="text/plain")
        return Response(files[name], media_type=MEDIA_TYPES[Path(name).suffix])

    def changes(request: Request) -> Response:
        return json_response(runs.changes(_count(request.query_params.get("since", "0"))))

    async def stream(request: Request) -> Response:
        # a browser that connects again names the last event that it received
        since = request.headers.get("last-event-id") or request.query_params.get("since", "0")
        return streams.open(_count(since))

    def rounds(request: Request) -> Response:
        names = request.query_params.getlist("id")[:MAX_RUNS]
        have = request.query_params.getlist("have")
        histories = []
        for name, known in zip(names, [*have, *["0.0"] * len(names)], strict=False):
            generation, _, count = known.partition(".")
            histories.append(runs.rounds(name, _count(generation), _count(count)))
        return json_response({"runs": histories})

    def config(request: Request) -> Response:
        return json_response(runs.config(request.query_params.get("id", "")))

    def details(request: Request) -> Response:
        return json_response(runs.details(request.query_params.get("id", "")))

    def embedding(request: Request) -> Response:
        name, projection = (request.query_params.get(key, "") for key in ("id", "projection"))
        return json_response(runs.embedding(name, _count(request.query_params.get("round", "")), projection))

    async def stop(request: Request) -> Response:
        body = await _body(request)
        await run_in_threadpool(runs.stop, str(body.get("id", "")))
        return json_response({"requested": True})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/static/{name}", static),
            Route("/api/runs", changes),
            Route("/api/stream", stream),
            Route("/api/rounds", rounds),
            Route("/api/config", config),
            Route("/api/details", details),
            Route("/api/embedding", embedding),
            Route("/api/stop", stop, methods=["POST"]),
        ],
        middleware=[Middleware(GuardMiddleware, guard=guard)],
        exception_handlers={PolyfedError: _error},
    )


def palette_css() -> str:
    """Return the style sheet with the colours of methods: `c0`, `c1` and so on."""
    light, dark = (
        "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours)) for colours in (LIGHT, DARK)
    )
    classes = "".join(f".c{index}{{color:var(--c{index})}}\n" for index in range(len(LIGHT)))
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}"


def json_response(content: Any, status: int = 200) -> Response:
    # escapes all characters beyond ASCII: names of folders may not be valid text
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _error(request: Request, error: Exception) -> Response:
    return json_response({"error": str(error)}, 404 if isinstance(error, InputError) else 409)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request. Raise InputError if it is too large or something else."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise InputError(f"a request may have {MAX_BODY} bytes at most")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InputError("expected a JSON object")
    return body


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the dashboard cannot listen at {host}:{port}: {reason}; choose another --port or --host"
        ) from None
    return listener
