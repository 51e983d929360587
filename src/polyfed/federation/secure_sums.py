"""Secure sums of a federation: which methods support them, and the method with the steps that they need."""

from __future__ import annotations

from polyfed.config import Config
from polyfed.core.method import Method
from polyfed.core.step import uploads_of
from polyfed.errors import InputError
from polyfed.federation.aggregation_check import WEIGHTS

LEAST_CLIENTS = 3  # a sum of two numbers tells each of the two clients the other one's
PROTOCOL = frozenset({"keys", "shares", "masked", "opened"})  # uploads of the protocol itself


def with_secure_sums(config: Config, method: Method) -> Method:
    """Return the method of a config, with secure sums if `aggregation.secure` is true."""
    if not config.aggregation.secure:
        return method
    try:
        from polyfed.core.secure_method import secured
    except ModuleNotFoundError:
        raise InputError(
            "aggregation.secure needs the package cryptography; install it with: pip install 'polyfed[secure]'"
        ) from None
    return secured(method, config.aggregation.norm)


def check_secure_sums(config: Config, method: Method) -> None:
    """Raise InputError if a method, or another setting of the config, needs single replies."""
    if not config.aggregation.secure:
        return
    title, weights = type(method).__name__, method.mean_weights()
    if weights is None:
        raise InputError(
            f"aggregation.secure is true, but the server of {title} uses replies of single clients, which secure "
            "sums hide; use fedavg, lg-fedavg, fedproto or fedl2g, or set aggregation.secure: false"
        )
    single = [name for name in uploads_of(method) if name not in {*weights, *WEIGHTS, *PROTOCOL}]
    if single:
        raise InputError(
            f"aggregation.secure is true, but the server of {title} needs '{single[0]}' of every single client, "
            "which secure sums hide; use fedavg, lg-fedavg, fedproto or fedl2g, or set aggregation.secure: false"
        )
    if config.splitting != "none":
        raise InputError(
            f"aggregation.secure is true, but with splitting: {config.splitting} the server needs to know which "
            "client sent which part of the model; set splitting: none or aggregation.secure: false"
        )
    if config.privacy:
        raise InputError(
            "aggregation.secure is true and privacy is set, but noise is added to single uploads, which do not exist "
            "with secure sums; remove one of them"
        )
    if config.per_round < LEAST_CLIENTS:
        raise InputError(
            f"aggregation.secure needs at least {LEAST_CLIENTS} clients in a round, but {config.per_round} take part"
        )
