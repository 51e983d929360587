"""Reading of a coordinator's requests at a site. Whatever is wrong with one is a refusal that quotes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from polyfed.core.engine import Call, Task
from polyfed.deploy.site_errors import SiteRefusalError
from polyfed.engines import framing
from polyfed.engines.flower import SiteMessage


def run_name(header: Mapping[str, Any]) -> str:
    """Return the run's name, which becomes the name of a folder."""
    run = header.get("run")
    if not isinstance(run, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run):
        raise SiteRefusalError("the message has no valid name of a run")
    return run


def read_call(message: SiteMessage) -> tuple[Call, Task]:
    """Return the call and the task of a message."""
    try:
        call = framing.call_from_json(message.header["call"])
        task = framing.task_from_json(message.header["task"], message.blocks.get("own", b""))
        _check_types(call, task)
    except (KeyError, TypeError, AttributeError) as error:
        raise SiteRefusalError(f"the message is malformed: {type(error).__name__} {error}") from None
    return call, task


def _check_types(call: Call, task: Task) -> None:
    """Raise `TypeError` unless numbers are integers and names are texts. They become parts of file names."""
    numbers = (call.number, call.round, task.base, *task.discard)
    texts = (task.client, *call.steps, *call.labels, *call.measures, *call.metrics)
    if not all(type(number) is int and abs(number) < 1 << 53 for number in numbers):
        raise TypeError("a number of a call or of a state is not an integer")
    if not all(isinstance(text, str) for text in texts) or not (call.steps or call.measures):
        raise TypeError("steps and measures must be names")
