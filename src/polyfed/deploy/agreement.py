"""What the coordinator and all sites agree on about data that stay at the sites: sample shape and class names.

Both read it from the config: `data: {dataset: sites, shape: [1, 28, 28], class_names: [...]}`.
"""

from __future__ import annotations

from polyfed import catalogue
from polyfed.config import Config
from polyfed.errors import InputError
from polyfed.federation.base import FederationBase
from polyfed.federation.secure_sums import with_secure_sums

SITES = "sites"  # value of data.dataset in a config if every site has its own data


class AgreedFederation(FederationBase):
    """A federation over sites' own data, as far as the config determines it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.method = with_secure_sums(config, catalogue.make(config.method))
        self.global_test = None  # no participant has test data for all sites
        self._shape, self.class_names = agreed_data(config)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def classes(self) -> int:
        return len(self.class_names)


def agreed_data(config: Config) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the shape of a sample and the class names of a config over sites' own data.

    Raise `InputError` if the config is not one over sites' own data, or if the shape or the names are invalid.
    """
    shape, class_names = config.data.shape, config.data.class_names
    if config.data.dataset != SITES or shape is None or class_names is None:
        raise InputError(
            "sites with data of their own need data: {dataset: sites, shape: [channels, height, width], class_names: "
            f"[...]}}; found dataset {config.data.dataset}, shape {shape}, class_names {class_names}"
        )
    if min(shape) < 1 or (len(shape) == 3 and shape[1] != shape[2]):
        raise InputError(
            f"data.shape is {shape}; images need channels, height and width of a square, other data sizes above 0"
        )
    if config.data.validation:
        raise InputError(
            f"data.validation is {config.data.validation}, but it applies to simulations only; sites hold out "
            "data.test_fraction of their own data, so remove data.validation"
        )
    if len(set(class_names)) != len(class_names):
        raise InputError("data.class_names contains a name twice")
    return tuple(shape), tuple(class_names)
