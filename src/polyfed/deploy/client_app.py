"""The ClientApp of an exported app, for users who run Flower themselves. `polyfed join` does not use it.

The `--node-config` of a SuperNode describes the site: `polyfed-name`, `polyfed-state`, and `polyfed-data` with
`polyfed-model`. Without the last two the site rehearses. Flower starts a process for every message, so the site is
loaded from its folder each time, unless the process keeps running (as in Flower's simulation).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from polyfed.deploy.flower_adapter import ClientApp, Context, Message

if TYPE_CHECKING:
    from polyfed.deploy.site import Site

app = ClientApp()
_sites: dict[tuple[str, Path], Site] = {}


@app.query("polyfed")
def answer(message: Message, context: Context) -> Message:
    """Return the site's reply to one message."""
    from polyfed.deploy.messages import from_flower_message, to_record_dict

    return Message(to_record_dict(_site(context).handle(from_flower_message(message))), reply_to=message)


def _site(context: Context) -> Site:
    from polyfed.config import parse
    from polyfed.deploy.site import Site
    from polyfed.deploy.site_setup import own_data_setup, rehearsal_setup

    settings = context.node_config
    names = parse(json.loads(str(context.run_config["polyfed"])), "the app's config").client_names
    name = str(settings.get("polyfed-name") or names[int(settings["partition-id"])])
    flower_home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
    state = Path(str(settings.get("polyfed-state") or flower_home / "polyfed" / name)).expanduser()
    data, model = settings.get("polyfed-data"), settings.get("polyfed-model")
    if (name, state) not in _sites:
        own_data = bool(data and model)
        setup = own_data_setup(name, Path(str(data)), str(model), state) if own_data else rehearsal_setup(name)
        _sites[name, state] = Site(name, state, setup)
    return _sites[name, state]
