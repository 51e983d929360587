"""What happens if a device has too little memory for a client's step: smaller parts of a batch, or a message."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable

import torch

from polyfed.core.engine import Answer, Failure
from polyfed.errors import PayloadError, PolyfedError, StateError


def failure_of(error: Exception) -> Failure:
    """Return the failure for an error of a client, its method or its device."""
    detail = traceback.format_exc()
    if isinstance(error, torch.OutOfMemoryError):
        return Failure("memory", str(error), detail)
    if isinstance(error, StateError):
        return Failure("storage", str(error), detail)
    if isinstance(error, PayloadError):
        return Failure("refused", str(error), detail)
    message = str(error) if isinstance(error, PolyfedError) else f"{type(error).__name__}: {error}"
    return Failure("raised", message, detail)


def repeat_with_less_memory(
    attempt: Callable[[int | None], Answer], free: Callable[[], None], model: str, batch: int, device: torch.device
) -> Answer:
    """Repeat a task after the device was freed: with whole batches, then with smaller and smaller parts of them.

    `attempt` runs the task with at most so many samples at a time; None: a whole batch.
    """
    answer = attempt(None)
    if not is_out_of_memory(answer):
        return answer
    for part in smaller_parts(batch):
        free()
        answer = attempt(part)
        if not is_out_of_memory(answer):
            return with_note(answer, part, batch)
    free()
    return Answer(answer.client, failure=Failure("raised", too_large(model, batch, device)))


def is_out_of_memory(answer: Answer) -> bool:
    return answer.failure is not None and answer.failure.kind == "memory"


def smaller_parts(batch: int) -> list[int]:
    """Return the parts of a batch to try, from a half down to one sample."""
    parts = []
    while batch > 1:
        batch = -(-batch // 2)
        parts.append(batch)
    return parts


def with_note(answer: Answer, part: int, batch: int) -> Answer:
    """Return an answer with a note about how the step was run."""
    note = (
        f"client {answer.client}: a batch of {batch} samples did not fit into the memory of its device, so gradients "
        f"of {part} samples at a time were added up; set train.micro_batch={part} to do this from the start"
    )
    return dataclasses.replace(answer, notes=(*answer.notes, note))


def too_large(model: str, batch: int, device: torch.device) -> str:
    """Return the message about a model that does not fit on a device."""
    return (
        f"the model {model} does not fit into the memory of {device} with a batch of {batch} samples, nor with 1 "
        "sample at a time; use a smaller model or smaller inputs, a device with more memory, or engine.device=cpu"
    )
