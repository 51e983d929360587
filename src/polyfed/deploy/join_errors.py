"""Why a site does not get in, one sentence for each reason, found out before Flower is started and after it ended."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import time
from pathlib import Path

import httpx

from polyfed.deploy.allowlist import STANDING, sentence
from polyfed.deploy.flower_protocol import (
    EXIT_KEY_INVALID,
    EXIT_NO_CONNECTION,
    EXIT_OTHER_VERSION,
    MAX_CLOCK_AHEAD,
    MAX_CLOCK_BEHIND,
    PUBLIC_KEY_HEADER,
    VERSION,
)
from polyfed.deploy.keys import public_key_of
from polyfed.errors import InputError, RunError

SECONDS = 10.0
# OpenSSL's numbers for what is wrong with a certificate
NOT_YET_VALID, EXPIRED = 9, 10
OTHER_AUTHORITY = frozenset({18, 19, 20, 21, 7})
OTHER_HOST = frozenset({62, 64})


def address(server: str) -> tuple[str, int]:
    """HOST:PORT taken apart."""
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--server is '{server}'; give HOST:PORT, such as fl.example.org:8443")
    return host, int(port)


def check_server(server: str, authority: Path | None) -> None:
    """Refuse, in one sentence, to speak to anybody but the coordinator that `authority` vouches for.

    Without an authority (`--insecure`) the coordinator must speak without TLS, too.
    """
    host, port = address(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if authority is None else trusting(authority)
    if authority is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise RunError(_about_certificate(error, server, authority)) from None
    except (ssl.SSLError, ConnectionResetError, TimeoutError) as error:
        if isinstance(error, TimeoutError) and not isinstance(error, ssl.SSLError):
            raise RunError(f"no coordinator answers at {server} within {SECONDS:g} seconds") from None
        if authority is not None:
            raise RunError(
                f"what answers at {server} does not speak TLS; this site speaks to nobody in the clear "
                "(both sides would need --insecure)"
            ) from None
        return
    except OSError as error:
        raise RunError(f"no coordinator answers at {server}: {error.strerror or error}") from None
    if authority is None:
        raise RunError(f"the coordinator at {server} speaks TLS; leave out --insecure and give --ca and --key")


def standing(server: str, authority: Path, key: Path) -> str:
    """The name under which the coordinator admits the key in a file; a sentence where it does not."""
    host, port = address(server)
    shown = f"[{host}]" if ":" in host else host
    named = base64.b64encode(public_key_of(key).encoded).decode()
    asked = time.time()
    try:
        answer = httpx.get(
            f"https://{shown}:{port}{STANDING.decode()}",
            headers={PUBLIC_KEY_HEADER.decode(): named},
            verify=trusting(authority),
            timeout=SECONDS,
            trust_env=False,
        )
        said = answer.json()
        found, name, clock = said["standing"], said["name"], float(said["time"])
    except httpx.HTTPError as error:
        raise RunError(f"the coordinator at {server} cannot be reached: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"what answers at {server} is no coordinator of polyfed (status {answer.status_code})"
        ) from None
    if found != "admitted":
        raise RunError(f"{server}: {sentence('revoked' if found == 'revoked' else 'unknown', str(name))}")
    _check_clocks(server, asked - clock, clock - time.time())
    return str(name)


def _check_clocks(server: str, ahead: float, behind: float) -> None:
    """Refuse where Flower would, which does not say why."""
    if ahead > MAX_CLOCK_AHEAD or behind > MAX_CLOCK_BEHIND:
        off = f"{ahead:.0f} seconds ahead of" if ahead > MAX_CLOCK_AHEAD else f"{behind:.0f} seconds behind"
        raise RunError(
            f"the clock of this machine is {off} that of {server}; at most {MAX_CLOCK_AHEAD:g} seconds ahead "
            f"or {MAX_CLOCK_BEHIND:g} behind are taken: set both clocks"
        )


def explain(code: int, output: str) -> str:
    """Why a SuperNode ended, from its exit code and what it printed; for what `standing` does not say already.

    Flower prints a number of its own for every reason; the process itself ends with 0 or 1.
    """
    printed = re.findall(r"Exit Code: (\d+)", output)
    reason = int(printed[-1]) if printed else 0
    if reason == EXIT_KEY_INVALID:
        return "Flower cannot read the site's key; make one with `polyfed keys new site NAME`"
    if reason == EXIT_OTHER_VERSION:
        return f"the coordinator uses another version of Flower; both sides need the same one ({VERSION})"
    if reason == EXIT_NO_CONNECTION:
        said = re.findall(r"\[code: \d+\] (.+)", output)
        return said[-1].strip() if said else "the connection to the coordinator could not be made"
    if code == 0:
        return "the SuperNode was told to end: the coordinator no longer lets this site in, or somebody stopped it"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"the SuperNode ended with code {reason or code}: {lines[-1][-300:] if lines else 'it said nothing'}"


def trusting(authority: Path) -> ssl.SSLContext:
    """TLS that believes certificates of one authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"--ca {authority} holds no certificate authority: {error.strerror or error}") from None
    return context


def _about_certificate(error: ssl.SSLCertVerificationError, server: str, authority: Path | None) -> str:
    found = error.verify_code
    if found == EXPIRED:
        return (
            f"the certificate of {server} has expired; its coordinator renews it with `polyfed keys new certificate`"
        )
    if found == NOT_YET_VALID:
        return f"the certificate of {server} is not valid yet; compare the clocks of both machines"
    if found in OTHER_HOST:
        host = address(server)[0]
        return (
            f"the certificate of {server} is for other hosts than {host}; its coordinator adds it with "
            f"`polyfed keys new certificate --host {host}`"
        )
    if found in OTHER_AUTHORITY:
        return f"the certificate of {server} is not signed by the authority in {authority}"
    return f"the certificate of {server} is refused: {error.verify_message}"
