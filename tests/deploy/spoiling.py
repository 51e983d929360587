"""A site that joins as any other and damages its payloads in runs called `spoiled`: `spoiling.py --server ...`."""

from __future__ import annotations

import sys
from dataclasses import replace

from polyfed.cli.app import main
from polyfed.deploy import site
from polyfed.engines.flower import Parcel

answered = site.Site.handle


def spoiled(self: site.Site, parcel: Parcel) -> Parcel:
    reply = answered(self, parcel)
    frame = reply.blocks.get("frame")
    if frame is None or not str(parcel.head.get("run")).startswith("spoiled"):
        return reply
    return replace(reply, blocks={"frame": frame[:-1] + bytes([frame[-1] ^ 1])})


if __name__ == "__main__":
    site.Site.handle = spoiled  # type: ignore[method-assign]
    sys.exit(main(["join", *sys.argv[1:]]))
