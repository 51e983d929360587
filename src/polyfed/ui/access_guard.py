"""Access control of the dashboard: requests from its own page on this machine, or requests with the token."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-polyfed-token"
HEADERS = {
    # no content from other sites, no inline scripts or styles, no frames
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class AccessGuard:
    """Rules that reject requests of other websites, and requests without the token where it is needed.

    Requests that start or stop runs always need the token, and are rejected if the dashboard is read-only. Reading
    needs the token unless the server is bound to loopback.
    """

    token: str
    host: str
    port: int
    read_only: bool = False

    @property
    def loopback_only(self) -> bool:
        """Whether only this machine can reach the server. Reading then needs no token."""
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """The name of the cookie. It contains the port: browsers share cookies between the ports of a host."""
        return f"polyfed-token-{self.port}"

    def rejection(self, request: Request) -> Response | None:
        """Return the error response for a request that is not allowed, or None if it is allowed."""
        host = request.headers.get("host", "")
        if self.loopback_only and not self._is_own_host(host):
            # DNS rebinding: another website whose name resolves to this machine
            return PlainTextResponse("unknown host name: open this page by a loopback address or as localhost", 403)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            return PlainTextResponse("requests of other websites are not allowed", 403)
        if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and request.url.path != "/":
            return PlainTextResponse("requests of other websites are not allowed", 403)
        if request.method not in {"GET", "HEAD"}:
            if self.read_only:
                return PlainTextResponse("this dashboard is read-only", 403)
            if not self.is_valid(request.headers.get(HEADER)):
                return PlainTextResponse("the token is missing or wrong", 403)
        if not self.loopback_only and not self.authenticated(request):
            return PlainTextResponse("the token is missing or wrong: open the address that `polyfed ui` printed", 401)
        return None

    def is_valid(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def authenticated(self, request: Request) -> bool:
        """Return whether a request has the token: as a cookie, as a header, or in the address of the first visit."""
        return any(
            self.is_valid(token)
            for token in (
                request.cookies.get(self.cookie),
                request.headers.get(HEADER),
                request.query_params.get("token") if request.url.path == "/" else None,
            )
        )

    def login(self, request: Request) -> Response | None:
        """Move the token from the address of the first visit into a cookie."""
        if request.url.path != "/" or "token" not in request.query_params:
            return None
        response = RedirectResponse("/", 303)
        if self.is_valid(request.query_params["token"]):
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return response

    def _is_own_host(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            name, port = host, "80"
        return int(port) == self.port and (name == "localhost" or is_loopback(name.strip("[]")))


class GuardMiddleware:
    """Middleware that applies a guard to every request and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, guard: AccessGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope)
        answer = self._guard.rejection(request) or self._guard.login(request) or self._app
        await answer(scope, receive, send_with_headers)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address, which no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
