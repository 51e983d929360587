"""`polyfed sites`: whom a coordinator lets in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.keys import HOME, Home
from polyfed.cli.output import put, put_json, put_table

if TYPE_CHECKING:
    from polyfed.deploy.site_registry import Registry

app = typer.Typer(help="The sites of a coordinator: list, admit, revoke.")


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show()


@app.command("list")
def show(
    home: Home = HOME,
    json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False,
) -> None:
    """Every site with its standing; while a coordinator runs, also whether it is online."""
    registry = _registry(home)
    from polyfed.deploy.keys import public_key

    online = _online(home)
    rows = [
        (
            entry.name,
            "revoked" if entry.revoked else "admitted",
            None if online is None else public_key(entry.key).encoded in online,
            entry.key,
        )
        for entry in registry.entries()
    ]
    if json:
        put_json([dict(zip(("name", "standing", "online", "key"), row, strict=True)) for row in rows])
    elif not rows:
        put(f"No site is admitted in {home}; admit one with: polyfed sites admit NAME FILE.pub")
    else:
        words = {None: "no coordinator runs", True: "yes", False: "no"}
        put_table(
            ["site", "standing", "online", "key ends in"],
            [(name, standing, words[here], key[-12:]) for name, standing, here, key in rows],
        )


@app.command("admit")
def admit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that the site has from now on.")],
    key: Annotated[Path, typer.Argument(metavar="FILE", help="The site's public key (.pub).")],
    home: Home = HOME,
) -> None:
    """Let a site in."""
    registry = _registry(home)
    from polyfed.deploy.keys import read_public_key

    registry.admit(name, read_public_key(key))
    put(f"Site {name} is admitted{_applied(home, registry)}.")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    home: Home = HOME,
) -> None:
    """Refuse a site's key from now on, also while a coordinator runs. This cannot be undone for that key."""
    registry = _registry(home)
    registry.revoke(name)
    put(f"Site {name} is revoked{_applied(home, registry)}.")


def _registry(home: Path) -> Registry:
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.site_registry import Registry

    return Registry(home)


def _applied(home: Path, registry: Registry) -> str:
    """Tell the coordinator that runs, if one does."""
    from polyfed.deploy.control import Control
    from polyfed.deploy.site_registry import running

    found = running(home)
    if found is None:
        return ""
    address, authority = found
    with Control(address, authority) as control:
        registry.apply(control)
    return ", and the coordinator that runs knows it"


def _online(home: Path) -> set[bytes] | None:
    """The keys of the sites that are online; None if no coordinator runs."""
    from polyfed.deploy.control import Control
    from polyfed.deploy.site_registry import running

    found = running(home)
    if found is None:
        return None
    address, authority = found
    with Control(address, authority) as control:
        return {node.public_key for node in control.nodes() if node.online}
