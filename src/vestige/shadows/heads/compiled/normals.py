"""The random numbers of torch's CPU generator, made several times as fast.

Torch draws from a Mersenne Twister (Matsumoto and Nishimura, "Mersenne Twister: A 623-Dimensionally
Equidistributed Uniform Pseudorandom Number Generator", 1998) and makes normal numbers by Box and
Muller ("A Note on the Generation of Random Normal Deviates", 1958) from groups of sixteen uniform
ones. The kernels here repeat both: the same generator gives the same numbers to float32 rounding
and is left in the same state, so heads do not depend on which of the two drew them.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32, njit, uint32

from vestige.shadows.heads.compiled.vectors import OPTIONS, bits_of, float_of, move_eight

STATE = 624
"""Words in the state of a Mersenne Twister."""

GROUP = 16
"""Torch makes normal numbers in groups of this size."""

_CHUNK = 2048
_UPPER, _LOWER, _TWIST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)


@njit(inline="always", **OPTIONS)
def _mixed(high, low, far):
    word = uint32(uint32(high & _UPPER) | uint32(low & _LOWER))
    odd = uint32(uint32(0) - uint32(word & uint32(1)))
    return uint32(far ^ uint32(word >> uint32(1)) ^ uint32(odd & _TWIST))


@njit(**OPTIONS)
def _twist(state):
    """The next 624 words of the Mersenne Twister; no index is negative, so that loops vectorise."""
    for i in range(227):
        state[i] = _mixed(state[i], state[i + 1], state[i + 397])
    for i in range(396):
        state[i + 227] = _mixed(state[i + 227], state[i + 228], state[i])
    state[623] = _mixed(state[623], state[0], state[396])


@njit(inline="always", **OPTIONS)
def _tempered(word):
    word = uint32(word ^ uint32(word >> uint32(11)))
    word = uint32(word ^ uint32(uint32(word << uint32(7)) & uint32(0x9D2C5680)))
    word = uint32(word ^ uint32(uint32(word << uint32(15)) & uint32(0xEFC60000)))
    return uint32(word ^ uint32(word >> uint32(18)))


@njit(**OPTIONS)
def fill_uniform(state, place, out):
    """Fill ``out`` with torch's uniform numbers in [0, 1); the next place in the state."""
    done = 0
    while done < out.size:
        if place == STATE:
            _twist(state)
            place = 0
        count = min(out.size - done, STATE - place)
        words, numbers = state[place : place + count], out[done : done + count]
        for i in range(count):
            kept = int32(uint32(_tempered(words[i]) & uint32(0xFFFFFF)))
            numbers[i] = float32(kept) * float32(2.0**-24)
        place += count
        done += count
    return place


@njit(inline="always", **OPTIONS)
def _logarithm(value):
    """Natural logarithm of a positive number; polynomial of Moshier's Cephes library (logf)."""
    bits = bits_of(value)
    power = int32(int32(bits - int32(0x3F3504F3)) >> int32(23))
    x = float_of(int32(bits - int32(power << int32(23)))) - float32(1)
    p = float32(7.0376836292e-2) * x - float32(1.1514610310e-1)
    p = p * x + float32(1.1676998740e-1)
    p = p * x - float32(1.2420140846e-1)
    p = p * x + float32(1.4249322787e-1)
    p = p * x - float32(1.6668057665e-1)
    p = p * x + float32(2.0000714765e-1)
    p = p * x - float32(2.4999993993e-1)
    p = p * x + float32(3.3333331174e-1)
    square, power = x * x, float32(power)
    rest = x * square * p - power * float32(2.12194440e-4) - float32(0.5) * square
    return x + rest + power * float32(0.693359375)


@njit(**OPTIONS)
def _box_muller(first, second, deviation):
    """Turn pairs of uniform numbers into pairs of normal ones."""
    for i in range(first.size):
        square = float32(-2) * _logarithm(float32(1) - first[i])
        radius = np.sqrt(max(square, float32(0))) * deviation
        # The angle is a whole number of quarter turns and up to an eighth more on either side;
        # Taylor's polynomials in quarter turns are exact to float32 there.
        turns = float32(4) * second[i]
        quarter = int32(turns + float32(0.5))
        t = turns - float32(quarter)
        w = t * t
        sine = float32(-4.681754135e-3) + w * float32(1.604411848e-4)
        sine = float32(-6.459640975e-1) + w * (float32(7.969262625e-2) + w * sine)
        sine = t * (float32(1.570796327) + w * sine)
        cosine = float32(9.192602748e-4) - w * float32(2.520204237e-5)
        cosine = float32(2.536695079e-1) + w * (float32(-2.086348076e-2) + w * cosine)
        cosine = float32(1) + w * (float32(-1.233700550) + w * cosine)
        odd = int32(quarter & int32(1)) != int32(0)
        one, other = (sine, cosine) if odd else (cosine, sine)
        sign = int32(int32(int32(quarter + int32(1)) & int32(2)) << int32(30))
        first[i] = radius * float_of(int32(bits_of(one) ^ sign))
        sign = int32(int32(quarter & int32(2)) << int32(30))
        second[i] = radius * float_of(int32(bits_of(other) ^ sign))


@njit(**OPTIONS)
def fill_normal(state, place, out, deviation):
    """Fill ``out``, sixteen numbers or more, as torch's ``normal_`` does; the next place.

    Where the size is not a multiple of sixteen, the last sixteen numbers are drawn once more.
    """
    uniform = np.empty(_CHUNK, np.float32)
    first, second = np.empty(_CHUNK // 2, np.float32), np.empty(_CHUNK // 2, np.float32)
    for start in range(0, out.size, _CHUNK):
        count = min(_CHUNK, out.size - start)
        place = fill_uniform(state, place, uniform[:count])
        place = _fill_groups(
            uniform, first, second, out[start : start + count // GROUP * GROUP], deviation, place
        )
    if out.size % GROUP:
        place = fill_uniform(state, place, uniform[:GROUP])
        place = _fill_groups(uniform, first, second, out[out.size - GROUP :], deviation, place)
    return place


@njit(**OPTIONS)
def _fill_groups(uniform, first, second, out, deviation, place):
    groups = out.size // GROUP
    for group in range(groups):
        move_eight(first, group * 8, uniform, group * 16)
        move_eight(second, group * 8, uniform, group * 16 + 8)
    _box_muller(first[: groups * 8], second[: groups * 8], deviation)
    for group in range(groups):
        move_eight(out, group * 16, first, group * 8)
        move_eight(out, group * 16 + 8, second, group * 8)
    return place
