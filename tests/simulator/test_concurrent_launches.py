# SPDX-License-Identifier: MIT
"""Threads of one process that load, launch, allocate and query simultaneously; the native program's own results.

`python tools/sanitized_tests.py thread tests/simulator/test_concurrent_launches.py` runs it under ThreadSanitizer.
"""

import subprocess

import pytest

from fuzz.seeds import KERNEL
from tests.device_compiler import assemble
from tests.host_build import build
from tests.simulated_device import TARGETS, library_path

# out[i] = in[i] + add, by way of LDS; every work-item adds 1 to *count.
BODY = """
  s_load_dword s11, s[0:1], 24
  s_lshl_b32 s16, s2, 9
  v_add_u32_e32 v3, s16, v1
  global_load_dword v4, v3, s[4:5]
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_u32_e32 v4, s11, v4
  ds_write_b32 v1, v4
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v5, v1
  v_mov_b32_e32 v6, 1
  global_atomic_add v2, v6, s[8:9]
  s_waitcnt lgkmcnt(0)
  global_store_dword v3, v5, s[6:7]
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    library = library_path()
    folder = tmp_path_factory.mktemp("concurrent_launches")
    for target in TARGETS:
        (folder / target).write_bytes(assemble(KERNEL.format(target=target, body=BODY), target))
    sources = ["tests/simulator/concurrent_launches.cpp", library]
    return build(folder / "concurrent_launches", sources, "-O1", f"-Wl,-rpath,{library.parent}")


@pytest.mark.parametrize(("threads", "rounds"), [(1, 8), (8, 12)])
def test_every_launch_is_right(program, threads, rounds):
    done = subprocess.run(
        [program, *(program.parent / target for target in TARGETS), str(threads), str(rounds)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) == 2 * threads * rounds
