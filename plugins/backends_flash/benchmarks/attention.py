"""Time one layer's attention against the context length, and verification of several rows against one.

    python benchmarks/attention.py [--heads 9] [--kv-heads 3] [--head-size 64] [--requests 1] [--warm]

Columns: microseconds per call, best of several passes; the rate at which keys and values were read; the time relative
to that of one row. A pass goes over so many separate caches that none is still warm from its last use, as in a model of
many layers; with --warm over a single one.
"""

from __future__ import annotations

import argparse
import os
import time

# As in the engine: threads that wait for work let others run.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numba
import torch
from outrider_flash import FlashBackend, FlashOptions
from outrider_flash.layer import FlashLayer

from outrider.api import AttentionShape, CommonAttentionMetadata, LayerInfo

BLOCK_SIZE = 16
# More than the last-level cache of the machines at hand.
WORKING_SET = 128 * 2**20


def describe_step(num_requests: int, context: int, rows: int) -> CommonAttentionMetadata:
    """Each request has `rows` rows that end at `context` tokens; blocks scattered over the cache."""
    blocks = -(-context // BLOCK_SIZE)
    block_table = torch.randperm(num_requests * blocks).int().reshape(num_requests, blocks)
    own = torch.arange(context - rows, context)
    slots = block_table[:, own // BLOCK_SIZE].long() * BLOCK_SIZE + own % BLOCK_SIZE
    unused = torch.zeros(num_requests, 1, dtype=torch.int32)
    return CommonAttentionMetadata(
        num_reqs=num_requests,
        num_tokens=num_requests * rows,
        max_query_len=rows,
        max_seq_len=context,
        block_size=BLOCK_SIZE,
        query_start_loc=torch.arange(num_requests + 1, dtype=torch.int32) * rows,
        seq_lens=torch.full((num_requests,), context, dtype=torch.int32),
        positions=own.repeat(num_requests),
        block_table=block_table,
        slot_mapping=slots.flatten(),
        state_slots=unused,
        num_accepted_tokens=unused[:, 0],
    )


def make_layers(arguments: argparse.Namespace, context: int) -> tuple[FlashBackend, list[FlashLayer], int]:
    """Enough layers to overflow the caches of the machine; and the bytes of keys and values that a call reads."""
    backend = FlashBackend(FlashOptions())
    size = arguments.head_size
    shape = AttentionShape(
        num_heads=arguments.heads,
        num_kv_heads=arguments.kv_heads,
        key_size=size,
        value_size=size,
        scaling=size**-0.5,
    )
    dtype = getattr(torch, arguments.dtype)
    blocks = arguments.requests * -(-context // BLOCK_SIZE)
    num_bytes = arguments.requests * context * arguments.kv_heads * size * 2 * dtype.itemsize
    layers = []
    for index in range(1 if arguments.warm else max(1, min(64, WORKING_SET // num_bytes))):
        info = LayerInfo(
            name=f"layer{index}",
            module=torch.nn.Identity(),
            attention=shape,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        layer = backend.claim_layer(info)
        assert layer is not None
        layer.bind_cache(
            {
                name: torch.randn(blocks, BLOCK_SIZE, *spec.shape).to(spec.dtype)
                for name, spec in layer.cache_spec.tensors.items()
            }
        )
        layers.append(layer)
    return backend, layers, num_bytes


def seconds_per_call(
    backend: FlashBackend,
    layers: list[FlashLayer],
    arguments: argparse.Namespace,
    step: CommonAttentionMetadata,
) -> float:
    """Best of many passes over all layers; the step's metadata is built once per pass, as in an engine."""
    dtype = getattr(torch, arguments.dtype)
    query = torch.randn(step.num_tokens, arguments.heads, arguments.head_size).to(dtype)
    key = torch.randn(step.num_tokens, arguments.kv_heads, arguments.head_size).to(dtype)
    best = float("inf")
    for _ in range(40 if arguments.warm else 12):
        start = time.perf_counter()
        metadata = backend.build_attention_metadata(step)
        for layer in layers:
            layer.forward(metadata, query, key, key)
        best = min(best, (time.perf_counter() - start) / len(layers))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument(
        "--warm", action="store_true", help="one layer only, which stays in the processor's cache"
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    print(f"{arguments}")
    print("context  rows   us/call    GB/s  vs 1 row", flush=True)
    for context in arguments.contexts:
        backend, layers, num_bytes = make_layers(arguments, context)
        first = None
        for rows in arguments.rows:
            seconds = seconds_per_call(
                backend, layers, arguments, describe_step(arguments.requests, context, rows)
            )
            first = first or seconds
            print(
                f"{context:7} {rows:5} {seconds * 1e6:9.1f} {num_bytes / seconds / 1e9:7.1f} {seconds / first:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
