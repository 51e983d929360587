"""A site that joins normally: `damaging_site.py --server ...`.

It damages its payloads in runs called `damaged`, and its masked replies in the first round of runs called `masked`.
In runs called `slow` it takes longer than the gateway waits for a sign of life.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from polyfed.cli.app import main
from polyfed.deploy import site
from polyfed.deploy.site_traffic import SILENT_SECONDS
from polyfed.engines.flower import SiteMessage

original_handle = site.Site.handle


def handle(self: site.Site, message: SiteMessage) -> SiteMessage:
    if str(message.header.get("run")).startswith("slow") and message.header.get("do") == "call":
        time.sleep(1.5 * SILENT_SECONDS)
    reply = original_handle(self, message)
    frame = reply.blocks.get("frame")
    run, call = str(message.header.get("run")), message.header.get("call", {})
    masked = run.startswith("masked") and call.get("round") == 1 and call.get("steps") == ["masked_train"]
    if frame is None or not (run.startswith("damaged") or masked):
        return reply
    return replace(reply, blocks={"frame": frame[:-1] + bytes([frame[-1] ^ 1])})


if __name__ == "__main__":
    site.Site.handle = handle  # type: ignore[method-assign]
    sys.exit(main(["join", *sys.argv[1:]]))
