"""G.711: 8-bit mu-law and A-law to 16-bit PCM at the same rate, with one table for each (ITU-T G.711)."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Companding(Enum):
    """The two mappings of 8 bits to amplitudes in G.711."""

    MU = "mu-law"
    A = "A-law"


def decode(data: bytes, law: Companding) -> bytes:
    """Return samples of one byte as 16-bit little-endian PCM, two bytes a sample."""
    return _TABLES[law][np.frombuffer(data, np.uint8)].tobytes()


def _mu_law() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = _parts(code)
    size = (((mantissa << 3) + 132) << exponent) - 132
    return np.where(code & 0x80, -size, size).astype("<i2")


def _a_law() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.uint8) ^ np.uint8(0x55)
    exponent, mantissa = _parts(code)
    step = (mantissa << 4) + 8
    size = np.where(exponent > 0, (step + 256) << np.maximum(exponent - 1, 0), step)
    return np.where(code & 0x80, size, -size).astype("<i2")


def _parts(code: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)


_TABLES = {Companding.MU: _mu_law(), Companding.A: _a_law()}
