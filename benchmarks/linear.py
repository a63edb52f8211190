"""Our row-invariant linear against torch's, interleaved: `python benchmarks/linear.py`.

Weights rotate through more copies than a cache holds, as the layers of a model do. Per shape and number of rows: time
of one call, the weight's bytes per second, and times relative to torch, whose weights are float32 in any case, and to
one row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch.nn.functional import linear as torch_linear

from outrider.kernels.cpu.linear import linear
from outrider.kernels.cpu.weights import PackedWeight, WeightFormat

BYTES: dict[WeightFormat, int] = {"float32": 4, "bfloat16": 2, "int8": 1}
SHAPES = [(576, 576), (1536, 576), (576, 1536), (49_152, 576), (8192, 2048), (2048, 8192)]
ROWS = [1, 2, 4, 8, 16, 32, 64, 512]
ROTATION_BYTES = 128 << 20


def pack(weight: torch.Tensor, weights: WeightFormat) -> PackedWeight:
    """Keep a float32 matrix `[N, K]` as `weights` says."""
    if weights == "bfloat16":
        return PackedWeight.pack(weight.bfloat16().view(torch.uint16).numpy())
    return PackedWeight.pack(weight.numpy(), quantize=weights == "int8")


def milliseconds(function: Callable[..., object], calls: Sequence[tuple[Any, Any]]) -> float:
    """Mean time of a call."""
    start = time.perf_counter()
    for x, weight in calls:
        function(x, weight)
    return (time.perf_counter() - start) / len(calls) * 1e3


def main() -> None:
    """Print one line per shape and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shape", type=int, nargs=2, action="append", metavar=("N", "K"), help="default: several"
    )
    parser.add_argument("--weights", choices=list(BYTES), default="bfloat16", help="our format")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=7, help="the best of these is shown")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    args = parser.parse_args()
    numba.set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    random = np.random.default_rng(0)

    print(f"{args.weights} weights, {args.threads} threads, best of {args.repeats} interleaved repeats")
    titles = f"{'ours ms':>9} {'GB/s':>6} {'GFLOP/s':>8} {'torch ms':>9} {'ours/torch':>10} {'M/1':>6}"
    print(f"{'N':>6} {'K':>6} {'M':>4} {titles}")
    for num_columns, depth in args.shape or SHAPES:
        num_bytes = BYTES[args.weights] * num_columns * depth
        num_copies = max(2, ROTATION_BYTES // num_bytes + 1)
        tensors = [
            torch.from_numpy(random.standard_normal((num_columns, depth), dtype=np.float32))
            for _ in range(num_copies)
        ]
        packed = [pack(weight, args.weights) for weight in tensors]
        one_row = float("nan")
        for num_rows in args.rows:
            x = random.standard_normal((num_rows, depth), dtype=np.float32)
            rows = torch.from_numpy(x)
            count = max(1, num_copies // (1 + num_rows // 32))
            ours, theirs = [], []
            with torch.inference_mode():
                for _ in range(args.repeats):
                    ours.append(milliseconds(linear, [(x, weight) for weight in packed[:count]]))
                    theirs.append(milliseconds(torch_linear, [(rows, tensor) for tensor in tensors[:count]]))
            best, other = min(ours), min(theirs)
            one_row = best if num_rows == 1 else one_row
            print(
                f"{num_columns:>6} {depth:>6} {num_rows:>4} {best:>9.3f} {1e-6 * num_bytes / best:>6.1f} "
                f"{2e-6 * num_rows * num_columns * depth / best:>8.0f} {other:>9.3f} {best / other:>10.2f} "
                f"{best / one_row:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
