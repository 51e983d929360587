"""Conversion between messages of polyfed and of Flower: the header becomes a text, every block a flat byte array."""

from __future__ import annotations

import json
from typing import Any

from polyfed.deploy.flower_adapter import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from polyfed.engines.flower import SiteMessage
from polyfed.errors import PayloadError

MESSAGE_TYPE = "query.polyfed"  # Flower's types are train, evaluate and query, each with an optional name after a dot
RAW_BYTES = "polyfed"  # serialisation type of an array that holds a block


def to_record_dict(message: SiteMessage) -> RecordDict:
    """Return the content of a Flower message that carries a message of polyfed."""
    arrays = {name: Array("uint8", (len(block),), RAW_BYTES, bytes(block)) for name, block in message.blocks.items()}
    return RecordDict({"head": ConfigRecord({"json": json.dumps(message.header)}), "blocks": ArrayRecord(arrays)})


def from_flower_message(message: Message) -> SiteMessage:
    """Return the message of polyfed in a Flower message. Raise `PayloadError` if it holds anything else."""
    try:
        text = message.content.config_records["head"]["json"]
        header: Any = json.loads(text) if isinstance(text, str) else None
        arrays = message.content.array_records["blocks"]
        blocks = {str(name): array.data for name, array in arrays.items()}
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise PayloadError(f"not a message of polyfed: {type(error).__name__} {error}") from None
    if not isinstance(header, dict) or any(not isinstance(block, bytes) for block in blocks.values()):
        raise PayloadError("not a message of polyfed: its header is not a JSON object, or its blocks are not bytes")
    return SiteMessage(header, blocks)
