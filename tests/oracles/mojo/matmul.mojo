# SPDX-License-Identifier: MIT
# Modular's own matrix product (linalg) of the files a.bin and b.bin, A by the transpose of B; prints C, an element a line.
from std.sys import argv
from std.sys.defines import get_defined_int
from max.gpu.host import DeviceContext
from layout import TileTensor, row_major
from linalg.matmul import matmul

comptime M = get_defined_int["M"]()
comptime N = get_defined_int["N"]()
comptime K = get_defined_int["K"]()
comptime dtype = DType.bfloat16 if get_defined_int["BYTES"]() == 2 else DType.float32


def main() raises:
    var context = DeviceContext()
    var a = context.enqueue_create_buffer[dtype](M * K)
    var b = context.enqueue_create_buffer[dtype](N * K)
    var c = context.enqueue_create_buffer[dtype](M * N)
    var folder = String(argv()[1])
    with a.map_to_host() as values:
        var bytes = open(folder + "/a.bin", "r").read_bytes()
        var read = bytes.unsafe_ptr().unsafe_bitcast[Scalar[dtype]]()
        for i in range(M * K):
            values[i] = read[unsafe_offset=i]
    with b.map_to_host() as values:
        var bytes = open(folder + "/b.bin", "r").read_bytes()
        var read = bytes.unsafe_ptr().unsafe_bitcast[Scalar[dtype]]()
        for i in range(N * K):
            values[i] = read[unsafe_offset=i]
    matmul[transpose_b=True, target="gpu"](
        TileTensor(c, row_major[M, N]()), TileTensor(a, row_major[M, K]()), TileTensor(b, row_major[N, K]()), context
    )
    context.synchronize()
    with c.map_to_host() as values:
        for i in range(M * N):
            print(values[i].cast[DType.float32]())
