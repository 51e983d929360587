"""Who may ask: this machine's own pages, or whoever has the token. Stands in front of every answer of the page."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

HEADER = "x-polyfed-token"
HEADERS = {
    # nothing from elsewhere, no script or style inside the page, no frames
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
Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Guard:
    """The rules. `token` is what the page sends along when it changes something; `open` lets others read without."""

    token: str
    host: str
    port: int

    @property
    def open(self) -> bool:
        """Bound to this machine only: reading needs no token."""
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """Browsers do not tell the ports of a host apart, so the name does."""
        return f"polyfed-token-{self.port}"

    async def __call__(self, request: Request, following: Next) -> Response:
        response = self.refusal(request)
        if response is None:
            response = self._entrance(request) or await following(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    def refusal(self, request: Request) -> Response | None:
        """Why a request is not answered, if it is not."""
        host = request.headers.get("host", "")
        if self.open and not self._own_name(host):
            # another website whose name leads to this machine would otherwise read as if it were ours
            return PlainTextResponse("this page is served to this machine under its own name only", 403)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            return PlainTextResponse("requests of other websites are not answered", 403)
        if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and request.url.path != "/":
            return PlainTextResponse("requests of other websites are not answered", 403)
        if request.method not in {"GET", "HEAD"} and not self.knows(request.headers.get(HEADER)):
            return PlainTextResponse("the token is missing or wrong", 403)
        if not self.open and not self._let_in(request):
            return PlainTextResponse("open the address that `polyfed ui` printed, with its token", 401)
        return None

    def knows(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def _let_in(self, request: Request) -> bool:
        return any(
            self.knows(token)
            for token in (
                request.cookies.get(self.cookie),
                request.headers.get(HEADER),
                request.query_params.get("token") if request.url.path == "/" else None,
            )
        )

    def _entrance(self, request: Request) -> Response | None:
        """The first visit brings the token in the address; from there it moves into a cookie, out of sight."""
        if request.url.path != "/" or "token" not in request.query_params:
            return None
        response = RedirectResponse("/", 303)
        if self.knows(request.query_params["token"]):
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return response

    def _own_name(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            name, port = host, "80"
        return int(port) == self.port and (name == "localhost" or is_loopback(name.strip("[]")))


def is_loopback(host: str) -> bool:
    """A name or number that no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
