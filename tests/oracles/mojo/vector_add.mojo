# SPDX-License-Identifier: MIT
# A sum of two vectors by a kernel, held to the host's own; prints the device's name and how many elements are wrong.
from max.gpu import global_idx
from max.gpu.host import DeviceContext

comptime SIZE = 1000


def add(
    first: Pointer[Float32, MutAnyOrigin],
    second: Pointer[Float32, MutAnyOrigin],
    into: Pointer[Float32, MutAnyOrigin],
    size: Int32,
):
    var place = global_idx.x
    if place < Int(size):
        into[unsafe_offset=place] = first[unsafe_offset=place] + second[unsafe_offset=place]


def main() raises:
    var context = DeviceContext()
    var first = context.enqueue_create_buffer[DType.float32](SIZE)
    var second = context.enqueue_create_buffer[DType.float32](SIZE)
    var into = context.enqueue_create_buffer[DType.float32](SIZE)
    with first.map_to_host() as values:
        for i in range(SIZE):
            values[i] = Float32(i) * 0.25
    with second.map_to_host() as values:
        for i in range(SIZE):
            values[i] = Float32(2 * i) + 0.5
    into.enqueue_fill(-1.0)
    context.enqueue_function[add](first, second, into, Int32(SIZE), grid_dim=4, block_dim=256)
    context.synchronize()
    var wrong = 0
    with into.map_to_host() as values:
        for i in range(SIZE):
            if values[i] != Float32(i) * 0.25 + (Float32(2 * i) + 0.5):
                wrong += 1
    print(context.name(), "wrong", wrong)
