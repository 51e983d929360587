"""`polyfed inspect`: show what each client uploaded, from the events of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.arguments import JSON
from polyfed.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from polyfed.report.run_record import RunRecord
    from polyfed.report.uploads import UploadSummary


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or the state folder of a site.")],
    client: Annotated[
        str | None, typer.Option(help="Client whose uploads to show.", show_default="all clients")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Add a table with one row per client.")] = False,
    json: JSON = False,
) -> None:
    """Show what each client uploaded: field names, shapes, sizes, and whether differential privacy was applied.

    Example: polyfed inspect runs/my-run --client 0
    """
    from polyfed import catalogue
    from polyfed.errors import InputError, nearest
    from polyfed.report.run_record import read
    from polyfed.report.uploads import uploads_of_client

    site_run = _newest_site_run(folder)
    run = read(folder if site_run is None else site_run)
    names = {str(k) for k in range(int(run.config.get("clients", 0)))} | _uploaders(run.uploads)
    if client is not None and client not in names:
        raise InputError(f"there is no client called '{client}' in {folder}; {nearest(client, names)}")
    uploads = run.uploads if client is None else uploads_of_client(run.uploads, client)
    if json:
        print_json(_as_json(run, uploads, client))
        return
    if site_run is not None:
        print_text(f"{run.method}: uploads of this site in its newest run, {site_run.name}.")
    else:
        who = f"client {client}" if client is not None else f"{len(_uploaders(uploads))} clients"
        rounds = f"{len(run.rounds)} of {run.planned_rounds} rounds ({run.state})"
        print_text(f"{run.method} on {run.dataset}: uploads of {who} in {rounds}.")
    info = catalogue.find_method(run.method)
    if info is not None:
        print_text(f"By design, a client of this method uploads: {info.sends_up}.")
    if not uploads:
        print_text("Nothing was uploaded.")
        return
    print_table(
        ["step", "field", "shape", "messages", "clients", "bytes", "protected"],
        [
            [
                upload.step,
                upload.name,
                upload.shape,
                upload.messages,
                len(upload.bytes_by_client),
                f"{upload.bytes:,}",
                _protection(run, upload) or "no",
            ]
            for upload in uploads
        ],
        right=(3, 4, 5),
    )
    if each and client is None:
        _print_by_client(run, uploads)
    for sentence in explanations(run, uploads, at_site=site_run is not None):
        print_text(sentence)
    if site_run is not None:
        from polyfed.deploy.privacy_ledger import describe_ledger

        for sentence in describe_ledger(folder):
            print_text(sentence)


def _newest_site_run(folder: Path) -> Path | None:
    """Return the newest run in the state folder of a site, or None if the folder is not one of a site."""
    from polyfed.errors import InputError
    from polyfed.runs.folder import SITE_FILE

    if not (folder / SITE_FILE).exists():
        return None
    runs = [path for path in folder.iterdir() if (path / "events.jsonl").exists()]
    if not runs:
        raise InputError(f"the site of {folder} has not participated in a run yet")
    return max(runs, key=lambda path: (path / "events.jsonl").stat().st_mtime)


def _uploaders(uploads: Sequence[UploadSummary]) -> set[str]:
    """Return the names of the clients that uploaded anything."""
    return {name for upload in uploads for name in upload.bytes_by_client}


def _protection(run: RunRecord, upload: UploadSummary) -> str | None:
    from polyfed.report.uploads import describe_protection

    return describe_protection(run.config, upload.name)


def _as_json(run: RunRecord, uploads: Sequence[UploadSummary], client: str | None) -> dict[str, Any]:
    return {
        "method": run.method,
        "state": run.state,
        "rounds": len(run.rounds),
        "client": client,
        "left": [
            {
                "step": upload.step,
                "field": upload.name,
                "shapes": sorted(map(str, upload.shapes)),
                "messages": upload.messages,
                "clients": len(upload.bytes_by_client),
                "bytes": upload.bytes,
                "bytes_by_client": upload.bytes_by_client,
                "protected": _protection(run, upload) is not None,
                "protection": _protection(run, upload),
            }
            for upload in uploads
        ],
        "privacy": run.privacy,
    }


def _print_by_client(run: RunRecord, uploads: Sequence[UploadSummary]) -> None:
    models = {client.name: client.model for client in run.clients}
    names = sorted(_uploaders(uploads), key=lambda name: (len(name), name))
    print_table(
        ["client", "model", *(f"{upload.name}, bytes" for upload in uploads)],
        [
            [name, models.get(name, "-"), *(f"{upload.bytes_by_client.get(name, 0):,}" for upload in uploads)]
            for name in names
        ],
        right=range(2, 2 + len(uploads)),
    )


def explanations(run: RunRecord, uploads: Sequence[UploadSummary], *, at_site: bool = False) -> list[str]:
    """Explain the table of uploads to a reader who has to judge privacy but does not know the method."""
    from polyfed.report.uploads import describe_privacy_cost

    refused = sum(failure.get("kind") in ("refused", "rejected") for failure in run.failures)
    total = sum(upload.bytes for upload in uploads)
    if at_site:
        sentences = [
            f"The table lists every field of every message that this site sent, {total:,} bytes. The site refused "
            f"{refused} calls.",
            "Before the first round, the site also sent the shapes of its model and its number of samples per class. "
            "With every training step it sends its mean loss, unless --allow forbids it.",
        ]
    else:
        sentences = [
            f"The table lists every field of every message that the server accepted, {total:,} bytes. It does not "
            f"include the {refused} messages that the server refused.",
            "Clients also report their training loss and their number of correct test predictions.",
        ]
    unprotected = [upload.name for upload in uploads if _protection(run, upload) is None]
    aggregation = run.config.get("aggregation")
    if isinstance(aggregation, Mapping) and aggregation.get("secure"):
        sentences.append(
            "Secure sums: the server saw sums over clients only. 'masked' holds numbers that look random without the "
            "masks of all other clients; 'keys', 'shares' and 'opened' remove the masks from the sum."
        )
    elif len(unprotected) == len(uploads):
        sentences.append("No field was clipped or noised: the recipient of these messages sees the exact values.")
    elif unprotected:
        names = ", ".join(dict.fromkeys(unprotected))
        sentences.append(f"Not protected: {names}. The recipient of these fields sees the exact values.")
    if any(" rows of " in str(shape) for upload in uploads for shape in upload.shapes):
        sentences.append("A field with rows has one row for each class of the client, so it reveals these classes.")
    if any(upload.name.endswith(" confusion") for upload in uploads):
        sentences.append("A confusion matrix reveals how many test samples of each class a client has.")
    if any("count" in upload.name for upload in uploads):
        sentences.append("Counts reveal the number of samples of a client.")
    if isinstance(run.privacy, Mapping):
        sentences += describe_privacy_cost(run.privacy, _uploaders(uploads))
    return sentences


COMMANDS = {"inspect": inspect}
