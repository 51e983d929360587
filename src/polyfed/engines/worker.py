"""The life of one pool worker: build the federation's clients on demand, run tasks, answer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

import polyfed.federation.simulation  # noqa: F401  (imported once in the zygote, so that every fork has it)
from polyfed.core.engine import Call
from polyfed.core.host import Host
from polyfed.engines import framing
from polyfed.machine import peak_rss


def warm_up() -> None:
    """Do in the zygote, once, what torch puts off until the first optimiser is made: importing its compiler."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, fused=True)


def serve(connection: Connection) -> None:
    """Answer until the other end hangs up. The first message says how to make the host."""
    torch.set_num_threads(1)  # one core each; also what makes results independent of the number of workers
    call = Call(0, 0)
    shared = b""
    try:
        head, _ = framing.receive(connection)
        try:
            host = make_host(head["maker"], head["description"])
        except Exception as error:
            framing.send(connection, {"broken": f"{type(error).__name__}: {error}"})
            return
        framing.send(connection, {"ready": True})  # a deadline counts from here
        while True:
            head, block = framing.receive(connection)
            if head["do"] == "call":
                call, shared = framing.call_from_json(head["call"]), block
            elif head["do"] == "task":
                answer = host.handle(call, framing.task_from_json(head["task"], block), shared)
                framing.send(connection, framing.answer_to_json(answer), answer.frame)
            else:
                framing.send(connection, {"peak": peak_rss()})
    except (EOFError, ConnectionError):
        return


def make_host(maker: str, description: Mapping[str, Any]) -> Host:
    """`maker` is 'module:function' of ours, which turns a description into a host."""
    module, _, name = maker.partition(":")
    function: Callable[[Mapping[str, Any]], Host] = getattr(importlib.import_module(module), name)
    return function(description)
