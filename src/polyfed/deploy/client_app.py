"""The ClientApp of an exported app, for a Flower that somebody else runs. `polyfed join` does without it.

A SuperNode's `--node-config` says who the site is: `polyfed-name`, `polyfed-state`, and `polyfed-data` with
`polyfed-model`; without these two it rehearses. Flower starts a process for every message, so the site is made anew
from its folder each time, unless the process stays (as in Flower's simulation).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfed.deploy.site import Site
from polyfed.deploy.flower_adapter import ClientApp, Context, Message

app = ClientApp()
_sites: dict[tuple[str, Path], Site] = {}


@app.query("polyfed")
def answer(message: Message, context: Context) -> Message:
    """The site's answer to one message."""
    from polyfed.deploy.messages import from_message, to_record

    return Message(to_record(_site(context).handle(from_message(message))), reply_to=message)


def _site(context: Context) -> Site:
    from polyfed.config import parse
    from polyfed.deploy.site import Site
    from polyfed.deploy.site_process import own, rehearsal

    told = context.node_config
    names = parse(json.loads(str(context.run_config["polyfed"])), "the app's config").client_names
    name = str(told.get("polyfed-name") or names[int(told["partition-id"])])
    flower = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
    state = Path(str(told.get("polyfed-state") or flower / "polyfed" / name)).expanduser()
    data, model = told.get("polyfed-data"), told.get("polyfed-model")
    if (name, state) not in _sites:
        bring = own(name, Path(str(data)), str(model), state) if data and model else rehearsal(name)
        places = [Path(str(given)) for given in (data, model) if given]
        _sites[name, state] = Site(name, state, bring, places=places)
    return _sites[name, state]
