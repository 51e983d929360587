"""Conversion between messages of polyfed and of Flower: the header becomes a text, every block bytes.

Flower sends every record, array and piece of an array by a request of its own. Small blocks therefore travel in the
record of the header: three requests for a message instead of six or more. Large blocks become arrays, which Flower
sends in pieces.
"""

from __future__ import annotations

import json
from typing import Any

from polyfed.deploy.flower_adapter import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from polyfed.engines.flower import SiteMessage
from polyfed.errors import PayloadError

MESSAGE_TYPE = "query.polyfed"  # Flower's types are train, evaluate and query, each with an optional name after a dot
INLINE = "block."  # before the names of blocks in the record of the header
INLINE_BYTES = 1 << 20  # of all blocks in it
RAW_BYTES = "polyfed"  # serialisation type of an array that holds a block


def to_record_dict(message: SiteMessage) -> RecordDict:
    """Return the content of a Flower message that carries a message of polyfed."""
    head: dict[str, str | bytes] = {"json": json.dumps(message.header)}
    arrays: dict[str, Array] = {}
    left = INLINE_BYTES
    for name, block in message.blocks.items():
        if len(block) <= left:
            left -= len(block)
            head[f"{INLINE}{name}"] = bytes(block)
        else:
            arrays[name] = Array("uint8", (len(block),), RAW_BYTES, bytes(block))
    content = RecordDict({"head": ConfigRecord(head)})  # type: ignore[arg-type]
    if arrays:
        content["blocks"] = ArrayRecord(arrays)
    return content


def from_flower_message(message: Message) -> SiteMessage:
    """Return the message of polyfed in a Flower message. Raise `PayloadError` if it holds anything else."""
    try:
        head = dict(message.content.config_records["head"])
        text = head.pop("json")
        header: Any = json.loads(text) if isinstance(text, str) else None
        arrays = message.content.array_records.get("blocks")
        blocks: dict[str, Any] = {str(name): array.data for name, array in arrays.items()} if arrays else {}
        inline = {name.removeprefix(INLINE): block for name, block in head.items() if name.startswith(INLINE)}
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise PayloadError(f"not a message of polyfed: {type(error).__name__} {error}") from None
    if len(inline) < len(head) or inline.keys() & blocks.keys():
        raise PayloadError("not a message of polyfed: it has fields that are no blocks, or a block twice")
    blocks |= inline
    if not isinstance(header, dict) or any(not isinstance(block, bytes) for block in blocks.values()):
        raise PayloadError("not a message of polyfed: its header is not a JSON object, or its blocks are not bytes")
    return SiteMessage(header, blocks)
