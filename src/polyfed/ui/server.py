"""Web server of the dashboard: the page, and a small JSON interface to the run folders."""

from __future__ import annotations

import html
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
from polyfed.errors import InputError, PolyfedError, RunError
from polyfed.runs.discovery import ANY_RUN_FILE
from polyfed.ui.access_guard import AccessGuard, GuardMiddleware
from polyfed.ui.event_stream import MAX_STREAMS, EventStreams
from polyfed.ui.run_index import RunIndex
from polyfed.ui.run_launcher import MAX_STARTED, RunLauncher
from polyfed.ui.start_request import StartRequest

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_RUNS = 50  # whose rounds are sent in one response
MAX_BODY = 1 << 16  # bytes of a request
READ_ONLY = "This page is read-only."
NOT_LOGGED_IN = "To start and stop runs, open the address that polyfed ui printed."
NOT_FROM_OTHER_MACHINES = "To start runs from other machines, restart polyfed ui with --allow-start."
SINGLE_RUN = "To start runs, serve a folder that contains run folders."


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that is ready to serve: its socket is open, so its address is known.

    `address` contains the token, `origin` does not.
    """

    address: str
    origin: str
    server: uvicorn.Server
    listener: socket.socket

    def serve(self) -> None:
        """Serve until the server is stopped."""
        self.server.run(sockets=[self.listener])


def open_dashboard(
    root: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    max_streams: int = MAX_STREAMS,
    max_started: int = MAX_STARTED,
    read_only: bool = False,
    allow_start: bool = False,
) -> Dashboard:
    """Bind the address and create the server for the runs below `root`. Port 0 picks a free port.

    At most `max_streams` pages receive server-sent events; others poll. At most `max_started` runs that were started
    from the page run at the same time. A read-only dashboard neither starts nor stops runs. If other machines can
    reach the dashboard, it starts runs only with `allow_start`.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name a folder that holds runs")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    root = root.resolve()
    guard = AccessGuard(secrets.token_urlsafe(24), host, port, read_only)
    launcher: RunLauncher | str = RunLauncher(root, max_started)
    if read_only:
        launcher = READ_ONLY
    elif not guard.loopback_only and not allow_start:
        launcher = NOT_FROM_OTHER_MACHINES
    elif any((root / name).exists() for name in ANY_RUN_FILE):
        launcher = SINGLE_RUN
    streams = EventStreams(RunIndex(root), max_streams)
    config = uvicorn.Config(
        application(streams, guard, launcher),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    origin = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    address = f"{origin}/" if read_only and guard.loopback_only else f"{origin}/?token={guard.token}"
    server = uvicorn.Server(config)
    streams.closing = lambda: server.should_exit
    return Dashboard(address, origin, server, listener)


def application(streams: EventStreams, guard: AccessGuard, launcher: RunLauncher | str) -> Starlette:
    """Create the web application. `launcher` is the reason if runs cannot be started."""
    runs = streams.runs
    template = (STATIC / "index.html").read_text()
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}
    files["palette.css"] = palette_css().encode()

    def page(token: str, notice: str) -> str:
        # without a token, the page offers neither to start nor to stop runs
        return template.replace("TOKEN", token).replace("NOTICE", html.escape(notice))

    def index(request: Request) -> Response:
        if guard.read_only:
            text = page("", READ_ONLY)
        elif not guard.authenticated(request):
            text = page("", NOT_LOGGED_IN)
        else:
            text = page(guard.token, launcher if isinstance(launcher, str) else "")
        return Response(text, media_type="text/html")

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

    def presets(request: Request) -> Response:
        return json_response({"presets": _available(launcher).presets()})

    async def check(request: Request) -> Response:
        # the answer is the result of the check, also if the check finds a mistake
        body = await _body(request)
        ready = _available(launcher)
        try:
            return json_response(await run_in_threadpool(ready.check, StartRequest.from_json(body)))
        except PolyfedError as error:
            return json_response({"error": str(error)})

    async def start(request: Request) -> Response:
        body = await _body(request)
        ready = _available(launcher)
        return json_response(await run_in_threadpool(ready.start, StartRequest.from_json(body)))

    def launch(request: Request) -> Response:
        return json_response(_available(launcher).state(request.query_params.get("id", "")))

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
            Route("/api/presets", presets),
            Route("/api/check", check, methods=["POST"]),
            Route("/api/start", start, methods=["POST"]),
            Route("/api/launch", launch),
        ],
        middleware=[Middleware(GuardMiddleware, guard=guard)],
        exception_handlers={PolyfedError: _error},
    )


def _available(launcher: RunLauncher | str) -> RunLauncher:
    """Return the launcher. Raise RunError with the reason if runs cannot be started."""
    if isinstance(launcher, str):
        raise RunError(launcher)
    return launcher


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
