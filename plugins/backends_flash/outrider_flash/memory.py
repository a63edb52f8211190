"""Arrays and records at addresses that compiled code was given as numbers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import carray
from numba.core import types
from numba.core.extending import intrinsic

from .simd import compiled


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


pointer: Any = _pointer
"""An address as `numba.carray` takes it."""


@compiled
def array(address: int, size: int, kind: Any) -> Any:
    """`[size]` of a dtype at an address."""
    return carray(pointer(address), (size,), kind)


@compiled
def record(address: int, kind: Any) -> Any:
    """The record at an address."""
    return carray(pointer(address), (1,), kind)[0]
