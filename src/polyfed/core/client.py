"""The client that a step receives: its model, data, state and random streams."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.core.class_tables import Bound, ClassTable, class_means
from polyfed.core.client_profile import Profile
from polyfed.core.payload import Payload, State, Weights, detached_copy, view
from polyfed.core.place import CPU
from polyfed.errors import RunError
from polyfed.models.split import SplitModel
from polyfed.training import Fit, Loss, Samples, TrainSettings, fit
from polyfed.training.random_draws import Draw
from polyfed.training.samples import EVALUATION_BATCH


def _no_builder(spec: str) -> SplitModel:
    raise RunError(f"this client cannot build {spec}: it does not belong to a federation")


@dataclass
class Client:
    """One client. Only its model and `state` are kept between steps."""

    profile: Profile
    model: SplitModel
    train: Samples
    test: Samples
    settings: TrainSettings
    state: State = field(default_factory=dict)
    # set by the host before every step
    seed: int = 0
    round: int = 0
    step: str = ""
    # builds an architecture from its spec, with initial weights that are the same at all clients
    build: Callable[[str], SplitModel] = field(default=_no_builder, repr=False)
    device: torch.device = CPU  # of its model, its data, its state and the messages that it receives
    fits: list[Fit] = field(default_factory=list)  # calls of `fit` in this step
    bound: Bound | None = None  # applied to class means in this step, for privacy

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def classes(self) -> int:
        return self.profile.classes

    @property
    def memory(self) -> Payload:
        """Typed access to `state`."""
        return view(self.state)

    def stream(self, purpose: str) -> torch.Generator:
        """Return a random generator for a purpose, specific to this client, round and step."""
        return rng.generator(self.seed, purpose, self.name, self.round, self.step)

    # training

    def fit(
        self,
        loss: Loss | None = None,
        *,
        samples: Samples | None = None,
        modules: Iterable[nn.Module] | None = None,
        parameters: Iterable[nn.Parameter] | None = None,
        adjust: Callable[[], None] | None = None,
        continue_with: torch.optim.Optimizer | None = None,
        draw: Draw | None = None,
        purpose: str = "fit",
        **settings: object,
    ) -> Fit:
        """Train on this client's data, by default with cross-entropy. Keywords override `train` of the config.

        `continue_with` is an optimiser of earlier training that continues; by default a new one is made.
        """
        if "epochs" in settings:
            settings.setdefault("steps", None)  # epochs given here override steps of the config
        trained_modules = [self.model] if modules is None else list(modules)
        trained = [p for m in trained_modules for p in m.parameters()] if parameters is None else list(parameters)
        result = fit(
            trained_modules,
            loss or self.cross_entropy,
            self.train if samples is None else samples,
            dataclasses.replace(self.settings, **settings),  # type: ignore[arg-type]
            self.stream(purpose),
            parameters=trained,
            adjust=adjust,
            optimizer=continue_with,
            draw=draw,
        )
        own = {id(p) for p in self.model.parameters()}
        if not any(id(p) in own for p in trained):
            result = dataclasses.replace(result, aside=True)  # an auxiliary module: not the task's loss
        self.fits.append(result)
        return result

    def cross_entropy(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    # passes over its own data, without gradients and in evaluation mode

    def clean_pass(self, samples: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training samples in stored order, with the model in evaluation mode."""
        self.model.eval()
        yield from (self.train if samples is None else samples).batches(EVALUATION_BATCH)

    def class_means(self, vector: Callable[[Tensor], Tensor], width: int, *, min_count: int = 1) -> ClassTable:
        """Return class means of `vector(x)` over all training samples."""
        return class_means(self.clean_pass(), vector, self.classes, width, min_count, self.bound)

    # weights

    def load(self, weights: Mapping[str, Tensor], into: nn.Module | None = None) -> None:
        """Load a state dict into the model, or into one of its modules."""
        copy_into(into or self.model, weights)


def weights_of(module: nn.Module) -> Weights:
    """Return a detached copy of a module's state dict, which later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class ClientBefore:
    """A copy of a client's weights and state that can be restored. It is faster than a state dict and its loading."""

    def __init__(self, client: Client) -> None:
        self._client, self._state = client, detached_copy(client.state)
        self._tensors = self._current()
        self._values = [tensor.detach().clone() for tensor in self._tensors.values()]

    def _current(self) -> dict[str, Tensor]:
        return dict(itertools.chain(self._client.model.named_parameters(), self._client.model.named_buffers()))

    @torch.no_grad()
    def restore(self) -> bool:
        """Restore the client. Return False if the model has other layers or tensors: not all weights are restored."""
        self._client.state = self._state
        current = self._current()
        if list(current) != list(self._tensors):
            return False
        for tensor, before, value in zip(current.values(), self._tensors.values(), self._values, strict=True):
            same_kind = tensor.dtype == value.dtype and tensor.shape == value.shape
            if tensor is not before or not same_kind or tensor.stride() != value.stride():
                return False
            tensor.copy_(value)
        return True


@torch.no_grad()
def copy_into(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load a state dict in place, so that memory layouts and optimiser references stay valid."""
    module.load_state_dict(weights, strict=True)
