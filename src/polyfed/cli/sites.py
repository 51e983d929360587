"""`polyfed sites`: list, admit and revoke the sites of a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.keys import HOME, Home
from polyfed.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from polyfed.deploy.site_registry import SiteRegistry

app = typer.Typer(help="List, admit and revoke the sites of a coordinator.")


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show()


@app.command("list")
def show(
    home: Home = HOME,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List all sites with their status and, while a coordinator runs, whether they are online.

    Example: polyfed sites list --json
    """
    registry = _registry(home)
    from polyfed.deploy.keys import parse_public_key

    online = _online_keys(home)
    rows = [
        (
            entry.name,
            "revoked" if entry.revoked else "admitted",
            None if online is None else parse_public_key(entry.key).pem in online,
            entry.key,
        )
        for entry in registry.entries()
    ]
    if json:
        print_json([dict(zip(("name", "standing", "online", "key"), row, strict=True)) for row in rows])
    elif not rows:
        print_text(f"No site is admitted in {home}; admit one with: polyfed sites admit NAME FILE.pub")
    else:
        texts = {None: "no coordinator runs", True: "yes", False: "no"}
        print_table(
            ["site", "status", "online", "key ends in"],
            [(name, status, texts[is_online], key[-12:]) for name, status, is_online, key in rows],
        )


@app.command("admit")
def admit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site from now on.")],
    key: Annotated[Path, typer.Argument(metavar="FILE", help="The site's public key (.pub).")],
    home: Home = HOME,
) -> None:
    """Admit a site by its public key.

    Example: polyfed sites admit north north.pub
    """
    registry = _registry(home)
    from polyfed.deploy.keys import read_public_key

    registry.admit(name, read_public_key(key))
    print_text(f"Site {name} is admitted{_apply(home, registry)}.")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    home: Home = HOME,
) -> None:
    """Refuse a site's key from now on, also in a running coordinator. This cannot be undone for that key.

    Example: polyfed sites revoke north
    """
    registry = _registry(home)
    registry.revoke(name)
    print_text(f"Site {name} is revoked{_apply(home, registry)}.")


def _registry(home: Path) -> SiteRegistry:
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.site_registry import SiteRegistry

    return SiteRegistry(home)


def _apply(home: Path, registry: SiteRegistry) -> str:
    """Update a running coordinator. Return a text that says so."""
    from polyfed.deploy.site_registry import running_superlink

    superlink = running_superlink(home)
    if superlink is None:
        return ""
    from polyfed.deploy.superlink_control import ControlClient

    address, authority = superlink
    with ControlClient(address, authority) as control:
        registry.apply(control)
    return ", and the running coordinator has been updated"


def _online_keys(home: Path) -> set[bytes] | None:
    """Return the keys of the sites that are online, or None if no coordinator runs."""
    from polyfed.deploy.site_registry import running_superlink

    superlink = running_superlink(home)
    if superlink is None:
        return None
    from polyfed.deploy.superlink_control import ControlClient

    address, authority = superlink
    with ControlClient(address, authority) as control:
        return {node.public_key for node in control.nodes() if node.online}
