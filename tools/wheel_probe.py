#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The checks that tools/wheel_matrix.py runs in each environment, with the installed package and this checkout's parity cases.

Prints JSON: versions, parity cases compared with PyTorch, opcheck of every operator, a compiled training step, the doctor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parent.parent


def parity_rows(cases_of_each: int) -> dict[str, Any]:
    """Cases spread evenly over each operation's covering array, on both targets."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import parity

    cases, rows = 0, []
    for operation in parity.OPERATIONS.values():
        for target in parity.TARGETS:
            every = list(operation.cases((target,)))
            count = min(cases_of_each, len(every))
            for number in range(count):
                rows += parity.run(every[number * len(every) // count])
            cases += count
    ratios = [parity.ratio(row) for row in rows]
    wrong = [row for row in rows if not parity.ratio(row) <= parity.BAR]
    return {
        "cases": cases,
        "results": len(rows),
        "passed": len(rows) - len(wrong),
        "worst": max(ratios),
        "wrong": [
            f"{row['op']} {row['target']} {row['case']}: {row.get('error', parity.ratio(row))}"
            for row in wrong
        ],
    }


class _Calls(TorchDispatchMode):
    """Records the arguments of the first call of each of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "hipkittens":
            self.seen.setdefault(function, (arguments, options or {}))
        return function(*arguments, **(options or {}))


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(torch.bfloat16).requires_grad_()


def _use_everything() -> None:
    """Calls each function at least once, forward and backward, on small tensors."""
    from hipkittens import operations

    def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        value = _draw(*shape)
        return value if dtype == torch.bfloat16 else value.detach().to(dtype)

    results = []
    for operation in operations.every():
        exercise = operations.checks(operation).exercise
        if exercise is not None:
            results += exercise(_draw)
            continue
        for function in operation.functions:
            result = function.function(*function.arguments(tensor, torch.bfloat16), **function.options)
            results += [result] if isinstance(result, torch.Tensor) else result
    sum(result.float().square().sum() for result in results).backward()


def opcheck_rows() -> dict[str, str]:
    """ "SUCCESS" or the failure, for every operator of the namespace."""
    with _Calls() as calls:
        _use_everything()
    registered = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("hipkittens::") and not name.endswith("_out")
    }
    results = dict.fromkeys(sorted(registered), "no call of it was seen")
    for function, (arguments, options) in calls.seen.items():
        name = function.name().removesuffix(".default")
        # Tables of angles, which are float32, have no gradient; nor do the inputs of backward and in-place operators.
        differentiable = not name.endswith(("backward", "_"))
        fresh = [
            value.detach().clone().requires_grad_(differentiable and value.dtype == torch.bfloat16)
            if isinstance(value, torch.Tensor)
            else value
            for value in arguments
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.library.opcheck(function, tuple(fresh), options, raise_exception=False)
        bad = {test: text for test, text in found.items() if text != "SUCCESS"}
        results[name] = "SUCCESS" if not bad else str(bad)
    return results


def compiled_step() -> dict[str, Any]:
    """A block of every operation under torch.compile(fullgraph=True), inductor, forward and backward, compared with eager."""
    import hipkittens

    def block(x, norm, project, last):
        normed = hipkittens.layer_norm(x, norm)
        q, k, v = hipkittens.linear(normed, project).unflatten(-1, (6, 32)).split((2, 2, 2), -2)
        out = hipkittens.attention(q, k, v, causal=True).flatten(-2)
        return hipkittens.rms_norm(out, last).float().square().mean()

    def gradients(function, length):
        leaves = [_draw(1, length, 64), _draw(64, seed=1), _draw(192, 64, seed=2), _draw(64, seed=3)]
        loss = function(*leaves)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    worst = 0.0
    for length in (24, 31):
        for ours, eager in zip(gradients(compiled, length), gradients(block, length), strict=True):
            scale = eager.float().abs().max().item()
            worst = max(worst, (ours.float() - eager.float()).abs().max().item() / scale)
    return {"worst_difference": worst, "ok": worst < 2**-7}


def doctor() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hipkittens", "doctor", "--json"], capture_output=True, text=True
    )
    return json.loads(done.stdout)["verdict"] if done.stdout else done.stderr.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=8, help="parity cases of each operation and target")
    arguments = parser.parse_args()
    import hipkittens

    assert not Path(hipkittens.__file__).is_relative_to(ROOT), "this must run with the installed package"
    try:
        compiled = compiled_step()
    except Exception as error:
        compiled = {"ok": False, "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
    report = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parity": parity_rows(arguments.cases),
        "opcheck": opcheck_rows(),
        "compile": compiled,
        "doctor": doctor(),
    }
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
