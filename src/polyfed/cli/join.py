"""`polyfed join`: one site of a real federation."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.output import say
from polyfed.cli.serve import BARE
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.deploy.site import Bring


def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the coordinator listens.")],
    state: Annotated[Path, typer.Option(metavar="FOLDER", help="Where this site keeps its memory and its record.")],
    data: Annotated[Path | None, typer.Option(metavar="FOLDER", help="This site's own data.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME_OR_FILE", help="A model of the zoo, or a Python file with build().")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="This site's private key.")] = None,
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The coordinator's certificate authority.")] = None,
    name: Annotated[str | None, typer.Option(help="This site's name; needed with --insecure only.")] = None,
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD,...",
            help="Give away these fields and nothing else; 'evaluation' is how many test samples were right, 'loss' "
            "the training loss.",
        ),
    ] = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="A module or file of this machine with methods or models.")
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="Instead of own data and model: a share of the config's dataset.")
    ] = False,
    limit: Annotated[str, typer.Option(metavar="SIZE", help="The largest message that this site takes.")] = "4GB",
    port: Annotated[int, typer.Option(min=0, max=65535, help="A local port for the SuperNode; 0: any.")] = 0,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for trying out only.")] = False,
) -> None:
    """Take part in a federation with data and a model that stay here."""
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.join_errors import check_server, standing

    if rehearsal != (data is None and model is None) or (data is None) != (model is None):
        raise InputError("give both --data and --model, or --rehearsal and neither of them")
    if insecure != (key is None and ca is None) or (key is None) != (ca is None):
        raise InputError("give both --key and --ca, or --insecure and neither of them")
    if insecure != (name is not None):
        raise InputError("--name goes with --insecure; otherwise the site's key tells its name")
    prefix = BARE if insecure else ""

    def tell(sentence: str) -> None:
        say(f"{prefix}{sentence}")

    _wait_for(server, tell)
    check_server(server, ca)
    if ca is not None and key is not None:
        name = standing(server, ca, key)
    from polyfed.config import size_in_bytes
    from polyfed.deploy.site import Site
    from polyfed.deploy.site_process import Node
    from polyfed.federation.user_imports import import_user_modules

    import_user_modules(imports or [])
    bring = _bring(str(name), data, model, state)
    try:
        largest = size_in_bytes(limit)
    except ValueError as error:
        raise InputError(f"--limit is '{limit}': {error}") from None
    places = [place for place in (data, None if model is None else Path(model)) if place is not None]
    fields = None if allow is None else [field.strip() for field in allow.split(",") if field.strip()]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    site = Site(str(name), state, bring, fields, limit=largest, places=places)
    with Node(site, server, tell, key, ca, port) as node:
        tell(f"site {name} waits for {server}; what leaves is written to {state}; look with: polyfed inspect {state}")
        node.stay()


def _wait_for(server: str, tell: Callable[[str], None]) -> None:
    """A site may be there before its coordinator."""
    from polyfed.deploy.join_errors import address
    from polyfed.deploy.processes import listens

    host, port = address(server)
    if not listens(host, port):
        tell(f"no coordinator answers at {server} yet; waiting for it")
        while not listens(host, port):
            time.sleep(1.0)


def _bring(name: str, data: Path | None, model: str | None, state: Path) -> Bring:
    from polyfed.deploy.site_process import own, rehearsal

    if data is None or model is None:
        return rehearsal(name)
    if not data.exists():
        raise InputError(f"--data {data}: there is no such folder")
    if model.endswith(".py") and not Path(model).is_file():
        raise InputError(f"--model {model}: there is no such file")
    return own(name, data, model, state)


COMMANDS: dict[str, Callable[..., None]] = {"join": join}
