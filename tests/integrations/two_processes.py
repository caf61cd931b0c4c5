# SPDX-License-Identifier: MIT
"""One of two processes that test_distributed.py starts: trains a small model in several ways, and saves the results.

tests/gpu/test_two_gpus.py starts them too, with one GPU per process.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hipkittens
from hipkittens import nn
from hipkittens.integrations import dtensor

BF16, SIZE, WIDTH, STEPS = torch.bfloat16, 32, 64, 3


class Block(torch.nn.Module):
    """Attention with two heads, or this rank's share of them, followed by a layer norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, dtype=BF16)
        self.q, self.k, self.v = (nn.Linear(WIDTH, 2 * SIZE, bias=False, dtype=BF16) for _ in range(3))
        self.back = nn.Linear(2 * SIZE, WIDTH, dtype=BF16)
        self.last = nn.LayerNorm(WIDTH, dtype=BF16)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (project(y).unflatten(-1, (-1, SIZE)) for project in (self.q, self.k, self.v))
        y = self.back(hipkittens.attention(q, k, v, causal=True).flatten(-2))
        return self.last(x + y)


def make(device="cpu"):
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block()).to(device)


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 24, WIDTH, generator=generator).to(BF16), torch.randn(
        4, 24, WIDTH, generator=generator
    )


def train(model, x, target):
    """The losses of a few steps, the gradients of the first, and the final parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)  # of DTensors and others
    losses, gradients = [], None

    def whole(values):
        values = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]
        return [value.detach().to("cpu", copy=True) for value in values]

    for _ in range(STEPS):
        loss = (model(x).float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or whole(parameter.grad for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), gradients, whole(model.parameters())


def sharded_operators(mesh):
    """Every operator on DTensors: (result, plain result) by name, forward and backward."""

    def draw(*shape, seed):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)

    def spread(value, *placements):
        return distribute_tensor(value.to(mesh.device_type), mesh, placements)

    results = {}

    def compare(name, function, *given):
        plain = [value.to(mesh.device_type, copy=True).requires_grad_(grad) for value, _, grad in given]
        sharded = [spread(value, placement).requires_grad_(grad) for value, placement, grad in given]
        outputs = []
        for values in (sharded, plain):
            out = function(*values)
            inputs = [value for value in values if value.requires_grad]
            found = [out]
            if inputs:
                found += torch.autograd.grad(out.float().square().sum(), inputs)
            outputs.append(
                [(value.full_tensor() if hasattr(value, "full_tensor") else value).cpu() for value in found]
            )
        results[name] = outputs

    q, k = draw(2, 20, 4, SIZE, seed=0), draw(2, 20, 2, SIZE, seed=1)
    for name, placement in (("heads", Shard(2)), ("batch", Shard(0)), ("length", Shard(1))):
        given = (q, placement, True), (k, placement, True), (draw(*k.shape, seed=2), placement, True)
        compare(f"attention by {name}", lambda *qkv: hipkittens.attention(*qkv, causal=True), *given)
    ends = torch.tensor([0, 7, 20], dtype=torch.int32)
    compare(
        "varlen by heads",
        lambda q, k, v, ends: hipkittens.attention_varlen(q, k, v, ends, ends, 13, 13, causal=True),
        *((value[0], Shard(1), True) for value in (q, k, k * 2)), (ends, Replicate(), False),
    )  # fmt: skip
    x, weight, bias = draw(2, 12, 48, seed=3), draw(80, 48, seed=4), draw(80, seed=5)
    for name, places in {
        "columns": (Replicate(), Shard(0), Shard(0)),
        "sums": (Shard(2), Shard(1), Replicate()),
        "rows": (Shard(0), Replicate(), Replicate()),
    }.items():
        given = ((value, place, True) for value, place in zip((x, weight, bias), places, strict=True))
        compare(f"linear by {name}", hipkittens.linear, *given)
    row = draw(48, seed=6)
    for function in (hipkittens.rms_norm, hipkittens.layer_norm):
        compare(f"{function.__name__} by rows", function, (x, Shard(1), True), (row, Replicate(), True))
        given = (x, Shard(1), False), (row, Replicate(), False)
        compare(f"{function.__name__} by rows, no gradient", function, *given)
    angles = torch.outer(torch.arange(20.0), 10.0 ** -torch.arange(8.0))
    tables = (angles.cos(), Replicate(), False), (angles.sin(), Replicate(), False)
    compare("rotary by heads", hipkittens.rotary, (q, Shard(2), True), *tables)
    compare(
        "rotary by heads first",
        lambda x, cos, sin: hipkittens.rotary(x, cos, sin, layout="bhnd"),
        (draw(2, 20, 20, SIZE, seed=7), Shard(1), True), *tables,
    )  # fmt: skip
    return results


def main(rank, store, results, kind="cpu"):
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    backend = {"cpu": "gloo", "cuda": "nccl"}[kind]
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh(kind, (2,))
    x, target = (each.to(kind) for each in batch())
    mine = slice(2 * rank, 2 * rank + 2)
    saved = {"ddp": train(DistributedDataParallel(make(kind)), x[mine], target[mine])}
    model = make(kind)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    saved["fsdp"] = train(model, x[mine], target[mine])
    dtensor.register()
    dtensor.register()
    model = make(kind)
    plan = {name: ColwiseParallel() for name in ("q", "k", "v")} | {"back": RowwiseParallel()}
    for block in model:
        parallelize_module(block, mesh, plan)
    saved["tensor parallel"] = train(model, x, target)
    saved["operators"] = sharded_operators(mesh)
    if rank == 0:
        torch.save(saved, results)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ["RANK"]), *sys.argv[1:])
