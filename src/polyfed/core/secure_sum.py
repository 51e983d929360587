"""Arithmetic of secure sums: masks that cancel in a sum over clients, after Bonawitz et al. (CCS 2017).

Clients agree on pairwise secrets by X25519. HKDF and AES-CTR turn a secret into a mask. With Shamir shares of the
secrets, enough clients can recover the masks of clients that dropped out. Numbers are fixed-point integers modulo
2^64, so sums are exact. Keys come from the operating system's random numbers: they never influence a result.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from polyfed.errors import PayloadError

Numbers = np.ndarray[Any, np.dtype[np.uint64]]

SECRET_BYTES = 32
PRIME = 2**521 - 1  # of the field of Shamir shares; every secret is smaller
SHARE_BYTES = 66  # for numbers below PRIME
NONCE_BYTES = 12
FRACTION_BITS = 24  # of fixed-point numbers
LEAST_CLIENTS = 3  # a sum of two numbers tells each of the two clients the other one's


def threshold(clients: int) -> int:
    """Return how many clients must answer until the end: two thirds, and at least three."""
    return max(LEAST_CLIENTS, math.ceil(2 * clients / 3))


# keys and masks


def new_secret() -> bytes:
    """Return a new random secret, which also serves as a private key."""
    return secrets.token_bytes(SECRET_BYTES)


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_secret(private: bytes, public: bytes, purpose: str) -> bytes:
    """Return the secret that two clients share, each from its own private and the other one's public key."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=None, info=purpose.encode()).derive(shared)


def mask(secret: bytes, length: int) -> Numbers:
    """Return the pseudo-random numbers that a secret stands for."""
    stream = Cipher(AES256(secret), CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)) + stream.finalize(), dtype="<u8").astype(np.uint64)


def pairwise_mask(client: str, other: str, secret: bytes, length: int) -> Numbers:
    """Return the mask of a client for a pair. The mask of the other client is its negative."""
    numbers = mask(secret, length)
    return numbers if client < other else np.uint64(0) - numbers


# shares of secrets


def split_secret(secret: bytes, least: int, holders: int) -> list[bytes]:
    """Return one share for each holder. `least` shares determine the secret, fewer say nothing about it."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    return [
        (sum(c * pow(x, power, PRIME) for power, c in enumerate(coefficients)) % PRIME).to_bytes(SHARE_BYTES)
        for x in range(1, holders + 1)
    ]


def recover_secret(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of shares by the holder's number, from 1."""
    total = 0
    for x, share in shares.items():
        product = int.from_bytes(share)
        for other in shares:
            if other != x:
                product = product * other * pow(other - x, -1, PRIME) % PRIME
        total += product
    total %= PRIME
    if total >= 1 << (8 * SECRET_BYTES):
        raise PayloadError("the shares of a secret do not fit together")
    return total.to_bytes(SECRET_BYTES)


def seal(key: bytes, content: bytes, route: str) -> bytes:
    """Encrypt and authenticate bytes; `route` names the sender and the recipient."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, route.encode())


def unseal(key: bytes, sealed: bytes, route: str) -> bytes:
    """Return the content of sealed bytes. Raise InvalidTag if they were changed or sent along another route."""
    return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], route.encode())


# fixed-point numbers


def to_fixed(values: np.ndarray[Any, np.dtype[np.float64]], clients: int) -> Numbers:
    """Return fixed-point numbers modulo 2^64. Raise PayloadError if a sum over the clients could overflow."""
    limit = 2.0 ** (62 - FRACTION_BITS) / clients
    if not bool((np.abs(values) <= limit).all()):  # written so that NaN fails as well
        raise PayloadError(f"a value times its weight exceeds {limit:.3g}, the limit of secure sums")
    return np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)


def from_fixed(numbers: Numbers) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of fixed-point numbers."""
    return numbers.view(np.int64).astype(np.float64) / 2.0**FRACTION_BITS
