"""`polyfed keys new`: a site's key pair, and a certificate authority for a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_text

app = typer.Typer(no_args_is_help=True, help="Create the keys and certificates of a real federation.")
new = typer.Typer(no_args_is_help=True, help="Create keys and certificates. Keys are never overwritten.")
app.add_typer(new, name="new")

HOME = Path("coordinator")  # default folder of a coordinator
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Address or name by which sites reach the coordinator. May be given several times."),
]
Home = Annotated[Path, typer.Option(help="The coordinator's folder.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Days for which the coordinator's certificate is valid.")]


@new.command("site")
def site(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The site's name: lower-case letters, digits, - and _.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path(),
) -> None:
    """Create a site's key pair: NAME.key stays at the site, NAME.pub goes to the coordinator.

    Example: polyfed keys new site north
    """
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.keys import create_site_key

    files = create_site_key(out, name)
    print_text(f"Wrote {files.private}: the site's private key. Keep it on this machine.")
    print_text(f"Wrote {files.public}: for the coordinator, which admits the site with:")
    print_text(f"  polyfed sites admit {name} {files.public.name}")


@new.command("authority")
def authority(host: Hosts = None, home: Home = HOME, days: Days = 365) -> None:
    """Create a certificate authority, and a coordinator's certificate signed by it.

    Example: polyfed keys new authority --host fl.example.org
    """
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.certificates import create_authority

    files = create_authority(home, host or [], days=days)
    print_text(f"Wrote {files.authority}: for every site (--ca).")
    print_text(f"Wrote {files.authority_key}, {files.server} and {files.server_key}: for the coordinator alone.")
    if not host:
        print_text("The certificate is valid for this machine only; add --host HOST for sites on other machines.")


@new.command("certificate")
def certificate(host: Hosts = None, home: Home = HOME, days: Days = 365) -> None:
    """Replace the coordinator's certificate by a new one of the same authority. Sites need no new file.

    Without --host, the new certificate is valid for the same hosts as the old one.

    Example: polyfed keys new certificate
    """
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.certificates import CertificateFolder, certificate_hosts, renew_server

    old = CertificateFolder(home).server
    hosts = host or (sorted(certificate_hosts(old)) if old.exists() else [])
    files = renew_server(home, hosts, days=days)
    valid_hosts = ", ".join(sorted(certificate_hosts(files.server)))
    print_text(f"Wrote {files.server} and {files.server_key}, valid for {days} days, for {valid_hosts}.")
