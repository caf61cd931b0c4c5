# SPDX-License-Identifier: MIT
"""Megatron Core as `./run test --slow` installs it, in a separate folder, and processes that import it from there after our integrations
are active.

Transformer Engine, APEX and grouped_gemm, which are for NVIDIA GPUs, are not installed. Megatron uses CUDA in many places: the processes
have hipkittens.integrations.rocm active. One name is added to Megatron: without Transformer Engine, its router in 0.16.1 reads
moe_utils.te_general_gemm, which the failed import leaves undefined; it is set to None, the meaning that the router's own branch expects.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles import packages_apart

PACKAGES = Path(sys.prefix) / "megatron_packages"
VERSION = "0.16.1"
_open = contextlib.ExitStack()  # as long as the process


def missing() -> str:
    """What has to be installed, or ""."""
    return packages_apart.missing(PACKAGES, "megatron-core", VERSION)


def prepare() -> None:
    """Prepare a separate process permanently: Megatron Core can be imported, with a world size of one."""
    import torch.distributed as dist

    from hipkittens.integrations import grouped_gemm, rocm, weight_gradients

    sys.path.insert(0, str(PACKAGES))
    warnings.simplefilter("ignore")  # it warns about each missing package
    grouped_gemm.install()
    weight_gradients.install()
    _open.enter_context(rocm.active())
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)


def process() -> ProcessPoolExecutor:
    """A prepared process."""
    return packages_apart.process(prepare)
