"""Parcels as Flower's messages: the head as one text, every block as one flat array of bytes."""

from __future__ import annotations

import json
from typing import Any

from polyfed.deploy.flower_adapter import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from polyfed.engines.flower import Parcel
from polyfed.errors import PayloadError

KIND = "query.polyfed"  # Flower's own kinds are train, evaluate and query, each with a name behind the dot
AS_IS = "polyfed"  # how the bytes of an array are to be read: as they are


def to_record(parcel: Parcel) -> RecordDict:
    arrays = {name: Array("uint8", (len(block),), AS_IS, bytes(block)) for name, block in parcel.blocks.items()}
    return RecordDict({"head": ConfigRecord({"json": json.dumps(parcel.head)}), "blocks": ArrayRecord(arrays)})


def from_message(message: Message) -> Parcel:
    """The parcel in a message; anything else is refused."""
    try:
        text = message.content.config_records["head"]["json"]
        head: Any = json.loads(text) if isinstance(text, str) else None
        arrays = message.content.array_records["blocks"]
        blocks = {str(name): array.data for name, array in arrays.items()}
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise PayloadError(f"the message is not one of polyfed: {type(error).__name__} {error}") from None
    if not isinstance(head, dict) or any(not isinstance(block, bytes) for block in blocks.values()):
        raise PayloadError("the message is not one of polyfed: its head is no JSON object, or its blocks no bytes")
    return Parcel(head, blocks)
