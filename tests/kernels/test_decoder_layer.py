"""Decoder layers: the right numbers, and the same bits whatever stands beside a row and whoever works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.kernels.cpu.decoder import AFTER, BEFORE, run_layers
from outrider.kernels.cpu.decoder_records import layer_record
from outrider.kernels.cpu.decoder_workspace import DecoderWorkspace
from outrider.kernels.cpu.decoder_workspace import Sizes as LayerSizes
from outrider.kernels.cpu.product import Matrix
from outrider.kernels.cpu.simd import LANES
from outrider.kernels.cpu.weights import NOTHING, PackedWeight, padded

Array = npt.NDArray[Any]

UNIT = 2.0**-24
EPSILON = np.float32(1e-5)
FORMATS = ["float32", "bfloat16", "bfloat16 in 12 bits", "int8"]
MOST_ROWS = 64


@dataclass(frozen=True)
class Sizes:
    """`H`, `I`, query heads, key-value heads, `D`, and entries of a head that are rotated."""

    width: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    rotary: int


WHOLE = Sizes(64, 96, 4, 2, 16, 16)
ODD = Sizes(40, 53, 3, 1, 10, 6)  # nothing is a multiple of a vector
LARGE = Sizes(192, 500, 6, 3, 32, 32)  # several tasks for each of several workers
WIDE = Sizes(
    32768, 64, 2, 1, 16, 16
)  # each task takes long, so that who does not wait for it reads too early


class Layer:
    """A layer of random numbers and what enters it, `MOST_ROWS` rows."""

    def __init__(
        self, sizes: Sizes, weights: str = "float32", *, bias: bool = False, head_norms: bool = False,
        rotary: bool = True, seed: int = 5,
    ) -> None:  # fmt: skip
        self.sizes = sizes
        random = np.random.default_rng(seed)

        def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Array:
            return (random.standard_normal(shape) * scale + mean).astype(np.float32)

        def linear(num_columns: int, depth: int) -> tuple[PackedWeight, Array]:
            matrix = normal(num_columns, depth, scale=depth**-0.5)
            if weights.startswith("bfloat16"):
                matrix = (matrix.view(np.uint32) >> 16).astype(np.uint16)
            packed = PackedWeight.pack(
                matrix, quantize=weights == "int8", compact=weights.endswith("12 bits")
            )
            return packed, normal(num_columns) if bias else NOTHING

        s, kv = sizes, sizes.kv_heads * sizes.head
        self.q, self.k, self.v = (linear(n, s.width) for n in (s.heads * s.head, kv, kv))
        self.o, self.gate, self.up, self.down = (
            linear(n, depth)
            for n, depth in (
                (s.width, s.heads * s.head),
                (s.intermediate, s.width),
                (s.intermediate, s.width),
                (s.width, s.intermediate),
            )
        )
        self.norms = [normal(s.width, scale=0.3, mean=1.0) for _ in range(2)]
        self.head_norms = [normal(s.head, scale=0.3, mean=1.0) if head_norms else NOTHING for _ in range(2)]
        angles = normal(MOST_ROWS, s.rotary if rotary else 0, scale=3.0)
        self.cos, self.sin = np.cos(angles), np.sin(angles)
        # Magnitudes over several decades, so that any other order of addition shows in the bits.
        decades = 10.0 ** random.integers(-2, 2, (MOST_ROWS, s.width))
        self.hidden = (normal(MOST_ROWS, s.width) * decades).astype(np.float32)
        self.attended = normal(MOST_ROWS, s.heads * s.head)

    def space(self, rows: Any, num_workers: int, num_layers: int = 1) -> tuple[DecoderWorkspace, int]:
        """A workspace full of NaN for some rows, and how many they are."""
        s, num_rows = self.sizes, len(self.hidden[rows])
        sizes = LayerSizes(
            num_heads=s.heads,
            num_kv_heads=s.kv_heads,
            head_size=s.head,
            hidden_size=s.width,
            intermediate_size=s.intermediate,
        )
        space = DecoderWorkspace(sizes, num_layers, num_workers)
        space.begin(num_rows, (self.cos[rows], self.sin[rows]), num_workers)
        for name in ("normed", "query", "key", "value", "middle", "gates", "ups"):
            space._arrays[name][:] = np.nan
        space.rows("hidden", num_rows, s.width)[:] = self.hidden[rows]
        space.attended(num_rows)[:] = self.attended[rows]
        return space, num_rows

    @property
    def like(self) -> Array:
        """An empty array of the weights' type."""
        like: Array = self.q[0].values[:0, 0]
        return like

    def record(self) -> Array:
        linears = {"q": self.q, "k": self.k, "v": self.v, "output": self.o, "gate": self.gate, "up": self.up}
        return layer_record(
            **{name: matrix(*linear) for name, linear in {**linears, "down": self.down}.items()},
            input_norm=self.norms[0],
            output_norm=self.norms[1],
            q_norm=self.head_norms[0],
            k_norm=self.head_norms[1],
            **dict.fromkeys(("input_epsilon", "head_epsilon", "output_epsilon"), EPSILON),
            uses_rotary=True,
        )

    def call(self, space: DecoderWorkspace, part: int) -> None:
        record = self.record()
        run_layers(record.ctypes.data, 1, 0, space.step, self.like, part, part)

    def before(self, rows: Any = slice(None), num_workers: int = 1) -> list[Array]:
        """Queries, keys and values of some rows, each `[T, .]`."""
        s = self.sizes
        space, num_rows = self.space(rows, num_workers)
        self.call(space, BEFORE)
        heads = {"query": s.heads, "key": s.kv_heads, "value": s.kv_heads}
        return [space.rows(name, num_rows, n * s.head).copy() for name, n in heads.items()]

    def after(self, rows: Any = slice(None), num_workers: int = 1) -> Array:
        """Output of some rows, `[T, H]`."""
        space, num_rows = self.space(rows, num_workers)
        self.call(space, AFTER)
        return space.rows("hidden", num_rows, self.sizes.width).copy()

    def run(self, rows: Any = slice(None), num_workers: int = 1) -> Array:
        """Everything that both calls give, side by side."""
        return np.concatenate([*self.before(rows, num_workers), self.after(rows, num_workers)], axis=1)


def matrix(packed: PackedWeight, bias: Array) -> Matrix:
    return Matrix(packed.values, packed.scales, packed.exceptions, bias)


@dataclass(frozen=True)
class Approximate:
    """Exact numbers in float64, and how far float32 may be from them: each operation rounds by `UNIT` at most."""

    value: Array
    error: Array

    @property
    def most(self) -> Array:
        return np.abs(self.value) + self.error

    def rounded(self, times: float = 1) -> Approximate:
        return Approximate(self.value, self.error + times * UNIT * self.most)

    def __add__(self, other: Approximate) -> Approximate:
        return Approximate(self.value + other.value, self.error + other.error).rounded()

    def times(self, linear: tuple[PackedWeight, Array]) -> Approximate:
        """The chains of a product have `K / LANES` terms, the tree adds log2(LANES) roundings, a scale one."""
        packed, bias = linear
        weight = packed.rows().astype(np.float64)
        if packed.format == "int8":
            weight = packed.values[:, : packed.depth] * packed.scales.astype(np.float64)[:, None]
        roundings = padded(packed.depth) / LANES + np.log2(LANES) + 1
        error = (self.error + roundings * UNIT * self.most) @ np.abs(weight).T
        product = Approximate(self.value @ weight.T, error)
        return product + exactly(bias[None]) if len(bias) else product

    def normalized(self, weight: Array) -> Approximate:
        """Worst case of a sum in order; its root halves a relative error; three more operations and two products."""
        size = self.value.shape[-1]
        mean = (self.value**2).mean(-1, keepdims=True) + float(EPSILON)
        slack = (self.error * (2 * np.abs(self.value) + self.error)).mean(-1, keepdims=True)
        relative = slack / mean + (size + 4) * UNIT
        scale = np.abs(weight.astype(np.float64)) / np.sqrt(mean)
        error = scale * (self.error + self.most * (relative + 5 * UNIT))
        return Approximate(weight.astype(np.float64) * self.value / np.sqrt(mean), error)

    def rotated(self, cos: Array, sin: Array) -> Approximate:
        half = cos.shape[1] // 2
        turned = np.roll(np.arange(2 * half), half)
        sign = np.where(np.arange(2 * half) < half, -1.0, 1.0)
        c, s = (table.astype(np.float64)[:, None] for table in (cos, sin))
        own, other = (Approximate(self.value[..., i], self.error[..., i]) for i in (slice(2 * half), turned))
        value = own.value * c + sign * other.value * s
        error = (own.error + 2 * UNIT * own.most) * np.abs(c) + (
            other.error + 2 * UNIT * other.most
        ) * np.abs(s)
        out = Approximate(self.value.copy(), self.error.copy())
        out.value[..., : 2 * half], out.error[..., : 2 * half] = value, error
        return out

    def gated(self, up: Approximate) -> Approximate:
        """The slope of silu is 1.1 at most; the exponential is good to some units."""
        silu = self.value / (1 + np.exp(-self.value))
        gate = Approximate(silu, 1.1 * self.error).rounded(8)
        error = gate.error * up.most + gate.most * up.error
        return Approximate(silu * up.value, error).rounded()


def exactly(value: Array) -> Approximate:
    return Approximate(value.astype(np.float64), np.zeros(value.shape))


def reference(layer: Layer) -> Approximate:
    """What `Layer.run` gives."""
    normed = exactly(layer.hidden).normalized(layer.norms[0])
    outs = []
    for linear, norm, rotates in zip(
        (layer.q, layer.k, layer.v), [*layer.head_norms, NOTHING], (True, True, False), strict=True
    ):
        flat = normed.times(linear)
        heads = Approximate(*(a.reshape(MOST_ROWS, -1, layer.sizes.head) for a in (flat.value, flat.error)))
        if len(norm):
            heads = heads.normalized(norm)
        if rotates and layer.cos.shape[1]:
            heads = heads.rotated(layer.cos, layer.sin)
        outs.append(Approximate(*(a.reshape(MOST_ROWS, -1) for a in (heads.value, heads.error))))
    middle = exactly(layer.hidden) + exactly(layer.attended).times(layer.o)
    normed = middle.normalized(layer.norms[1])
    outs.append(middle + normed.times(layer.gate).gated(normed.times(layer.up)).times(layer.down))
    return Approximate(*(np.concatenate([getattr(o, part) for o in outs], 1) for part in ("value", "error")))


VARIANTS = [
    {},
    {"bias": True, "head_norms": True},
    {"head_norms": True, "rotary": False},
    {"bias": True, "rotary": False},
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("sizes", [WHOLE, ODD])
def test_the_numbers_are_as_close_as_float32_allows(sizes: Sizes, weights: str, variant: Any) -> None:
    layer = Layer(sizes, weights, **variant)
    expected = reference(layer)
    assert (np.abs(layer.run() - expected.value) <= expected.error).all()
    assert np.median(expected.error / np.abs(expected.value)) < 1e-4  # or the bound would say nothing


@pytest.mark.parametrize("variant", VARIANTS[:3])
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("sizes", [WHOLE, ODD])
def test_a_row_has_the_same_bits_in_every_batch(sizes: Sizes, weights: str, variant: Any) -> None:
    layer = Layer(sizes, weights, **variant)
    alone = np.concatenate([layer.run(slice(row, row + 1)) for row in range(MOST_ROWS)])
    for num_rows in range(1, MOST_ROWS + 1):
        last = slice(MOST_ROWS - num_rows, MOST_ROWS)
        assert (layer.run(slice(num_rows)) == alone[:num_rows]).all()
        assert (layer.run(last) == alone[last]).all()
    order = np.random.default_rng(0).permutation(MOST_ROWS)
    assert (layer.run(order) == alone[order]).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("sizes", [WHOLE, ODD, LARGE])
def test_bits_do_not_depend_on_the_number_of_workers(sizes: Sizes, weights: str) -> None:
    layer = Layer(sizes, weights, bias=True, head_norms=True)
    for num_rows in (1, 3, 17, MOST_ROWS):
        expected = layer.run(slice(num_rows))
        assert not np.isnan(expected).any()
        for num_workers in (2, 3, 8, 50):
            for _ in range(10):  # who draws which task differs from time to time
                assert (layer.run(slice(num_rows), num_workers) == expected).all()


def test_no_worker_runs_ahead_of_what_others_have_not_written_yet() -> None:
    layer = Layer(WIDE)
    rows = slice(16)  # one task of a norm: all workers but one find nothing to do and wait
    expected = layer.run(rows)
    for _ in range(100):
        assert (layer.run(rows, num_workers=2) == expected).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("sizes", [WHOLE, ODD])
def test_what_is_not_finite_stays_in_its_row(sizes: Sizes, weights: str, poison: float) -> None:
    layer = Layer(sizes, weights, head_norms=True)
    for num_rows in (5, MOST_ROWS):
        clean = layer.run(slice(num_rows))
        for array in (layer.hidden, layer.attended):
            before = array[2, 3]
            array[2, 3] = poison
            poisoned = layer.run(slice(num_rows))
            assert not np.isfinite(poisoned[2]).all()
            assert (np.delete(poisoned, 2, axis=0) == np.delete(clean, 2, axis=0)).all()
            array[2, 3] = before


def test_gates_far_from_zero_are_closed_or_open() -> None:
    """silu(g) is 0 for a very negative g, and g for a large one."""
    layer = Layer(WHOLE, bias=True)
    gates = np.array([-1e38, -1e30, -1e4, -88, -87, -30, 0, 30, 88, 1e4, 1e30], np.float32)
    for linear in (layer.gate, layer.up):
        linear[0].values[:] = 0
        linear[1][:] = 1
    layer.gate[1][: len(gates)] = gates
    layer.down[1][:] = 0
    layer.o[0].values[:] = layer.o[1][:] = 0
    layer.hidden[:] = 0
    layer.down[0].values[:] = np.eye(*layer.down[0].values.shape, dtype=np.float32)
    silu = layer.after(slice(1))[0, : len(gates)]
    exact = gates.astype(np.float64) / (1 + np.exp(np.minimum(-gates.astype(np.float64), 700)))
    assert (np.abs(silu - exact) <= 8 * UNIT * np.abs(exact) + 1e-35).all()
