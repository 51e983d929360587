"""Decoding of images (JPEG, PNG, WebP, ...) into one array of pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Pixels
from polyfed.errors import InputError

_GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")
_MAX_PIXELS = 50_000_000


class PictureStack:
    """Array of decoded pictures, filled one by one. The first picture sets the size unless `resize` is given.

    If `channels` is None, the first picture also decides between greyscale and colour.
    """

    def __init__(self, total: int, *, channels: int | None, resize: int | None) -> None:
        self._total = total
        self._count = 0
        self._channels = channels
        self._first_is_grey = False
        self._resize = resize
        self._pixels: Pixels | None = None
        self.jpeg = False
        self.resized = False

    def add(self, encoded: bytes | Path, where: str) -> None:
        """Decode a picture and append it. `where` identifies the picture in error messages."""
        array = self._decode(encoded, where)
        if self._pixels is None:
            self._pixels = np.empty((self._total, *array.shape), dtype=np.uint8)
        if array.shape != self._pixels.shape[1:]:
            raise InputError(
                f"{where}: the picture is {_size(array.shape)}, but the first one is "
                f"{_size(self._pixels.shape[1:])}; all pictures need one size; set data.resize to scale them"
            )
        self._pixels[self._count] = array
        self._count += 1

    def pixels(self) -> Pixels:
        """Return all pictures as (n, C, H, W)."""
        if self._pixels is None or self._count != self._total:
            raise ValueError(f"{self._count} of {self._total} pictures were added")
        return self._pixels

    def _decode(self, encoded: bytes | Path, where: str) -> Pixels:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as picture:
                if picture.width * picture.height > _MAX_PIXELS:
                    raise InputError(
                        f"{where}: the picture is {picture.width}x{picture.height}, but at most {_MAX_PIXELS:,} "
                        "pixels are allowed"
                    )
                self.jpeg |= picture.format in ("JPEG", "MPO")
                array = np.asarray(self._converted(picture, where))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(
                f"{where}: the picture cannot be decoded ({error}); the file may be incomplete"
            ) from error
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    def _converted(self, picture: Any, where: str) -> Any:
        """Return the picture with the right channels, cropped to the central square and resized if requested."""
        from PIL import Image

        grey = picture.mode in _GREY_MODES
        if self._channels is None:
            self._channels = 1 if grey else 3
            self._first_is_grey = grey
        elif self._first_is_grey and not grey:
            raise InputError(
                f"{where}: the picture is in colour, but the first one is greyscale; all must be the same"
            )
        converted = picture.convert("L" if self._channels == 1 else "RGB")
        if self._resize is None or converted.size == (self._resize, self._resize):
            return converted
        self.resized = True
        width, height = converted.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = converted.crop((left, top, left + side, top + side))
        return square.resize((self._resize, self._resize), Image.Resampling.BICUBIC)


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(str(extent) for extent in shape)
