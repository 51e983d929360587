"""Error texts that leave a site. An error of a method, a model or the data may contain values of samples.

Only two kinds of text are sent: the fixed sentences below, and refusals that the site itself wrote.
"""

from __future__ import annotations

import time
from pathlib import Path

from polyfed.core.engine import Failure
from polyfed.errors import InputError

ERRORS = "errors.log"  # in the state folder of a site: full texts of errors outside of calls
MAX_LOG = 1 << 20  # bytes, after which the log starts again; a coordinator must not fill the disk
SETUP_FAILED = "its data or its model does not fit this run; see errors.log at the site"
SITE_FAILED = "it could not answer because of an error; see errors.log at the site"
SENTENCES = {  # by kind of failure
    "raised": "its step raised an error; see events.jsonl at the site",
    "refused": "its step refused the message; see events.jsonl at the site",
    "storage": "its saved state cannot be read or written; see events.jsonl at the site",
    "memory": "its device has too little memory for the step; see events.jsonl at the site",
}


class SiteRefusalError(InputError):
    """A refusal whose text may leave the site.

    Write only the site's name and settings, and parts of the coordinator's own message into it.
    """


def public_failure(failure: Failure) -> Failure:
    """Return a failure of the site's client as the coordinator may see it: its kind and a fixed sentence."""
    kind = "unavailable" if failure.kind == "storage" else failure.kind
    return Failure(kind, SENTENCES.get(failure.kind, SITE_FAILED))


def log_error(folder: Path, text: str) -> None:
    """Append a text to the error log of a site. When the log is full, keep it as `errors.log.old` and start again."""
    file = folder / ERRORS
    if file.exists() and file.stat().st_size > MAX_LOG:
        file.replace(folder / f"{ERRORS}.old")
    with file.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
