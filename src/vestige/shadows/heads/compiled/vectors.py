"""Vector instructions for numba: tiles of products whose sums stay in registers.

Loops over lanes that numba leaves to LLVM keep sums in memory, which costs most of the speed. The
functions here write LLVM's vector instructions themselves; sixteen lanes become whatever vectors
the processor has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from vestige.shadows.heads.compiled.instructions import FAST, FLOAT, LANES, WHOLE, Instructions

ROWS, COLUMNS = 2, 5
"""Sums of one tile: classes by records. Ten sums keep both multipliers of a core busy."""

CHUNKS = 4
"""Vectors of features that one tile of :func:`combine_tile` writes for each of its rows."""

OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy", "nogil": True, "cache": True}
"""How every kernel is compiled."""

# What it makes of a function has other arguments: typing is numba's own.
_intrinsic: Any = intrinsic


@_intrinsic
def bits_of(typing: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@_intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 of an int32's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@_intrinsic
def move_eight(typing: Any, to: Any, at: Any, source: Any, place: Any) -> Any:
    """``to[at:at + 8] = source[place:place + 8]`` for flat arrays of float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Instructions(context, builder, signature, arguments, lanes=8)
        code.store(code.load(2, arguments[3]), 0, arguments[1])
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp), generate


@_intrinsic
def product_tile(
    typing: Any,
    out: Any,
    source: Any,
    kept: Any,
    scale: Any,
    matrix: Any,
    values: Any,
    row: Any,
    column: Any,
    size: Any,
) -> Any:
    """A tile of ``out = kept·source + scale·values·matrixᵀ``, for the heads of all lanes.

    Arrays are flat, the lanes last: (rows, size, lanes), the matrix (size, size, lanes). The tile
    starts at ``row`` and ``column``; rows are a multiple of ROWS, size is one of COLUMNS.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Instructions(context, builder, signature, arguments)
        kept, scale, row, column, size = (arguments[n] for n in (2, 3, 6, 7, 8))
        rows = [builder.mul(code.plus(row, i), size) for i in range(ROWS)]
        columns = [builder.mul(code.plus(column, j), size) for j in range(COLUMNS)]
        sums = code.sums(ROWS * COLUMNS)
        with cgutils.for_range(builder, size) as loop:
            left = [code.load(5, code.lane(builder.add(at, loop.index))) for at in rows]
            right = [code.load(4, code.lane(builder.add(at, loop.index))) for at in columns]
            code.add_products(sums, left, right)
        kept, scale = code.splat(kept), code.splat(scale)
        for i in range(ROWS):
            for j in range(COLUMNS):
                at = code.lane(builder.add(rows[i], code.plus(column, j)))
                total = builder.fmul(scale, builder.load(sums[i * COLUMNS + j]), flags=FAST)
                old = builder.fmul(kept, code.load(1, at), flags=FAST)
                code.store(builder.fadd(old, total, flags=FAST), 0, at)
        return context.get_dummy_value()

    size_of = types.intp
    numbers = (types.float32, types.float32)
    return types.void(out, source, *numbers, matrix, values, size_of, size_of, size_of), generate


@_intrinsic
def dot_tile(
    typing: Any,
    out: Any,
    at: Any,
    stride: Any,
    plus: Any,
    left: Any,
    rows: Any,
    right: Any,
    columns: Any,
    n: Any,
) -> Any:
    """Dot products of ROWS rows with COLUMNS others, over ``n`` numbers, plus a constant.

    ``rows`` and ``columns`` are tuples of places in the flat arrays; ``n`` is a multiple of LANES.
    Products go to one lane of ``out``: the first to the place ``at``, the next row's ``stride``
    behind.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Instructions(context, builder, signature, arguments)
        rows = cgutils.unpack_tuple(builder, arguments[5], ROWS)
        columns = cgutils.unpack_tuple(builder, arguments[7], COLUMNS)
        sums = code.sums(ROWS * COLUMNS)
        with cgutils.for_range_slice(
            builder, ir.Constant(WHOLE, 0), arguments[8], ir.Constant(WHOLE, LANES), inc=True
        ) as (index, _):
            lefts = [code.load(4, builder.add(at, index)) for at in rows]
            rights = [code.load(6, builder.add(at, index)) for at in columns]
            code.add_products(sums, lefts, rights)
        totals = code.totals([builder.load(place) for place in sums])
        for number, total in enumerate(totals):
            row, column = divmod(number, COLUMNS)
            place = code.plus(arguments[1], column * LANES)
            if row:
                place = builder.add(place, builder.mul(arguments[2], ir.Constant(WHOLE, row)))
            total = builder.fadd(total, arguments[3], flags=FAST)
            builder.store(total, code.pointer(0, place))
        return context.get_dummy_value()

    places = types.UniTuple(types.intp, ROWS), types.UniTuple(types.intp, COLUMNS)
    size = types.intp
    return types.void(
        out, size, size, types.float32, left, places[0], right, places[1], size
    ), generate


@_intrinsic
def prefetch(typing: Any, array: Any, place: Any) -> Any:
    """Ask for the memory at a place of a flat array before it is needed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        ask = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole]),
            "llvm.prefetch.p0",
        )
        code = Instructions(context, builder, signature, arguments)
        address = builder.bitcast(code.pointer(0, arguments[1]), byte)
        # To be read, of some use later, data and not code.
        builder.call(ask, [address, *(ir.Constant(whole, n) for n in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@_intrinsic
def residual_column(
    typing: Any,
    residuals: Any,
    logits: Any,
    goals: Any,
    factors: Any,
    sums: Any,
    scale: Any,
    record: Any,
    classes: Any,
    size: Any,
) -> Any:
    """Softmax minus goal, times the record's factor, for one record of the heads of all lanes.

    Adds ``scale`` times the result to ``sums``. Arrays are flat, (classes, size, lanes), factors
    (size, lanes).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Instructions(context, builder, signature, arguments)
        record, classes, size = arguments[6:]
        scale = code.splat(arguments[5])
        largest, total = code.sums(2)
        builder.store(code.load(1, code.lane(record)), largest)

        def place(loop: Any) -> Any:
            return code.lane(builder.add(builder.mul(loop.index, size), record))

        with cgutils.for_range(builder, classes) as loop:
            logit = code.load(1, place(loop))
            builder.store(code.larger(logit, builder.load(largest)), largest)
        with cgutils.for_range(builder, classes) as loop:
            logit = code.load(1, place(loop))
            shifted = builder.fsub(logit, builder.load(largest), flags=FAST)
            found = code.exponential(shifted)
            code.store(found, 0, place(loop))
            builder.store(builder.fadd(builder.load(total), found, flags=FAST), total)
        factor = code.load(3, code.lane(record))
        share = builder.fdiv(factor, builder.load(total), flags=FAST)
        with cgutils.for_range(builder, classes) as loop:
            chance = builder.fmul(code.load(0, place(loop)), share, flags=FAST)
            goal = builder.fmul(code.load(2, place(loop)), factor, flags=FAST)
            found = builder.fsub(chance, goal, flags=FAST)
            code.store(found, 0, place(loop))
            moved = builder.fmul(scale, found, flags=FAST)
            code.store(builder.fadd(code.load(4, place(loop)), moved, flags=FAST), 4, place(loop))
        return context.get_dummy_value()

    size_of = types.intp
    return types.void(
        residuals, logits, goals, factors, sums, types.float32, size_of, size_of, size_of
    ), generate


@_intrinsic(prefer_literal=True)
def combine_tile(
    typing: Any,
    out: Any,
    to: Any,
    start: Any,
    base: Any,
    share: Any,
    coefficients: Any,
    factors: Any,
    rows: Any,
    places: Any,
    at: Any,
    chunks: Any,
) -> Any:
    """A tile of ``out = share·start + Σ coefficient·row``: ROWS rows of CHUNKS vectors, or of one.

    ``to``, ``base`` and ``factors`` are tuples of places in ``out``, ``start`` and
    ``coefficients``; ``places`` is an array of those of all rows, ``at`` where in a row the tile
    starts.
    """
    width = chunks.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Instructions(context, builder, signature, arguments)
        to, base, factors = (cgutils.unpack_tuple(builder, arguments[n], ROWS) for n in (1, 3, 6))
        at = [code.plus(arguments[9], LANES * chunk) for chunk in range(width)]
        share, sums = code.splat(arguments[4]), code.sums(ROWS * width)
        for i in range(ROWS):
            for j in range(width):
                old = code.load(2, builder.add(base[i], at[j]))
                builder.store(builder.fmul(share, old, flags=FAST), sums[i * width + j])
        count = make_array(signature.args[8])(context, builder, arguments[8]).nitems
        with cgutils.for_range(builder, count) as loop:
            row = builder.load(code.pointer(8, loop.index))
            rights = [code.load(7, builder.add(row, place)) for place in at]
            lefts = [
                code.splat(builder.load(code.pointer(5, builder.add(f, loop.index))))
                for f in factors
            ]
            code.add_products(sums, lefts, rights)
        for i in range(ROWS):
            for j in range(width):
                code.store(builder.load(sums[i * width + j]), 0, builder.add(to[i], at[j]))
        return context.get_dummy_value()

    pair = types.UniTuple(types.intp, ROWS)
    return types.void(
        out, pair, start, pair, types.float32, coefficients, pair, rows, places, types.intp, chunks
    ), generate
