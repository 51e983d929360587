"""`polyfed serve`: the coordinator of a real federation."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.arguments import CONFIG, JSON, OVERRIDES, QUIET, TRUST
from polyfed.cli.keys import HOME
from polyfed.cli.output import print_message, print_text
from polyfed.cli.run import print_outcome, record_crash

if TYPE_CHECKING:
    from polyfed.config import Config
    from polyfed.runs.folder import RunFolder
    from polyfed.runs.records import Result

INSECURE_PREFIX = "INSECURE (no TLS, no keys): "  # of every line, if --insecure is given


def serve(
    config: CONFIG,
    overrides: OVERRIDES = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 stands for all addresses of this machine.")
    ] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. Use 0 to pick a free port.")] = 8443,
    home: Annotated[
        Path, typer.Option(help="The coordinator's folder: certificates, registry of sites, database, logs.")
    ] = HOME,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Run without TLS and keys. For tests on one machine only.")
    ] = False,
    trust: TRUST = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Coordinate a federation: wait for its sites, and run an experiment over them.

    If the run folder already exists, resume from its last checkpoint.

    Example: polyfed serve federation.yaml
    """
    from polyfed.config import load_config
    from polyfed.config.trust import check_source_trusted
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed import api
    from polyfed.deploy.coordinator import Coordinator
    from polyfed.deploy.site_registry import SiteRegistry
    from polyfed.runs.folder import RunFolder

    chosen = load_config(config, overrides or [])
    check_source_trusted(chosen, config, trust=trust)
    if not insecure:
        chosen = with_sites(chosen, list(SiteRegistry(home).sites()), RunFolder(api.run_path(chosen, out)), home)
    chosen = chosen.model_copy(update={"engine": chosen.engine.model_copy(update={"name": "flower"})})
    opened = api.open_run(chosen, out, remedy="move the folder away")
    folder, result = opened.folder, opened.result
    prefix = INSECURE_PREFIX if insecure else ""

    def notify(text: str) -> None:
        print_message(f"{prefix}{text}")

    if result is not None:
        notify(f"{folder.path} has finished: nothing to do")
    else:
        if opened.exists:
            notify(f"{folder.path} exists: resuming from its last checkpoint")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, also before the first round
        with Coordinator(home, notify, host, port, not insecure) as coordinator:
            _print_join_command(notify, chosen, host, coordinator.gateway.port, home, insecure)
            result = _run(coordinator.run, chosen, folder, quiet, prefix)
    print_outcome(result, folder.path, json)


def with_sites(config: Config, admitted: list[str], folder: RunFolder, home: Path) -> Config:
    """Return the config with the names of its sites: those that it lists, or else all admitted ones."""
    from polyfed import api
    from polyfed.config import parse
    from polyfed.errors import InputError, nearest

    names = config.names
    if names is None and folder.exists():
        names = api.read_config(folder).names  # a resumed run keeps its sites
    if names is None:
        names = admitted
    for name in names:
        if name not in admitted:
            raise InputError(f"site '{name}' is not admitted in {home}; {nearest(name, admitted)}")
    if not names:
        raise InputError(f"no site is admitted in {home}; admit one with: polyfed sites admit NAME FILE.pub")
    return parse({**config.to_dict(), "names": names, "clients": len(names)})


def _print_join_command(
    notify: Callable[[str], None], config: Config, host: str, port: int, home: Path, insecure: bool
) -> None:
    """Print the command that each site has to run."""
    address = "THIS-HOST" if host in ("0.0.0.0", "::") else host
    data = "--data FOLDER --model NAME_OR_FILE" if config.data.dataset == "sites" else "--rehearsal"
    credentials = "--insecure --name NAME" if insecure else f"--key NAME.key --ca {home / 'ca.crt'}"
    notify(f"listening on {host}:{port} for {', '.join(config.client_names)}; each site runs:")
    notify(f"polyfed join --server {address}:{port} {credentials} {data} --state FOLDER")


def _run(run: Callable[..., Result], config: Config, folder: RunFolder, quiet: bool, prefix: str) -> Result:
    from polyfed.progress import ProgressBoard, ProgressObserver

    with ProgressBoard(quiet=quiet) as board, record_crash(folder.path):
        return run(config, folder, [ProgressObserver(board, f"{prefix}{config.method['name']}")])


def export_app(
    config: CONFIG,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the app.")],
    overrides: OVERRIDES = None,
    trust: TRUST = False,
) -> None:
    """Export an experiment as an ordinary Flower app, for users who run Flower themselves.

    Example: polyfed export-app quickstart app/, then flwr run app/
    """
    from polyfed.config import load_config
    from polyfed.config.trust import check_source_trusted
    from polyfed.deploy.export import write_app

    chosen = load_config(config, overrides or [])
    check_source_trusted(chosen, config, trust=trust)
    for line in write_app(chosen, folder):
        print_text(line)


COMMANDS: dict[str, Callable[..., None]] = {"serve": serve, "export-app": export_app}
