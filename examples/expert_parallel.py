#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A layer of experts whose processes hold a part of the experts each, and exchange tokens by all-to-all.

    python examples/expert_parallel.py --processes 2                   # gloo, each process with a simulated gfx942
    python examples/expert_parallel.py --processes 2 --arch gfx950 --steps 10

Every process has its own tokens. One exchange sends rows to the process that holds their expert, and another returns them; between
the two, hipkittens.moe computes the experts, with an expert_map that states which experts are local. The program trains this layer and,
for comparison, the same layer unsplit on the tokens of all processes, and prints how far losses and weights differ.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

import hipkittens

HIDDEN, INNER, EXPERTS, CHOICES, TOKENS = 64, 48, 8, 2, 24


class Exchange(torch.autograd.Function):
    """Sends rows to other processes: sent[r] of them to process r, received[r] from it. Gradients go back the same way."""

    @staticmethod
    def forward(ctx, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        return _exchanged(rows, sent, received)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(grad, ctx.received, ctx.sent), None, None


def _exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    into = rows.new_empty(sum(received), *rows.shape[1:])
    # As bytes: gloo has no exchange of bfloat16.
    pair = (each.view(torch.uint8) if each.dim() > 1 else each for each in (into, rows.contiguous()))
    dist.all_to_all_single(*pair, received, sent)
    return into


class ExpertParallel(nn.Module):
    """This process's part of a hipkittens.nn.MoE: the router, and the `share` experts from number * share on."""

    def __init__(self, whole: hipkittens.nn.MoE, rank: int, processes: int) -> None:
        super().__init__()
        experts = whole.w1.shape[0]
        self.share, self.top_k, self.processes = experts // processes, whole.top_k, processes
        mine = slice(rank * self.share, (rank + 1) * self.share)
        self.router_weight = nn.Parameter(whole.router_weight.detach().clone())
        self.w1, self.w2 = (nn.Parameter(each.detach()[mine].clone()) for each in (whole.w1, whole.w2))
        here = torch.full((experts,), -1, dtype=torch.int32)
        here[mine] = torch.arange(self.share, dtype=torch.int32)
        self.register_buffer("expert_map", here)

    def forward(self, x: Tensor) -> Tensor:
        logits = hipkittens.matmul(x, self.router_weight.mT, out_dtype=torch.float32)
        weights, ids = hipkittens.router(logits, self.top_k, renormalize=True)
        # Rows in the order of experts are in the order of processes.
        order = hipkittens.expert_sort(ids, None, self.expert_map.numel(), layout="ragged")
        rows = hipkittens.expert_gather(x, order.entries, order.places)
        numbers = ids.reshape(-1)[order.entries]
        # all_to_all_single needs the number of rows per process on the host.
        counts = order.offsets[:: self.share].diff()
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        sent, received = counts.tolist(), others.tolist()
        arrived = Exchange.apply(rows, sent, received)
        experts = _exchanged(numbers, sent, received)[:, None]
        ones = torch.ones(experts.shape, device=x.device)
        y = hipkittens.moe(arrived, self.w1, self.w2, ones, experts, expert_map=self.expert_map)
        y = Exchange.apply(y, received, sent)
        return hipkittens.expert_combine(y, order.entries, order.places, weights)


def train(rank: int, processes: int, arch: str, steps: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    try:
        with hipkittens.simulate(arch):
            lines = _train(rank, processes, steps)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        print(f"{EXPERTS} experts in {processes} processes, {arch} (simulated), {steps} steps")
        print("\n".join(lines), flush=True)
    # gloo's threads may outlive their group, and then abort a process while Python ends it.
    os._exit(0)


def _train(rank: int, processes: int, steps: int) -> list[str]:
    torch.manual_seed(0)  # the same layer and tokens in every process
    whole = hipkittens.nn.MoE(HIDDEN, INNER, EXPERTS, CHOICES, dtype=torch.bfloat16)
    part = ExpertParallel(whole, rank, processes)
    x, target = (torch.randn(processes * TOKENS, HIDDEN).bfloat16() for _ in range(2))
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    optimizers = [torch.optim.SGD(module.parameters(), lr=10.0) for module in (whole, part)]
    losses: dict[str, list[float]] = {"whole": [], "parts": []}
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = (whole(x).float() - target).square().sum() / target.numel()
        loss.backward()
        losses["whole"].append(loss.item())
        loss = (part(x[mine]).float() - target[mine]).square().sum() / target.numel()
        loss.backward()
        # The router is shared by all processes; an expert's gradient is complete, since all its rows were here.
        grad = part.router_weight.grad.float()
        dist.all_reduce(grad)
        part.router_weight.grad.copy_(grad)
        total = loss.detach()
        dist.all_reduce(total)
        losses["parts"].append(total.item())
        for optimizer in optimizers:
            optimizer.step()
    experts = slice(rank * part.share, (rank + 1) * part.share)
    apart = torch.stack(
        [
            (one.detach().float() - other.detach().float()).abs().max()
            for one, other in (
                (part.w1, whole.w1[experts]),
                (part.w2, whole.w2[experts]),
                (part.router_weight, whole.router_weight),
            )
        ]
    )
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    losses_apart = max(abs(a - b) for a, b in zip(losses["whole"], losses["parts"], strict=True))
    return [
        f"  loss of the first and the last step             {losses['parts'][0]:.5f} {losses['parts'][-1]:.5f}",
        f"  largest distance of losses from the whole layer {losses_apart:.2e}",
        f"  largest distance of w1, w2 and router_weight    {apart[0]:.2e} {apart[1]:.2e} {apart[2]:.2e}",
    ]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--arch", choices=("gfx942", "gfx950"), default="gfx942", help="the simulated GPU")
    parser.add_argument("--steps", type=int, default=5, help="(default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.processes < 1 or EXPERTS % arguments.processes:
        parser.error(
            f"--processes {arguments.processes} do not share {EXPERTS} experts alike; allowed: 1, 2, 4, 8"
        )
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps} is not 1 or more")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(
        train, (arguments.processes, arguments.arch, arguments.steps, port), nprocs=arguments.processes
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
