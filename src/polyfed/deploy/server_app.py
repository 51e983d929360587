"""The ServerApp of an exported app, for users who run Flower themselves. `polyfed serve` does not use it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from polyfed.deploy.flower_adapter import Context, Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the app's config over the nodes of the grid."""
    from polyfed.config import parse
    from polyfed.deploy.site_run import run_over_sites
    from polyfed.runs.folder import RunFolder

    logger = logging.getLogger("flwr")
    config = parse(json.loads(str(context.run_config["polyfed"])), "the app's config")
    folder = RunFolder(Path(str(context.run_config["out"])).expanduser())
    result = run_over_sites(grid, config, folder, None, lambda: None, logger.info)
    logger.info("finished: %s, state_hash %s", folder.path, result["state_hash"])
