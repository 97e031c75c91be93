"""Bytecode of MLIR as text. Run as a program, it reads the one and writes the other: bytes that are no sound bytecode may end the
process that reads them, so that is not the user's. It needs jaxlib alone."""

from __future__ import annotations

import sys

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

MAGIC = b"ML\xefR"


def context() -> ir.Context:
    """With the dialects that steps are written in."""
    made = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    made.append_dialect_registry(registry)
    made.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(made)
    mhlo.register_mhlo_dialect(made)
    return made


def text_of(bytecode: bytes) -> bytes:
    """A portable artifact names its version first."""
    with context() as made:
        is_artifact = b"StableHLO_v" in bytecode[:64]
        module = stablehlo.deserialize_portable_artifact(made, bytecode) if is_artifact else ir.Module.parse(bytecode)
        printed = module.operation.get_asm(binary=True, enable_debug_info=True)
        assert isinstance(printed, bytes)
        return printed


if __name__ == "__main__":
    sys.stdout.buffer.write(text_of(sys.stdin.buffer.read()))
