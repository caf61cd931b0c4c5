# SPDX-License-Identifier: MIT
"""Checks of causal convolutions: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

import torch

from ..convolution import WIDTHS, causal_conv1d, causal_conv1d_update, in_torch
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._tables import DECODED_SIZES, DELTA_PEERS, PROMPT_SIZES, at_delta_sizes
from ._tensors import draw


def _laid_out(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """The same values, with channels or times contiguous in memory."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if channels_last else x


def _trial(kernel: Kernel) -> Trial:
    """Times that fill no thread, channels that fill one or, for kernels of any number, do not; all widths, each kind of state,
    packed sequences.
    """
    if kernel.kind == "update":
        return _update_trial(kernel)
    name = kernel.row["element"]
    dtype, channels_last = DTYPES[name], kernel.row.get("channels_last") == "true"
    channels, times = (2, 1100) if kernel.kind == "backward" and not channels_last else (18, 37)
    if kernel.kind == "reduce":  # of sums that fill several workgroups
        channels, times = 150, 14
    if kernel.row.get("channels", "1") != "1":
        channels = 24
    starts = torch.tensor([0, 5, 5, times - 8, times - 3], dtype=torch.int32)

    def states_run(x, weight, bias):
        results = []
        states = draw(5, weight.shape[0], weight.shape[1] - 1, dtype=dtype).detach()
        flags, slots = torch.tensor([True, False, True, True]), torch.tensor([4, 0, 1, 7])
        results += [
            causal_conv1d(x[0], weight, bias, activation="silu", query_start_loc=starts, conv_states=states,
                          cache_indices=slots, has_initial_state=flags),
            states,
        ]  # fmt: skip
        state = draw(3, weight.shape[0], weight.shape[1] + 2, dtype=dtype).detach()
        few, accepted = x[:, :, :3], torch.tensor([2])
        results.append(causal_conv1d_update(few, state, weight, bias, cache_seqlens=torch.tensor([4])))
        results.append(causal_conv1d_update(few, state, weight, num_accepted_tokens=accepted))
        results.append(causal_conv1d_update(few, state, weight, bias, "silu"))
        results += causal_conv1d_update(few, state, weight, bias, "silu", split=(8, 8, channels - 16))
        return [*results, state]

    def run():
        results = []
        for width in WIDTHS:
            x = _laid_out(draw(1, channels, times, dtype=dtype).detach(), channels_last).requires_grad_()
            weight, bias = draw(channels, width, dtype=dtype), draw(channels, dtype=dtype)
            if kernel.kind == "forward":
                with torch.no_grad():
                    results += [
                        causal_conv1d(x, weight, bias, activation="silu"),
                        *causal_conv1d(x, weight, bias, split=(8, 0, channels - 8)),
                        *states_run(x, weight, bias),
                    ]
                continue
            y = causal_conv1d(x, weight, bias, activation="silu")
            results += torch.autograd.grad(y, (x, weight, bias), draw(*y.shape, dtype=dtype).detach())
            y = causal_conv1d(x[0], weight, query_start_loc=starts)
            results += torch.autograd.grad(y, (x, weight), draw(*y.shape, dtype=dtype).detach())
        return results

    layout = "channels last" if channels_last else "times last"
    return Trial(
        f"causal_conv1d {kernel.kind} {channels}x{times} {layout} {name}",
        run,
        shared_by="workers" if kernel.kind == "backward" else "",
    )


def _update_trial(kernel: Kernel) -> Trial:
    """Channels that fill no workgroup, or one and part of another; slots in another order, and some that do not exist."""
    dtype, columns = DTYPES[kernel.row["element"]], int(kernel.row["columns"])
    states_last = kernel.row["channels_last"] == "true"

    def run():
        results = []
        for channels, split in ((24, (8, 0, 16)), (156, (2, 4, 150))):
            x, weight = (draw(5, size, dtype=dtype).detach() for size in (channels, channels * 4))
            weight, bias = weight[0].view(channels, 4), draw(channels, dtype=dtype).detach()
            state = _laid_out(draw(6, channels, columns, dtype=dtype).detach(), states_last)
            slots = torch.tensor([4, -1, 0, 6, 5])
            results.append(causal_conv1d_update(x, state, weight, bias, "silu"))
            results.append(causal_conv1d_update(x, state, weight, conv_state_indices=slots))
            results += causal_conv1d_update(x, state, weight, bias, conv_state_indices=slots, split=split)
            results.append(state.contiguous())
        return results

    layout = "channels last" if states_last else "columns last"
    return Trial(f"causal_conv1d update, {columns} columns, {layout}, {kernel.row['element']}", run)


def _parity(case, generator) -> ParityProblem:
    dtype, channels, width = DTYPES[case["dtype"]], case["channels"], case["width"]
    x = torch.randn(case["batch"], channels, case["times"], generator=generator) * case["magnitude"]
    x = _laid_out(x.to(dtype), case["channels_last"])
    inputs = {"x": x, "weight": torch.randn(channels, width, generator=generator).to(dtype)}
    if case["bias"]:
        inputs["bias"] = torch.randn(channels, generator=generator).to(dtype)
    return ParityProblem(
        inputs=inputs,
        ours=lambda *tensors: causal_conv1d(*tensors, activation=case["activation"]),
        theirs=lambda x, weight, bias=None: in_torch(x, weight, bias, case["activation"]),
        baseline="PyTorch's conv1d and silu in float32, rounded once",
    )


def _call(problem, device):
    e = problem.extents
    x = problem.tensor(device, e["batch"], e["tokens"], e["channels"]).transpose(1, 2)
    weight, bias = problem.tensor(device, e["channels"], e["width"]), problem.tensor(device, e["channels"])
    return lambda: causal_conv1d(x, weight, bias, activation="silu")


def _call_update(problem, device):
    e = problem.extents
    state = problem.tensor(device, e["tokens"], e["width"] - 1, e["channels"]).transpose(1, 2)
    x = problem.tensor(device, e["tokens"], e["channels"])
    weight, bias = problem.tensor(device, e["channels"], e["width"]), problem.tensor(device, e["channels"])
    return lambda: causal_conv1d_update(x, state, weight, bias, "silu")


def _refuse(extents):
    width = extents["width"]
    return None if width in WIDTHS else f"width is {width}; allowed: {', '.join(map(str, WIDTHS))}"


def _sizes(rows: Rows) -> str:
    return (
        f"Causal convolutions: any number of channels and time steps, widths {', '.join(map(str, WIDTHS))}; channels or time steps "
        "contiguous in memory."
    )


def _calls(tensor):
    packed, weight = tensor(16, 64), tensor(16, 4)
    starts, slots = tensor(5, dtype=torch.int32), tensor(4, dtype=torch.int32)
    return [
        ("packed sequences with states", "causal_conv1d", (packed, weight),
         {"query_start_loc": starts, "conv_states": tensor(8, 16, 3), "cache_indices": slots}),
        ("split into queries, keys and values", "causal_conv1d", (packed, weight), {"split": (4, 4, 8)}),
        ("width 5", "causal_conv1d", (packed, tensor(16, 5)), {}),
        ("silu", "causal_conv1d", (packed, weight), {"activation": "silu"}),
        ("circular states", "causal_conv1d_update", (tensor(4, 16), tensor(8, 16, 6), weight),
         {"cache_seqlens": slots}),
        ("speculative decoding", "causal_conv1d_update", (tensor(4, 16, 3), tensor(8, 16, 6), weight),
         {"num_accepted_tokens": slots}),
    ]  # fmt: skip


def _exercise(draw):
    x, weight, bias = draw(2, 12, 21, seed=1), draw(12, 4, seed=2), draw(12, seed=3)
    yield causal_conv1d(x, weight, bias, activation="silu")
    yield from causal_conv1d(x, weight, bias, split=(4, 4, 4))
    state = draw(2, 12, 3, seed=4).detach()
    with torch.no_grad():
        yield causal_conv1d_update(x, state, weight, bias)
        yield from causal_conv1d_update(x, state, weight, bias, split=(4, 4, 4))


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "causal convolution",
            {"x": (2, 64, 257), "weight": (64, 4), "bias": (64,)},
            lambda x, weight, bias: causal_conv1d(x, weight, bias, activation="silu"),
            lambda x, weight, bias: in_torch(x, weight, bias, "silu"),
        ),
    ),
    parity=(
        Parity(
            "causal_conv1d",
            {
                "dtype": tuple(DTYPES),
                "channels": (64, 1, 7, 258),
                "times": (257, 1, 2, 3, 8, 64),
                "width": WIDTHS,
                "batch": (2, 1),
                "channels_last": (True, False),
                "bias": (True, False),
                "activation": ("silu", None),
                "magnitude": (1.0, 10.0),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "causal_conv1d",
            example="1x8192x4096x4",
            extents=("batch", "channels", "tokens", "width"),
            shapes="1x8192x4096x4,8x2048x1024x4",
            heading="Causal convolution",
            bytes=lambda problem: 4.0 * problem["batch"] * problem["channels"] * problem["tokens"],
            call=_call,
            tables=(
                Table(
                    "Causal convolution of width 4, 8192 channels",
                    "1x8192x{N}x4",
                    PROMPT_SIZES | at_delta_sizes(1024, 4096),
                    DELTA_PEERS,
                ),
            ),
            refuse=_refuse,
        ),
        Benchmark(
            "causal_conv1d_update",
            example="64x8192x4",
            extents=("tokens", "channels", "width"),
            shapes="1x8192x4,64x8192x4",
            heading="Causal convolution, decoding",
            bytes=lambda problem: 4.0 * problem["tokens"] * problem["channels"] * problem["width"],
            call=_call_update,
            tables=(
                Table(
                    "Causal convolution of width 4 in decoding, 8192 channels",
                    "{N}x8192x4",
                    DECODED_SIZES | at_delta_sizes(1, 32, 64, 128),
                    DELTA_PEERS,
                ),
            ),
            refuse=_refuse,
        ),
    ),
    exercise=_exercise,
)
