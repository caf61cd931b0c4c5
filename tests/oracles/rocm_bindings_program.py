# SPDX-License-Identifier: MIT
"""A program on AMD's own Python bindings of HIP (rocm-bindings-hip), with no reference to hipkittens.

    rocm_bindings_program.py TARGET CODE_OBJECT

CODE_OBJECT contains scale(float* data, float factor, int n), in workgroups of 256. Prints what it observed, as JSON.
"""

import ctypes
import json
import sys

import numpy as np
from rocm.bindings import hip


def done(result):
    """The result of a call; an error ends the program."""
    error, *values = result if isinstance(result, tuple) else (result,)
    if error != hip.hipError_t.hipSuccess:
        raise RuntimeError(str(error))
    return values[0] if len(values) == 1 else values


def launch(function, data, factor, n, stream=None):
    done(
        hip.hipModuleLaunchKernel(
            function, -(-n // 256), 1, 1, 256, 1, 1, 0, stream, None,
            (data, ctypes.c_float(factor), ctypes.c_int(n)),
        )
    )  # fmt: skip


def main(target, path):
    found = {"version": done(hip.hipRuntimeGetVersion()), "devices": done(hip.hipGetDeviceCount())}
    properties = done(hip.hipGetDeviceProperties(0))
    found["arch"] = properties.gcnArchName.split(":")[0]
    found["wave"] = properties.warpSize
    assert found["arch"] == target and properties.totalGlobalMem == done(hip.hipDeviceTotalMem(0))
    found["attributes"] = sum(
        hip.hipDeviceGetAttribute(each, 0)[0] == hip.hipError_t.hipSuccess
        for each in hip.hipDeviceAttribute_t
    )
    found["of attributes"] = len(hip.hipDeviceAttribute_t)

    module = done(hip.hipModuleLoad(path.encode()))
    scale = done(hip.hipModuleGetFunction(module, b"scale"))
    n = 1000
    host = np.arange(n, dtype=np.float32)
    back = np.full_like(host, np.nan)
    data = done(hip.hipMalloc(host.nbytes))
    kinds = hip.hipMemcpyKind

    done(hip.hipMemcpy(data, host, host.nbytes, kinds.hipMemcpyHostToDevice))
    launch(scale, data, 2.0, n)
    done(hip.hipDeviceSynchronize())
    done(hip.hipMemcpy(back, data, host.nbytes, kinds.hipMemcpyDeviceToHost))
    assert (back == 2 * host).all()

    least, greatest = done(hip.hipDeviceGetStreamPriorityRange())
    stream = done(hip.hipStreamCreateWithPriority(hip.hipStreamNonBlocking, greatest))
    begin, end = done(hip.hipEventCreate()), done(hip.hipEventCreate())
    done(hip.hipEventRecord(begin, stream))
    done(hip.hipMemcpyAsync(data, host, host.nbytes, kinds.hipMemcpyHostToDevice, stream))
    launch(scale, data, 3.0, n, stream)
    done(hip.hipMemcpyAsync(back, data, host.nbytes, kinds.hipMemcpyDeviceToHost, stream))
    done(hip.hipEventRecord(end, stream))
    done(hip.hipEventSynchronize(end))
    assert (back == 3 * host).all() and done(hip.hipEventElapsedTime(begin, end)) >= 0 and least >= greatest

    # A graph that was captured, replayed three times.
    done(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal))
    launch(scale, data, 0.5, n, stream)
    graph = done(hip.hipStreamEndCapture(stream))
    executable = done(hip.hipGraphInstantiateWithFlags(graph, 0))
    for _ in range(3):
        done(hip.hipGraphLaunch(executable, stream))
    done(hip.hipStreamSynchronize(stream))
    done(hip.hipMemcpy(back, data, host.nbytes, kinds.hipMemcpyDeviceToHost))
    assert (back == 3 * host / 8).all()
    done(hip.hipGraphExecDestroy(executable))
    done(hip.hipGraphDestroy(graph))

    pool = done(hip.hipDeviceGetDefaultMemPool(0))
    pooled = done(hip.hipMallocFromPoolAsync(host.nbytes, pool, stream))
    done(hip.hipMemsetD32Async(pooled, 0x40490FDB, n, stream))
    done(hip.hipMemcpyAsync(back, pooled, host.nbytes, kinds.hipMemcpyDeviceToHost, stream))
    done(hip.hipFreeAsync(pooled, stream))
    done(hip.hipStreamSynchronize(stream))
    assert (back == np.float32(np.pi)).all()

    managed = done(hip.hipMallocManaged(host.nbytes, hip.hipMemAttachGlobal))
    done(hip.hipMemcpy(managed, host, host.nbytes, kinds.hipMemcpyHostToHost))
    launch(scale, managed, -1.0, n)
    done(hip.hipDeviceSynchronize())
    done(hip.hipMemcpy(back, managed, host.nbytes, kinds.hipMemcpyDefault))
    assert (back == -host).all()

    # Errors come back as HIP's.
    found["wrong name"] = str(hip.hipModuleGetFunction(module, b"scales")[0])
    found["beyond"] = str(hip.hipMemcpy(back, data, 1 << 30, kinds.hipMemcpyDeviceToHost)[0])
    for pointer in (data, managed):
        done(hip.hipFree(pointer))
    done(hip.hipEventDestroy(begin))
    done(hip.hipEventDestroy(end))
    done(hip.hipStreamDestroy(stream))
    done(hip.hipModuleUnload(module))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
