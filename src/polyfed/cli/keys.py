"""`polyfed keys new`: a site's key pair, and a certificate authority for a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import put

app = typer.Typer(no_args_is_help=True, help="Keys and certificates of a real federation.")
new = typer.Typer(
    no_args_is_help=True, help="Make keys and certificates; what is there already is never overwritten."
)
app.add_typer(new, name="new")

HOME = Path("coordinator")  # where a coordinator keeps its files unless told otherwise
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", help="An address or name by which sites reach the coordinator. May be given several times."
    ),
]
Home = Annotated[Path, typer.Option(help="The coordinator's folder.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the coordinator's certificate is valid.")]


@new.command("site")
def site(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name: lower case, digits, - and _.")],
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path(),
) -> None:
    """A site's key pair: NAME.key stays at the site, NAME.pub goes to the coordinator."""
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.keys import new_node_key

    made = new_node_key(out, name)
    put(f"Wrote {made.private}: the site's own, it never leaves this machine.")
    put(f"Wrote {made.public}: for the coordinator, who lets it in with:")
    put(f"  polyfed sites admit {name} {made.public.name}")


@new.command("authority")
def authority(host: Hosts = None, home: Home = HOME, days: Days = 365) -> None:
    """A certificate authority of one's own, and the coordinator's certificate by it."""
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.keys import new_authority

    made = new_authority(home, host or [], days=days)
    put(f"Wrote {made.certificate}: for every site (--ca).")
    put(f"Wrote {made.key}, {made.server_certificate} and {made.server_key}: the coordinator's own.")
    if not host:
        put("The certificate is for this machine alone; with --host HOST sites on others can connect.")


@new.command("certificate")
def certificate(host: Hosts = None, home: Home = HOME, days: Days = 365) -> None:
    """A new certificate by the authority that is there, in the place of the old one; sites need nothing new.

    Without --host it is for the same hosts as the old one.
    """
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.allowlist import names_in
    from polyfed.deploy.keys import Authority, renew_server

    old = Authority(home).server_certificate
    hosts = host or (sorted(names_in(old)) if old.exists() else [])
    made = renew_server(home, hosts, days=days)
    named = ", ".join(sorted(names_in(made.server_certificate)))
    put(f"Wrote {made.server_certificate} and {made.server_key}, valid for {days} days, for {named}.")
