"""`polyfed inspect`: what left each client, from the record that the run kept, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from polyfed.report.run_record import RunRecord
    from polyfed.report.uploads import UploadSummary


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or the folder of a site.")],
    client: Annotated[str | None, typer.Option(help="Only what left this client.")] = None,
    each: Annotated[bool, typer.Option("--each", help="A line for every client.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What left each client: field, shape, bytes, protected or not."""
    from polyfed import catalogue
    from polyfed.errors import InputError, nearest
    from polyfed.report.run_record import read
    from polyfed.report.uploads import uploads_of_client

    at = _of_site(folder)
    run = read(folder if at is None else at)
    known = {str(k) for k in range(int(run.config.get("clients", 0)))} | {
        c for left in run.uploads for c in left.bytes_by_client
    }
    if client is not None and client not in known:
        raise InputError(f"there is no client called '{client}' in {folder}; {nearest(client, known)}")
    left = run.uploads if client is None else uploads_of_client(run.uploads, client)
    listed = catalogue.methods().get(run.method)
    if json:
        print_json(_as_json(run, left, client))
        return
    if at is not None:
        print_text(f"{run.method}: what left this site in its newest run, {at.name}.")
    else:
        senders = {name for item in left for name in item.bytes_by_client}
        who = f"client {client}" if client is not None else f"{len(senders)} clients"
        done = f"{len(run.rounds)} of {run.planned_rounds} rounds ({run.state})"
        print_text(f"{run.method} on {run.dataset}: what left {who} in {done}.")
    if listed is not None:
        print_text(f"By design a client of this method sends: {listed.sends_up}.")
    if not left:
        print_text("Nothing left.")
        return
    print_table(
        ["step", "field", "shape", "messages", "clients", "bytes", "protected"],
        [
            [i.step, i.name, i.shape, i.messages, len(i.bytes_by_client), f"{i.bytes:,}", _protected(run, i) or "no"]
            for i in left
        ],
        right=(3, 4, 5),
    )
    if each and client is None:
        _put_each(run, left)
    for sentence in sentences(run, left, at_site=at is not None):
        print_text(sentence)


def _of_site(folder: Path) -> Path | None:
    """The newest run in the folder of a site; None for anything else."""
    from polyfed.errors import InputError
    from polyfed.runs.folder import SITE_FILE

    if not (folder / SITE_FILE).exists():
        return None
    runs = [path for path in folder.iterdir() if (path / "events.jsonl").exists()]
    if not runs:
        raise InputError(f"the site of {folder} has not taken part in a run yet")
    return max(runs, key=lambda path: (path / "events.jsonl").stat().st_mtime)


def _protected(run: RunRecord, left: UploadSummary) -> str | None:
    from polyfed.report.uploads import describe_protection

    return describe_protection(run.config, left.name)


def _as_json(run: RunRecord, left: Sequence[UploadSummary], client: str | None) -> dict[str, Any]:
    return {
        "method": run.method,
        "state": run.state,
        "rounds": len(run.rounds),
        "client": client,
        "left": [
            {
                "step": item.step,
                "field": item.name,
                "shapes": sorted(map(str, item.shapes)),
                "messages": item.messages,
                "clients": len(item.bytes_by_client),
                "bytes": item.bytes,
                "bytes_by_client": item.bytes_by_client,
                "protected": _protected(run, item) is not None,
                "protection": _protected(run, item),
            }
            for item in left
        ],
        "privacy": run.privacy,
    }


def _put_each(run: RunRecord, left: Sequence[UploadSummary]) -> None:
    models = {one.name: one.model for one in run.clients}
    names = sorted({name for item in left for name in item.bytes_by_client}, key=lambda name: (len(name), name))
    print_table(
        ["client", "model", *(f"{item.name}, bytes" for item in left)],
        [
            [name, models.get(name, "-"), *(f"{item.bytes_by_client.get(name, 0):,}" for item in left)]
            for name in names
        ],
        right=range(2, 2 + len(left)),
    )


def sentences(run: RunRecord, left: Sequence[UploadSummary], *, at_site: bool = False) -> list[str]:
    """What the table means, for a reader who knows the law better than the method."""
    from polyfed.report.uploads import describe_privacy_cost

    refused = sum(failure.get("kind") == "refused" for failure in run.failures)
    said = [
        f"These are all fields of all messages that the server accepted, {sum(item.bytes for item in left):,} bytes; "
        f"messages that it refused ({refused}) are not among them.",
        "For the curves of a run, clients also report their training loss and how many test samples they got right.",
    ]
    if at_site:
        said = [
            f"These are all fields of all messages that this site sent, {sum(item.bytes for item in left):,} bytes; "
            f"it refused {refused} calls.",
            "Before the first round it told its model's shapes and how many samples of each class it has; with every "
            "trained step goes the mean of its loss, unless --allow bars it.",
        ]
    bare = [item.name for item in left if _protected(run, item) is None]
    if len(bare) == len(left):
        said.append("No field was clipped or noised: whoever receives these messages sees these values.")
    elif bare:
        said.append(f"Not protected: {', '.join(dict.fromkeys(bare))}. Whoever receives these sees their values.")
    if any(" rows of " in str(shape) for item in left for shape in item.shapes):
        said.append(
            "A field of rows has a row for each class that a client holds, so it shows which classes those are."
        )
    if any("count" in item.name for item in left):
        said.append("Counts show how many samples a client holds.")
    spent = run.privacy
    if isinstance(spent, Mapping):
        said += describe_privacy_cost(spent, {name for item in left for name in item.bytes_by_client})
    return said


COMMANDS = {"inspect": inspect}
