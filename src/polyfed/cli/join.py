"""`polyfed join`: one site of a real federation."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.output import print_message
from polyfed.cli.serve import INSECURE_PREFIX
from polyfed.devices import choose, names
from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.deploy.site_setup import SiteSetup


def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the coordinator.")],
    state: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for this site's state and its record of uploads.")
    ],
    data: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with this site's own data.")] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME_OR_FILE", help="Name of a model of the zoo, or a Python file with build()."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Trained weights that the model starts from: the folder of one exported model, or a .safetensors "
            "file.",
            show_default="none",
        ),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="This site's private key.")] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the coordinator's authority.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this site. Give it only with --insecure; otherwise the key decides.")
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD,...",
            help="Upload only these fields. 'evaluation' is the number of correct test predictions, 'loss' the "
            "training loss. Default: every field that the method declares.",
        ),
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import", help="Module or file of this machine with methods or models. May be given several times."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="YAML_OR_FILE",
            help="Take part only in runs that protect fields, such as 'prototypes: {epsilon: 8}'. May be given "
            "several times.",
        ),
    ] = None,
    max_releases: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Upload each field at most N times, in all runs on the data."),
    ] = None,
    max_evaluations: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Evaluate at most N models that are not this site's own, in all runs on the data.",
        ),
    ] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Refuse uploads beyond this epsilon at delta 1e-5, in all runs on the data, and uploads without "
            "protection.",
        ),
    ] = None,
    rehearsal: Annotated[
        bool,
        typer.Option("--rehearsal", help="Use a part of the config's dataset instead of own data and model."),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Train on auto, cpu, cuda or mps. The coordinator cannot choose it.")
    ] = "auto",
    limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of the largest message that this site accepts.")
    ] = "4GB",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Local port of the SuperNode. Use 0 to pick a free port.")
    ] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Run without TLS and keys. For tests on one machine only.")
    ] = False,
) -> None:
    """Join a federation as a site. Your data and model stay on this machine.

    Example: polyfed join --server fl.example.org:8443 --key north.key --ca ca.crt --data images/ --model tiny-cnn
    --state state/
    """
    from polyfed.deploy.processes import require_flower

    require_flower()
    from polyfed.deploy.join_errors import admitted_name, check_server
    from polyfed.deploy.site_demands import parse_demands

    if device not in names():
        raise InputError(f"--device is '{device}', which does not exist; {nearest(device, names())}")
    if rehearsal != (data is None and model is None) or (data is None) != (model is None):
        raise InputError("give both --data and --model, or --rehearsal and neither of them")
    if insecure != (key is None and ca is None) or (key is None) != (ca is None):
        raise InputError("give both --key and --ca, or --insecure and neither of them")
    if insecure != (name is not None):
        raise InputError("--name goes with --insecure; otherwise the site's key determines its name")
    limits = {"max_releases": max_releases, "max_evaluations": max_evaluations, "epsilon_budget": epsilon_budget}
    given = {name: value for name, value in limits.items() if value is not None}
    demands = parse_demands([*(require or []), *([json.dumps(given)] if given else [])])
    prefix = INSECURE_PREFIX if insecure else ""

    def notify(text: str) -> None:
        print_message(f"{prefix}{text}")

    _wait_for_coordinator(server, notify)
    check_server(server, ca)
    if ca is not None and key is not None:
        name = admitted_name(server, ca, key)
    from polyfed.config import size_in_bytes
    from polyfed.core import place as places
    from polyfed.deploy.folder_lock import exclusive
    from polyfed.deploy.site import Site
    from polyfed.deploy.site_process import SiteProcess
    from polyfed.federation.user_imports import import_user_modules

    import_user_modules(imports or [])
    setup = _setup(str(name), data, model, state, start)
    try:
        max_bytes = size_in_bytes(limit)
    except ValueError as error:
        raise InputError(f"--limit is '{limit}': {error}") from None
    fields = None if allow is None else [field.strip() for field in allow.split(",") if field.strip()]
    place = places.start(choose(device))
    own_code = [*(imports or []), *([model] if model is not None and model.endswith(".py") else [])]
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with exclusive(state, "site", "--state"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
        site = Site(
            str(name),
            state,
            setup,
            fields,
            limit=max_bytes,
            demands=demands,
            imports=own_code,
            notify=notify,
            place=place,
        )
        with SiteProcess(site, server, notify, key, ca, port) as process:
            notify(f"site {name} is ready for {server}; to see its uploads, run: polyfed inspect {state}")
            process.run_forever()


def _wait_for_coordinator(server: str, notify: Callable[[str], None]) -> None:
    """Wait until the coordinator's port is open. A site may be started before its coordinator."""
    from polyfed.deploy.join_errors import parse_address
    from polyfed.deploy.processes import is_listening

    host, port = parse_address(server)
    if not is_listening(host, port):
        notify(f"no coordinator answers at {server} yet; waiting for it")
        while not is_listening(host, port):
            time.sleep(1.0)


def _setup(name: str, data: Path | None, model: str | None, state: Path, start: Path | None) -> SiteSetup:
    from polyfed.config.start_files import weights_file
    from polyfed.deploy.site_setup import own_data_setup, rehearsal_setup

    if data is None or model is None:
        if start is not None:
            raise InputError("--start goes with --data and --model; a rehearsal has models.start in the config")
        return rehearsal_setup(name)
    if not data.exists():
        raise InputError(f"--data {data}: there is no such folder")
    if model.endswith(".py") and not Path(model).is_file():
        raise InputError(f"--model {model}: there is no such file")
    if start is not None:
        weights_file(start, name)
    return own_data_setup(name, data, model, state, start)


COMMANDS: dict[str, Callable[..., None]] = {"join": join}
