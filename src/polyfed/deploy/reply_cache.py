"""A site's last reply on disk. A repeated message gets the same bytes, also after a restart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from polyfed.engines.flower import SiteMessage
from polyfed.runs.atomic_files import write_atomically

FILE = "last-reply.polyfed"


@dataclass(frozen=True)
class ReplyCache:
    """The last reply of a site in one run, in the folder of that run."""

    folder: Path

    def save(self, reply: SiteMessage) -> None:
        write_atomically(self.folder / FILE, to_bytes(reply))

    def load(self, digest: str) -> SiteMessage | None:
        """Return the last reply if it answers the message with this digest."""
        try:
            with (self.folder / FILE).open("rb") as file:  # the header first: the rest may be large
                length = file.read(8)
                header = file.read(int.from_bytes(length, "little"))
                if json.loads(header)["head"]["to"] != digest:
                    return None
                return from_bytes(b"".join((length, header, file.read())))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def to_bytes(message: SiteMessage) -> bytes:
    """Serialise a message: the length of a JSON header, the header with the sizes of all blocks, the blocks."""
    sizes = {name: len(block) for name, block in message.blocks.items()}
    header = json.dumps({"head": message.header, "sizes": sizes}).encode()
    return b"".join((len(header).to_bytes(8, "little"), header, *message.blocks.values()))


def from_bytes(data: bytes) -> SiteMessage:
    """Parse a message that `to_bytes` wrote."""
    end = 8 + int.from_bytes(data[:8], "little")
    content = json.loads(data[8:end])
    blocks = {}
    for name, size in content["sizes"].items():
        blocks[name] = data[end : end + size]
        end += size
    return SiteMessage(content["head"], blocks)
