"""`polyfed inspect`: what left each client, from the record that the run kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed.cli.show import put, put_json, put_table


@dataclass
class Left:
    """One field of one step's replies, over a run."""

    step: str
    name: str
    messages: int = 0
    bytes: int = 0
    clients: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "field": self.name,
            "shapes": sorted(self.shapes),
            "messages": self.messages,
            "clients": len(self.clients),
            "bytes": self.bytes,
            "protected": False,
        }


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    client: Annotated[str | None, typer.Option(help="Only what left this client.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What left each client: field, shape, bytes, protected or not."""
    from polyfed.catalogue import catalogue
    from polyfed.errors import InputError, nearest
    from polyfed.runs.folder import RunFolder

    run = RunFolder(folder)
    config = run.config()
    last_of_round = _records(run.events())
    known = {str(item["client"]) for item in last_of_round}
    if client is not None and client not in {str(k) for k in range(config["clients"])}:
        raise InputError(f"there is no client called '{client}' in {folder}; {nearest(client, known)}")
    chosen = [item for item in last_of_round if client is None or item["client"] == client]
    fields = summed(chosen)
    method = catalogue().get(config["method"]["name"])
    if json:
        put_json({"method": config["method"]["name"], "client": client, "left": [f.to_json() for f in fields]})
        return
    who = f"client {client}" if client is not None else f"{len({i['client'] for i in chosen})} clients"
    put(f"{config['method']['name']}: what left {who}" + (f": {method.sends_up}." if method else "."))
    if not fields:
        put("Nothing left.")
        return
    put_table(
        ["step", "field", "shape", "messages", "clients", "bytes", "protected"],
        [[f.step, f.name, _shapes(f.shapes), f.messages, len(f.clients), f"{f.bytes:,}", "no"] for f in fields],
        right=(3, 4, 5),
    )
    put("No field was clipped or noised: whoever receives these messages sees these values.")


def summed(records: Iterable[Mapping[str, Any]]) -> list[Left]:
    """By step and field, in the order in which they first left."""
    found: dict[tuple[str, str], Left] = {}
    for record in records:
        for name, size in record["fields"].items():
            left = found.setdefault((record["step"], name), Left(record["step"], name))
            left.messages += 1
            left.bytes += size
            left.clients.add(str(record["client"]))
            left.shapes.add(record.get("shapes", {}).get(name, ""))
    return list(found.values())


def _records(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What left, once: a round that was done again after a resume counts as it was the last time."""
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    finished: set[int] = set()
    for event in events:
        if event["event"] == "left":
            if event["round"] in finished:
                finished.discard(event["round"])
                by_round[event["round"]] = []
            by_round.setdefault(event["round"], []).append(event)
        elif event["event"] == "round":
            finished.add(event["round"])
    return [event for number in sorted(by_round) for event in by_round[number]]


def _shapes(shapes: set[str]) -> str:
    some = sorted(shapes, key=lambda text: (len(text), text))
    return some[0] if len(some) == 1 else f"{some[0]} to {some[-1]}"


COMMANDS = {"inspect": inspect}
