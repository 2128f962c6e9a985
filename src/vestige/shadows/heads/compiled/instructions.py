"""LLVM's vector instructions for the code of an intrinsic: loads, stores, sums, exponentials."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.np.arrayobj import make_array

LANES = 16
"""Heads that are trained together, one in each lane of a vector."""

FLOAT, WHOLE = ir.FloatType(), ir.IntType(64)
PLACES = ir.VectorType(ir.IntType(32), LANES)
FAST = ("fast",)

POWERS_OF_TWO = (
    1.000000072,
    0.693146967,
    0.2402211973,
    0.05550713336,
    0.009675541173,
    0.001327645183,
)
"""Coefficients of 2^f for f in [−1/2, 1/2] with the least relative error, 7.5e-8."""


class Instructions:
    """Writes loads, stores and sums of vectors for an intrinsic with these arguments."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, arguments: Any, lanes: int = LANES
    ) -> None:
        self._builder, self._vector = builder, ir.VectorType(FLOAT, lanes)
        self._data = {
            number: make_array(kind)(context, builder, value).data
            for number, (kind, value) in enumerate(zip(signature.args, arguments))
            if isinstance(kind, types.Array)
        }

    def pointer(self, array: int, place: Any) -> Any:
        """The address of a place in an argument."""
        return self._builder.gep(self._data[array], [place])

    def load(self, array: int, place: Any) -> Any:
        """The vector that starts at this place of an argument."""
        address = self._builder.bitcast(self.pointer(array, place), self._vector.as_pointer())
        return self._builder.load(address, align=4)

    def store(self, vector: Any, array: int, place: Any) -> None:
        """Write a vector to where this place of an argument starts."""
        address = self._builder.bitcast(self.pointer(array, place), self._vector.as_pointer())
        self._builder.store(vector, address, align=4)

    def plus(self, value: Any, constant: int) -> Any:
        """A whole number plus a constant."""
        return self._builder.add(value, ir.Constant(WHOLE, constant))

    def lane(self, place: Any) -> Any:
        """Where the lanes of a place start."""
        return self._builder.mul(place, ir.Constant(WHOLE, LANES))

    def splat(self, value: Any) -> Any:
        """A vector of one number."""
        lone = self._builder.insert_element(
            ir.Constant(self._vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
        )
        return self._builder.shuffle_vector(lone, lone, ir.Constant(PLACES, [0] * LANES))

    def sums(self, count: int) -> list[Any]:
        """Vectors of zeros, which LLVM keeps in registers."""
        zero = ir.Constant(self._vector, [0.0] * LANES)
        found = [cgutils.alloca_once(self._builder, self._vector) for _ in range(count)]
        for place in found:
            self._builder.store(zero, place)
        return found

    def add_products(self, sums: list[Any], lefts: list[Any], rights: list[Any]) -> None:
        """Add the products of all pairs to their sums."""
        builder = self._builder
        for i, left in enumerate(lefts):
            for j, right in enumerate(rights):
                place = sums[i * len(rights) + j]
                product = builder.fmul(left, right, flags=FAST)
                builder.store(builder.fadd(builder.load(place), product, flags=FAST), place)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of two numbers, lane by lane."""
        builder = self._builder
        return builder.select(builder.fcmp_ordered(">", one, other, flags=FAST), one, other)

    def constant(self, value: float) -> Any:
        """A vector of one constant."""
        return ir.Constant(self._vector, [value] * LANES)

    def exponential(self, value: Any) -> Any:
        """Exponential of numbers not above 0: 2^n·2^f with n whole and f in [−1/2, 1/2]."""
        builder = self._builder
        power = builder.fmul(
            self.larger(value, self.constant(-86.0)), self.constant(math.log2(math.e)), flags=FAST
        )
        rounded = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self._vector, [self._vector]),
            f"llvm.rint.v{LANES}f32",
        )
        whole = builder.call(rounded, [power])
        rest = builder.fsub(power, whole, flags=FAST)
        found = self.constant(POWERS_OF_TWO[-1])
        for number in reversed(POWERS_OF_TWO[:-1]):
            product = builder.fmul(found, rest, flags=FAST)
            found = builder.fadd(product, self.constant(number), flags=FAST)
        # n goes to where a float32 has its exponent.
        exponent = builder.shl(builder.fptosi(whole, PLACES), ir.Constant(PLACES, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(found, PLACES), exponent), self._vector)

    def totals(self, vectors: list[Any]) -> list[Any]:
        """The sum over the lanes of each vector.

        Two vectors of partial sums become one in each round, which takes a third of the operations
        of summing one vector after the other.
        """
        builder, width = self._builder, LANES
        groups = [*vectors, *[self.constant(0.0)] * (LANES - len(vectors))]
        while width > 1:
            half = width // 2
            firsts = [width * (lane // half) + lane % half for lane in range(LANES)]
            lasts = [lane + half for lane in firsts]
            pairs = list(zip(groups[::2], groups[1::2]))
            groups = []
            for pair in pairs:
                low, high = (
                    builder.shuffle_vector(*pair, ir.Constant(PLACES, lanes))
                    for lanes in (firsts, lasts)
                )
                groups.append(builder.fadd(low, high, flags=FAST))
            width = half
        lanes = (ir.Constant(ir.IntType(32), place) for place in range(len(vectors)))
        return [builder.extract_element(groups[0], lane) for lane in lanes]
