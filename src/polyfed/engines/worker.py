"""A pool worker process: it builds clients on demand and runs tasks."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

import polyfed.federation.simulation  # noqa: F401  (imported once in the fork server, so that every fork has it)
from polyfed import profiling
from polyfed.core.client_host import Host
from polyfed.core.engine import Call
from polyfed.engines import framing
from polyfed.machine import keep_freed_memory, peak_rss
from polyfed.profiling import Recorder


def serve(connection: Connection) -> None:
    """Run tasks until the connection is closed. The first message describes the host to create."""
    keep_freed_memory()
    torch.set_num_threads(1)  # one core per worker; results then do not depend on the number of workers
    try:
        setup, _ = framing.receive(connection)
        recorder = Recorder() if setup["profile"] else None
        with profiling.recording(recorder):
            _run_tasks(connection, setup, recorder)
    except (EOFError, ConnectionError):
        return


def _run_tasks(connection: Connection, setup: Mapping[str, Any], recorder: Recorder | None) -> None:
    """Create the host and run tasks."""
    call = Call(0, 0)
    shared = b""
    try:
        os.environ.update(setup["environment"])  # before anything uses a GPU
        os.chdir(setup["directory"])  # the fork server may have been started in another one
        with profiling.span("startup", "create the host"):
            host = make_host(setup["host_factory"], {**setup["description"], "device": setup["device"]})
    except Exception as error:
        framing.send(connection, {"broken": f"{type(error).__name__}: {error}"})
        return
    framing.send(connection, {"ready": True, **_times(recorder)})  # timeouts count from here
    while True:
        head, block = framing.receive(connection)
        if head["do"] == "call":
            call, shared = framing.call_from_json(head["call"]), block
        elif head["do"] == "task":
            task = framing.task_from_json(head["task"], block)
            answer = host.handle(call, task, shared, alone=head["alone"])
            framing.send(connection, {**framing.answer_to_json(answer), **_times(recorder)}, answer.frame)
        elif head["do"] == "free":
            host.free_device()
        else:
            framing.send(connection, {"peak": peak_rss()})


def _times(recorder: Recorder | None) -> dict[str, Any]:
    """Return the times since the last message as part of the next one. Return nothing if the run is not profiled."""
    return {} if recorder is None else {"profile": recorder.take()}


def make_host(factory: str, description: Mapping[str, Any]) -> Host:
    """Create a host. `factory` is the 'module:function' that creates it from a description."""
    module, _, name = factory.partition(":")
    function: Callable[[Mapping[str, Any]], Host] = getattr(importlib.import_module(module), name)
    return function(description)
