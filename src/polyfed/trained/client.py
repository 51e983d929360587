"""A client's trained model, with the prediction rule of its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.method import Method
from polyfed.core.rounds import one_torch_thread
from polyfed.data.arrays import as_inputs, size_text
from polyfed.data.catalogue import Format
from polyfed.errors import InputError
from polyfed.models import ModelSpec, SplitModel
from polyfed.training import Samples
from polyfed.training.metrics import class_scores

Array = TypeVar("Array", np.ndarray[Any, Any], Tensor)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: what a loader needs besides the weights."""

    method: Mapping[str, Any]  # section of the config
    imports: tuple[str, ...] = ()  # modules and files that register the user's models and methods
    user_code: str = ""  # source of the module that registers them in other processes
    trained: Mapping[str, Any] = field(default_factory=dict)  # run, seed, rounds and versions, for people


@dataclass(frozen=True)
class TrainedClient:
    """The model of one client after a run. `predict` and `predict_proba` use the method's prediction rule.

    Samples have the form of the dataset: uint8 pictures, numbers or tokens, with a first axis for the samples.
    """

    name: str
    classes: tuple[str, ...]  # names, in the order of the columns of `predict_proba`
    shape: tuple[int, ...]  # of one sample
    kind: str  # 'picture', 'numbers' or 'tokens'
    vocabulary: int  # number of tokens; 0 for inputs that are not tokens
    features: tuple[str, ...]  # columns of a table that make up a sample; empty if they were not named
    spec: ModelSpec
    format: Format  # how files of such data are read
    origin: Origin
    method: Method = field(repr=False)
    client: Client = field(repr=False)

    @property
    def model(self) -> SplitModel:
        """The network, in evaluation mode. It takes pictures as floats in [0, 1], other samples unchanged."""
        return self.client.model

    @property
    def architecture(self) -> str:
        return self.client.profile.architecture

    def scores(self, x: Array) -> Tensor:
        """Return one score per sample and class. The class with the largest score is predicted."""
        inputs = self._inputs(x)
        samples = Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        # one thread, as in a run: sums over several threads depend on their number
        with one_torch_thread():
            return class_scores(partial(self.method.predict, self.client), samples)

    def predict(self, x: Array) -> Array:
        """Return the predicted class of every sample, as a position in `classes`."""
        return _like(x, self.scores(x).argmax(1))

    def predict_proba(self, x: Array) -> Array:
        """Return one probability per sample and class: the softmax of the method's scores.

        The scores of most methods are logits. Prototype methods use negative distances to the prototypes; a class
        without prototype has probability 0.
        """
        return _like(x, self.scores(x).softmax(1))

    def _inputs(self, x: Any) -> Tensor:
        """Return samples with the type and shape that the model was trained on."""
        where = f"samples for client {self.name}"
        values = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if self.kind == "picture" and values.dtype != np.uint8:
            raise InputError(
                f"{where} have type {values.dtype}; the model was trained on pictures of type uint8 with values from "
                "0 to 255"
            )
        if self.kind == "numbers" and values.dtype == np.uint8 and values.ndim in (3, 4):
            raise InputError(
                f"{where} are pictures of type uint8; the model was trained on numbers, so convert them in the same "
                "way as the training samples"
            )
        inputs = as_inputs(values, where, vocabulary=self.vocabulary)
        if inputs.shape[1:] != self.shape:
            raise InputError(
                f"{where} have shape {size_text(inputs.shape[1:])}; the model was trained on {size_text(self.shape)} "
                "(the first axis of the array counts the samples)"
            )
        return torch.from_numpy(inputs)


def _like(x: Array, values: Tensor) -> Array:
    """Return a tensor for a tensor, and an array for everything else."""
    return values if isinstance(x, Tensor) else values.numpy()
