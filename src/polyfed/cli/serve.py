"""`polyfed serve`: the coordinator of a real federation."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.keys import HOME
from polyfed.cli.output import put, say
from polyfed.cli.run import CONFIG, JSON, OVERRIDES, QUIET, crash_recorded, put_outcome

if TYPE_CHECKING:
    from polyfed.config import Config
    from polyfed.runs.folder import RunFolder
    from polyfed.runs.records import Result

BARE = "INSECURE (no TLS, no keys): "  # before every line, where going without was asked for


def serve(
    config: CONFIG,
    overrides: OVERRIDES = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/NAME")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all of them.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port that sites connect to; 0: any.")] = 8443,
    home: Annotated[Path, typer.Option(help="The coordinator's folder: certificates, sites, database, logs.")] = HOME,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for trying out only.")] = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Coordinate a federation of sites that joined, and run an experiment over them."""
    from polyfed.config import parse
    from polyfed.config.sources import apply_overrides, read_source
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed import api
    from polyfed.deploy.coordinator import Coordinator
    from polyfed.deploy.site_registry import Registry
    from polyfed.runs.folder import RunFolder

    chosen = parse(apply_overrides(read_source(config), overrides or []), config)
    if not insecure:
        chosen = with_sites(chosen, list(Registry(home).sites()), RunFolder(api.run_path(chosen, out)), home)
    chosen = chosen.model_copy(update={"engine": chosen.engine.model_copy(update={"name": "flower"})})
    opened = api.open_run(chosen, out)
    folder, result = opened.folder, opened.result
    prefix = BARE if insecure else ""

    def tell(sentence: str) -> None:
        say(f"{prefix}{sentence}")

    if result is not None:
        tell(f"{folder.path} is finished: nothing to do")
    else:
        if opened.exists:
            tell(f"{folder.path} exists: going on from its last checkpoint")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # before the first round, too, it ends politely
        with Coordinator(home, tell, host, port, not insecure) as coordinator:
            _show_how_to_join(tell, chosen, host, coordinator.gateway.port, home, insecure)
            result = _run(coordinator.run, chosen, folder, quiet, prefix)
    put_outcome(result, folder.path, json)


def with_sites(config: Config, admitted: list[str], folder: RunFolder, home: Path) -> Config:
    """The config over the sites that are admitted, or over those of them that it names."""
    from polyfed import api
    from polyfed.config import parse
    from polyfed.errors import InputError, nearest

    names = config.names
    if names is None and folder.exists():
        names = api.read_config(folder).names  # a run that goes on has the sites it began with
    if names is None:
        names = admitted
    for name in names:
        if name not in admitted:
            raise InputError(f"site '{name}' is not admitted in {home}; {nearest(name, admitted)}")
    if not names:
        raise InputError(f"no site is admitted in {home}; admit one with: polyfed sites admit NAME FILE.pub")
    return parse({**config.to_dict(), "names": names, "clients": len(names)})


def _show_how_to_join(
    tell: Callable[[str], None], config: Config, host: str, port: int, home: Path, insecure: bool
) -> None:
    """What a site must run."""
    reached = "THIS-HOST" if host in ("0.0.0.0", "::") else host
    brings = "--data FOLDER --model NAME_OR_FILE" if config.data.dataset == "sites" else "--rehearsal"
    known = "--insecure --name NAME" if insecure else f"--key NAME.key --ca {home / 'ca.crt'}"
    tell(f"listening on {host}:{port} for {', '.join(config.client_names)}; each site runs:")
    tell(f"polyfed join --server {reached}:{port} {known} {brings} --state FOLDER")


def _run(run: Callable[..., Result], config: Config, folder: RunFolder, quiet: bool, prefix: str) -> Result:
    from polyfed.cli.progress import Board, Watcher

    with Board(quiet=quiet) as board, crash_recorded(folder.path):
        return run(config, folder, [Watcher(board, f"{prefix}{config.method['name']}")])


def export_app(
    config: CONFIG,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the app.")],
    overrides: OVERRIDES = None,
) -> None:
    """Write an ordinary Flower app of an experiment, for those who run Flower already: flwr run DIR."""
    from polyfed.config import parse
    from polyfed.config.sources import apply_overrides, read_source
    from polyfed.deploy.export import write_app

    for sentence in write_app(parse(apply_overrides(read_source(config), overrides or []), config), folder):
        put(sentence)


COMMANDS: dict[str, Callable[..., None]] = {"serve": serve, "export-app": export_app}
