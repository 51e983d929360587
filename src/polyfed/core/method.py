"""Base class of federated learning methods. A method is a frozen dataclass whose fields are its hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.client_profile import Profile
from polyfed.core.needs import Needs
from polyfed.core.options import check_options
from polyfed.core.payload import Payload, Value
from polyfed.core.server import Server
from polyfed.core.training_work import TrainingWork, local_training
from polyfed.errors import InputError
from polyfed.training import TrainSettings

if TYPE_CHECKING:
    from polyfed.core.cohort import Cohort


@dataclass(frozen=True)
class Sends:
    """Short description of what clients upload and download.

    `kinds` names the kinds of information that clients upload with any options of the method. `polyfed list uploads`
    shows the names.
    """

    up: str = "nothing"
    down: str = "nothing"
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outgoing:
    """A message to clients: fields for all of them, and fields for single ones."""

    shared: Mapping[str, Value] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """Base of all methods. A round runs at the server and calls steps, which run at clients."""

    name: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()  # with the default options
    relaxed_by: ClassVar[Mapping[str, str]] = {}  # requirements that an option removes, with this option
    sends: ClassVar[Sends] = Sends()
    averaged: ClassVar[tuple[str, ...]] = ()  # uploads of which the server takes means, by `server.aggregation`
    verdict: ClassVar[str] = ""  # one sentence for lists: when the method helps, and when it does not
    one_model: ClassVar[bool] = False  # uses core.shared_model, so sub-models and server filters work with it
    skipped_checks: ClassVar[Mapping[str, str]] = {}  # checks of polyfed.testing to skip, each with a reason
    battery_models: ClassVar[tuple[str, ...]] = ()  # models that polyfed.testing uses, if the default ones do not fit

    def __post_init__(self) -> None:
        """Check the bounds of all options. A subclass that checks more calls `super().__post_init__()`."""
        check_options(self, "method")

    def requirements(self) -> Needs:
        """Return what the method needs with its options. Override it if an option removes a requirement."""
        return self.needs

    def check_training(self, settings: TrainSettings) -> None:
        """Raise InputError before the first round if the method does not support these training settings."""

    def training_work(
        self, client: Profile, roster: Sequence[Profile], per_round: int, settings: TrainSettings
    ) -> TrainingWork:
        """Return how many samples a client's model is trained on, for the estimates of `polyfed check`.

        Override it if the method trains models more often than `train` of the config says. `roster` has all
        clients, of which `per_round` participate in a round.
        """
        return local_training(settings, client.samples)

    def mean_weights(self) -> Mapping[str, str] | None:
        """Return the weights of the means over clients that the server takes, by uploaded field, for secure sums.

        A weight is the name of an uploaded number, 'counts' for the counts of a class table, or '' for equal weights.
        None: the server needs single replies.
        """
        return None

    def init(self, server: Server) -> None:
        """Prepare the server. Called once, before the first round."""

    def round(self, server: Server, cohort: Cohort) -> None:
        """Run one round."""
        raise NotImplementedError

    def finish(self, server: Server, everyone: Cohort) -> None:
        """Finish the run with all clients. Called once, after the last round."""

    def publish(self, server: Server) -> Outgoing:
        """Return what clients receive for evaluation, if the method's result is a server model."""
        return Outgoing()

    def adopt(self, client: Client, msg: Payload) -> None:
        """Load what was published into the client for an evaluation. It is undone afterwards."""

    def predicts_from_published(self) -> bool:
        """Return whether predictions depend on nothing but the published message.

        If so, the global accuracy is measured at one client per architecture.
        """
        return False

    def public_dataset(self) -> str | None:
        """Return the name of the public dataset that the method uses, if any. It must not be the clients' own."""
        return None

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Return one score per class. The class with the largest score is predicted."""
        logits: Tensor = client.model(x)
        return logits

    def predict_personal(self, client: Client, x: Tensor) -> Tensor:
        """Return the scores for personal accuracy, if they differ from those of `predict`."""
        return self.predict(client, x)

    def predicts_probabilities(self, way: str = "") -> bool:
        """Return whether softmax of the scores gives class probabilities, as for logits of a head.

        If not, as for distances to prototypes, metrics that need probabilities are left out. `way` is '' for
        `predict`, or a name of `also_predict`.
        """
        return True

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        """Return other ways to predict with the same model, by name. Each is evaluated as well."""
        return {}


_REGISTERED: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(name: str, *aliases: str) -> Callable[[type[M]], type[M]]:
    """Register a method under a name (and aliases), for configs and the command line.

    Examples:
        >>> from dataclasses import dataclass
        >>> from polyfed.core import Method, Needs, Sends, step
        >>> @polyfed.register("train-twice")
        ... @dataclass(frozen=True)
        ... class TrainTwice(Method):
        ...     needs, sends = Needs(), Sends()
        ...
        ...     def round(self, server, cohort):
        ...         cohort.call(self.train)
        ...
        ...     @step()
        ...     def train(self, client, msg):
        ...         client.fit()
        ...         client.fit()
        >>> TrainTwice.name
        'train-twice'
    """

    def decorate(method: type[M]) -> type[M]:
        for alias in (name, *aliases):
            other = _REGISTERED.get(alias)
            if other is not None and other.__qualname__ != method.__qualname__:
                raise InputError(f"the method name '{alias}' is taken by {other.__module__}.{other.__qualname__}")
            _REGISTERED[alias] = method
        method.name = name
        return method

    return decorate


def registered() -> Mapping[str, type[Method]]:
    """Return the methods that are registered in this process, by name."""
    return dict(_REGISTERED)


def forget(modules: Collection[str]) -> None:
    """Remove the methods that modules registered, before the modules are imported again."""
    for name in [name for name, value in _REGISTERED.items() if value.__module__ in modules]:
        del _REGISTERED[name]
