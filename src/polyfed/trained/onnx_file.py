"""ONNX files of trained models, for other runtimes. It needs the extra `onnx`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyfed.errors import require
from polyfed.trained.client import TrainedClient
from polyfed.training.samples import model_inputs

ONNX = "model.onnx"
OPSET = 20


def check_installed() -> None:
    """Raise `InputError` if a package for ONNX files is missing."""
    require("onnx", "onnxscript", extra="onnx", sentence="ONNX files need")


def write_onnx(trained: TrainedClient, folder: Path) -> str | None:
    """Write `model.onnx`. Return None, or the reason in one sentence if this model has no ONNX form.

    The graph takes samples in the form of the dataset, and returns the scores of `TrainedClient.scores`.
    """
    example = torch.zeros(2, *trained.shape, dtype={"picture": torch.uint8, "tokens": torch.int64}.get(trained.kind))
    file = folder / ONNX
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                _Predictor(trained).eval(),
                (example,),
                input_names=["samples"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            if program is None:
                raise RuntimeError("torch.onnx returned no program")
            program.save(str(file))
    except Exception as error:  # the exporter raises many types for models that it cannot trace
        file.unlink(missing_ok=True)
        return f"torch.onnx cannot convert it ({_reason(error)})"
    return None


class _Predictor(nn.Module):
    """The prediction rule as a module, from samples in the form of the dataset to scores."""

    def __init__(self, trained: TrainedClient) -> None:
        super().__init__()
        self.model = trained.model
        self._trained = trained

    def forward(self, samples: Tensor) -> Tensor:
        with _PlainDistances():
            return self._trained.method.predict(self._trained.client, model_inputs(samples))


class _PlainDistances(TorchFunctionMode):
    """Computes `torch.cdist`, which has no ONNX operator, from operations that have one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.cdist and len(args) == 2 and (kwargs or {}).get("p", 2.0) == 2.0:
            return (args[0][:, None] - args[1][None]).square().sum(-1).sqrt()
        return func(*args, **(kwargs or {}))


def _reason(error: BaseException) -> str:
    """Return the first line of the error that a chain of errors began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {''.join(c for c in line if c.isprintable())[:200]}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and its warnings about itself off the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
