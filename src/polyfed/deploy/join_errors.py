"""Reasons why a site cannot join, one sentence each: found before Flower is started, or after it has ended."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import time
from pathlib import Path

import httpx

from polyfed.deploy.flower_protocol import (
    EXIT_KEY_INVALID,
    EXIT_NO_CONNECTION,
    EXIT_OTHER_VERSION,
    MAX_CLOCK_AHEAD,
    MAX_CLOCK_BEHIND,
    NOT_ACTIVATED,
    PUBLIC_KEY_HEADER,
    VERSION,
)
from polyfed.deploy.keys import public_key_of
from polyfed.deploy.request_filter import STATUS_PATH, refusal_message
from polyfed.errors import InputError, RunError

TIMEOUT = 10.0  # seconds
# OpenSSL's error codes of a certificate
NOT_YET_VALID, EXPIRED = 9, 10
OTHER_AUTHORITY = frozenset({18, 19, 20, 21, 7})
OTHER_HOST = frozenset({62, 64})


def parse_address(server: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--server is '{server}'; give HOST:PORT, such as fl.example.org:8443")
    return host, int(port)


def check_server(server: str, authority: Path | None) -> None:
    """Raise `RunError` unless the coordinator at `server` has a certificate of `authority`.

    Without an authority (`--insecure`), raise unless the coordinator has no TLS either.
    """
    host, port = parse_address(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if authority is None else tls_context(authority)
    if authority is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=TIMEOUT) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise RunError(_explain_certificate(error, server, authority)) from None
    except (ssl.SSLError, ConnectionResetError, TimeoutError) as error:
        if isinstance(error, TimeoutError) and not isinstance(error, ssl.SSLError):
            raise RunError(f"no coordinator answers at {server} within {TIMEOUT:g} seconds") from None
        if authority is not None:
            raise RunError(
                f"the server at {server} does not use TLS; this site does not connect without encryption "
                "(both sides would need --insecure)"
            ) from None
        return
    except OSError as error:
        raise RunError(f"no coordinator answers at {server}: {error.strerror or error}") from None
    if authority is None:
        raise RunError(f"the coordinator at {server} uses TLS; leave out --insecure and give --ca and --key")


def admitted_name(server: str, authority: Path, key: Path) -> str:
    """Return the name under which the coordinator admits the key in a file. Raise `RunError` if it does not."""
    host, port = parse_address(server)
    url_host = f"[{host}]" if ":" in host else host
    encoded_key = base64.b64encode(public_key_of(key).pem).decode()
    sent_at = time.time()
    try:
        response = httpx.get(
            f"https://{url_host}:{port}{STATUS_PATH.decode()}",
            headers={PUBLIC_KEY_HEADER.decode(): encoded_key},
            verify=tls_context(authority),
            timeout=TIMEOUT,
            trust_env=False,
        )
        content = response.json()
        status, name, server_time = content["standing"], content["name"], float(content["time"])
    except httpx.HTTPError as error:
        raise RunError(f"the coordinator at {server} cannot be reached: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"the server at {server} is not a coordinator of polyfed (status {response.status_code})"
        ) from None
    if status != "admitted":
        reason = refusal_message("revoked" if status == "revoked" else "unknown", str(name))
        raise RunError(f"{server}: {reason}")
    _check_clocks(server, sent_at - server_time, server_time - time.time())
    return str(name)


def _check_clocks(server: str, ahead: float, behind: float) -> None:
    """Raise `RunError` if the clocks differ too much. Flower would refuse the site without a reason."""
    if ahead > MAX_CLOCK_AHEAD or behind > MAX_CLOCK_BEHIND:
        offset = f"{ahead:.0f} seconds ahead of" if ahead > MAX_CLOCK_AHEAD else f"{behind:.0f} seconds behind"
        raise RunError(
            f"the clock of this machine is {offset} that of {server}; it may be at most {MAX_CLOCK_AHEAD:g} seconds "
            f"ahead or {MAX_CLOCK_BEHIND:g} seconds behind: set both clocks"
        )


def explain_exit(code: int, output: str) -> str:
    """Return why a SuperNode ended, from its exit code and its output.

    Flower prints a code of its own for every reason; the process itself ends with 0 or 1. Reasons that
    `admitted_name` reports are not repeated here.
    """
    printed = re.findall(r"Exit Code: (\d+)", output)
    reason = int(printed[-1]) if printed else 0
    if reason == EXIT_KEY_INVALID:
        return "Flower cannot read the site's key; create one with `polyfed keys new site NAME`"
    if reason == EXIT_OTHER_VERSION:
        return f"the coordinator uses another version of Flower; both sides need {VERSION}"
    if reason == EXIT_NO_CONNECTION:
        details = re.findall(r"\[code: (\d+)\] (.+)", output)
        if not details:
            return "the SuperNode could not connect to the coordinator"
        number, text = details[-1]
        if int(number) == NOT_ACTIVATED:
            return (
                "the coordinator still lists this site as online, as after a kill; it can return within a minute; "
                "trying again"
            )
        return str(text).strip()
    if code == 0:
        return "the SuperNode was stopped: the coordinator no longer admits this site, or a user stopped it"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"the SuperNode ended with code {reason or code}: {lines[-1][-300:] if lines else 'it printed nothing'}"


def tls_context(authority: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts certificates of one authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"--ca {authority} holds no certificate authority: {error.strerror or error}") from None
    return context


def _explain_certificate(error: ssl.SSLCertVerificationError, server: str, authority: Path | None) -> str:
    code = error.verify_code
    if code == EXPIRED:
        return (
            f"the certificate of {server} has expired; its coordinator renews it with `polyfed keys new certificate`"
        )
    if code == NOT_YET_VALID:
        return f"the certificate of {server} is not valid yet; compare the clocks of both machines"
    if code in OTHER_HOST:
        host = parse_address(server)[0]
        return (
            f"the certificate of {server} is for other hosts than {host}; its coordinator adds it with "
            f"`polyfed keys new certificate --host {host}`"
        )
    if code in OTHER_AUTHORITY:
        return f"the certificate of {server} is not signed by the authority in {authority}"
    return f"the certificate of {server} is invalid: {error.verify_message}"
