"""Raw memory for compiled kernels: loads, stores and copies at an address, and reads from a file.

Arrow buffers are handed to kernels as addresses, so one kernel serves any number of pages without building a
Python object for each. Whoever passes an address keeps its buffer alive and in bounds.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import typing
from numba.extending import intrinsic


def _load(number_type, bits, name):
    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            word = ir.IntType(bits)
            pointer = builder.inttoptr(args[0], word.as_pointer())
            return builder.load(pointer, align=1)

        return number_type(types.int64), codegen

    load.__name__ = name
    return load


def _store(number_type, bits, name):
    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            word = ir.IntType(bits)
            pointer = builder.inttoptr(args[0], word.as_pointer())
            builder.store(args[1], pointer, align=1)

        return types.void(types.int64, number_type), codegen

    store.__name__ = name
    return store


load_u8 = _load(types.uint8, 8, "load_u8")
load_i8 = _load(types.int8, 8, "load_i8")
load_i16 = _load(types.int16, 16, "load_i16")
load_u16 = _load(types.uint16, 16, "load_u16")
load_i32 = _load(types.int32, 32, "load_i32")
load_u32 = _load(types.uint32, 32, "load_u32")
load_i64 = _load(types.int64, 64, "load_i64")
load_u64 = _load(types.uint64, 64, "load_u64")
store_u8 = _store(types.uint8, 8, "store_u8")
store_i16 = _store(types.int16, 16, "store_i16")
store_i32 = _store(types.int32, 32, "store_i32")
store_i64 = _store(types.int64, 64, "store_i64")


@intrinsic
def load_f32(typingctx, address):
    """The float at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.FloatType().as_pointer()), align=1)

    return types.float32(types.int64), codegen


@intrinsic
def load_f64(typingctx, address):
    """The double at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()), align=1)

    return types.float64(types.int64), codegen


@intrinsic
def copy_bytes(typingctx, target, source, length):
    """Copy `length` bytes between two addresses that do not overlap."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        function = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
        arguments = [
            builder.inttoptr(args[0], byte),
            builder.inttoptr(args[1], byte),
            args[2],
            ir.Constant(ir.IntType(1), 0),
        ]
        builder.call(function, arguments)

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_16(typingctx, target, source):
    """Copy 16 bytes between two addresses."""

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(64), 2).as_pointer()
        value = builder.load(builder.inttoptr(args[1], vector), align=1)
        builder.store(value, builder.inttoptr(args[0], vector), align=1)

    return types.void(types.int64, types.int64), codegen


@intrinsic
def words_at(typingctx, address):
    """Where 64-bit integers begin, for `numba.carray`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def load_shared(typingctx, address):
    """The 64-bit integer at an address that another thread writes to, after all that it wrote before."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_shared(typingctx, address, value):
    """Set the 64-bit integer at an address that another thread reads."""

    def codegen(context, builder, signature, args):
        target = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], target, "seq_cst", 8)

    return types.void(types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at an address, which will be read soon; any address is fine."""

    def codegen(context, builder, signature, args):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], byte), read, keep, data])

    return types.void(types.int64), codegen


# Found by name in the C library when a kernel is linked, so kernels that call them can be cached on disk.
pread = types.ExternalFunction(
    "pread", typing.signature(types.int64, types.int32, types.int64, types.int64, types.int64)
)
read_pipe = types.ExternalFunction("read", typing.signature(types.int64, types.int32, types.int64, types.int64))
write_pipe = types.ExternalFunction("write", typing.signature(types.int64, types.int32, types.int64, types.int64))
clock_gettime = types.ExternalFunction("clock_gettime", typing.signature(types.int32, types.int32, types.int64))
compare_bytes = types.ExternalFunction("memcmp", typing.signature(types.int32, types.int64, types.int64, types.int64))
