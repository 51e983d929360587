"""A method is one frozen object: its fields are its hyperparameters, and there is nowhere to hide state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.needs import Needs
from polyfed.core.options import check_options
from polyfed.core.payload import Payload, Value
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.training import TrainSettings

if TYPE_CHECKING:
    from polyfed.core.cohort import Cohort


@dataclass(frozen=True)
class Sends:
    """What crosses, in words that anybody can read."""

    up: str = "nothing"
    down: str = "nothing"


@dataclass(frozen=True)
class Outgoing:
    """What goes to clients: the same for all, and to each its own."""

    shared: Mapping[str, Value] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """Base of all methods. A round runs at the server, a step at a client; `cohort.call` is the door between."""

    name: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    sends: ClassVar[Sends] = Sends()
    one_model: ClassVar[bool] = False  # keeps one model by core.one_model: sub-models and server filters work with it
    excused: ClassVar[Mapping[str, str]] = {}  # checks of the battery that do not apply, each with its reason
    battery_models: ClassVar[tuple[str, ...]] = ()  # models that the battery gives to clients, where not any will do

    def __post_init__(self) -> None:
        """Check the bounds of all options. A subclass that checks more calls `super().__post_init__()`."""
        check_options(self, "method")

    def check_training(self, settings: TrainSettings) -> None:
        """Refuse a way of training that the method does not hold for, before the first round."""

    def init(self, server: Server) -> None:
        """Once, before the first round."""

    def round(self, server: Server, cohort: Cohort) -> None:
        """One round."""
        raise NotImplementedError

    def finish(self, server: Server, everyone: Cohort) -> None:
        """Once, after the last round, with all clients."""

    def publish(self, server: Server) -> Outgoing:
        """What clients are handed to be evaluated with, by methods whose result is a server model (R10)."""
        return Outgoing()

    def adopt(self, client: Client, msg: Payload) -> None:
        """Make what was published the client's model for an evaluation; undone after it."""

    def predicts_from_published(self) -> bool:
        """Whether what is published is all that a client predicts with: then one client of each kind is measured."""
        return False

    def public_dataset(self) -> str | None:
        """A dataset of the catalogue whose images the method shows to everybody; the clients' own is refused."""
        return None

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """One score per class; the largest is the answer."""
        logits: Tensor = client.model(x)
        return logits

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        """Other ways to predict with the same model, by name, to be measured beside the one above."""
        return {}


_REGISTERED: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(name: str, *aliases: str) -> Callable[[type[M]], type[M]]:
    """Make a method known by its name (and aliases) to configs and to the command line."""

    def remember(method: type[M]) -> type[M]:
        for known in (name, *aliases):
            taken = _REGISTERED.get(known)
            if taken is not None and taken.__qualname__ != method.__qualname__:
                raise InputError(f"the method name '{known}' is taken by {taken.__module__}.{taken.__qualname__}")
            _REGISTERED[known] = method
        method.name = name
        return method

    return remember


def registered() -> Mapping[str, type[Method]]:
    """Every method registered so far in this process, by name."""
    return dict(_REGISTERED)
