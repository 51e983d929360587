"""The part of `polyfed check` that says how much work a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfed.cli.output import format_bytes, print_text

if TYPE_CHECKING:
    from polyfed.config import Config
    from polyfed.federation.workload import Workload

_UNITS = ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"))


def print_work(work: Workload, config: Config, tflops: float | None) -> None:
    """Print steps, FLOPs, disk space, memory and time of a run."""
    from polyfed.config import size_in_bytes

    budget = format_bytes(size_in_bytes(config.engine.memory_budget))
    print_text(
        f"Work of the run\n"
        f"  training steps   {format_count(work.steps)} of all clients together, in {config.rounds} rounds\n"
        f"  computation      {format_flops(work.training_flops)} for training, "
        f"{format_flops(work.evaluation_flops)} for evaluation\n"
        f"  operations       {format_count(work.operations)}, such as one convolution of a batch\n"
        f"  state on disk    up to {format_bytes(work.state_bytes)}: models of all clients, in two checkpoints\n"
        f"  memory           {format_bytes(work.worker_bytes)} per worker in a step of {work.largest} with batch "
        f"{config.train.batch_size}, and up to {budget} of client states"
    )
    for label, text in _times(work, tflops).items():
        print_text(f"  {label:16} {text}")
    for assumption in work.assumptions:
        print_text(f"  assumed          {assumption}")
    print_text(
        "FLOPs count matrix products of the clients' own models, forward and backward. Further models of a method "
        "and the server's work are not counted."
    )


def _times(work: Workload, tflops: float | None) -> dict[str, str]:
    """Return estimates of the time of a run, for TFLOPS as given or for this machine as measured."""
    from polyfed.benchmarks.device_record import read_record
    from polyfed.federation.workload import USUAL_OPERATIONS_PER_SECOND

    record = read_record() if tflops is None else None
    if record is not None:
        longer = max(work.computing_hours(record.tflops), work.starting_hours(record.operations_per_second))
        measured = f"{record.tflops:.3g} TFLOPS, {record.operations_per_second:,.0f} operations per second"
        return {"time": f"{format_hours(longer)} on this machine ({record.device}: {measured})"}
    if tflops is None:
        return {"time": "give --tflops, or measure this machine with `polyfed bench device`"}
    return {
        "time": f"{format_hours(work.computing_hours(tflops))} at {tflops:g} TFLOPS, if batches are large enough",
        "": f"{format_hours(work.starting_hours())} for one worker on a GPU that starts "
        f"{USUAL_OPERATIONS_PER_SECOND:,} operations per second; the longer time counts",
    }


def format_flops(flops: float) -> str:
    """Format a number of floating-point operations, such as '3.2 PFLOP'."""
    for size, unit in _UNITS:
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def format_count(number: float) -> str:
    """Format a large number, such as '1.2 million'."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"


def format_hours(hours: float) -> str:
    """Format a time, such as '40 seconds', '5 minutes', '3.1 hours' or '12 days'."""
    if hours >= 48:
        return f"{hours / 24:.3g} days"
    for size, word in ((1.0, "hours"), (1 / 60, "minutes")):
        if hours >= size:
            return f"{hours / size:.3g} {word}"
    return f"{hours * 3600:.2g} seconds"
