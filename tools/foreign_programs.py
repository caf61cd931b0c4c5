#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of third-party programs, client by client, stores the results, and writes docs/foreign_programs.md from them.

    python tools/foreign_programs.py [CLIENT ...]        # as ./run test --slow has installed them; default: all of them
    python tools/foreign_programs.py --page              # runs nothing

The results of clients that are not run are kept (tests/oracles/foreign_programs.json). Exit code 1 when a case was wrong.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import slow_tests

from hipkittens._installation import TARGETS
from hipkittens.operations._markdown import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "foreign_programs.md"
ORACLES = ROOT / "tests" / "oracles"
RESULTS = ORACLES / "foreign_programs.json"
HEAD = """# Foreign programs

Third-party compilers, kernel libraries and programs on the simulated GPUs, each as distributed in its wheel. The kernels they launch were
written, and mostly compiled, outside this project. The rows with *on hipkittens* are the reverse: third-party tests or layers call our
kernels under the names of their own. `python tools/foreign_programs.py` runs these tests and writes this page from the results,
`tests/oracles/foreign_programs.json`: every number counts cases of a run. **Everything is simulated.** AITER's compiled kernels have a
separate page, [Foreign kernels](foreign_kernels.md).

A case is one test with one choice of parameters. It is *right* if its results are within the tolerance of the test and, where
checkers are on, as in most, they found nothing. It is *the client's* if the run shows what the client's program does wrong; each of these
is listed below. It is *wrong* if neither holds, and *skipped* if its test states why it cannot run here. Each target's column gives the
cases tried, those that are right, and those that are the client's: tried / right / the client's. Some cases belong to no single target,
such as the behavior without a GPU, or with one of each.

"""


@dataclass(frozen=True)
class Client:
    """The location of a client's tests, as FILE or FILE::BEGINNING_OF_A_NAME below tests/oracles, and its distributions."""

    name: str
    tests: tuple[str, ...]
    distributions: tuple[str, ...]
    folder: str | None = None  # below the environment; for what cannot be installed with the rest
    in_place: bool = False  # packages in the folder take precedence over the installed ones


TRITON = ("test_triton.py", "test_triton_benchmark.py")
CLIENTS = (
    Client("HIP programs, compiled by clang as hipcc does", ("test_hip_program.py",), ("ziglang",)),
    Client("Triton", TRITON, ("triton",)),
    *(Client(f"Triton {version}", TRITON, ("triton",), f"triton_{version}_packages", in_place=True) for version in ("3.8.0", "3.9.0")),
    Client(
        "Liger-Kernel", ("test_liger.py", "test_liger_operators.py", "test_rocm_answers.py::test_liger"), ("liger-kernel", "triton"),
    ),
    Client(
        "AITER's Triton operators",
        ("test_aiter_triton.py", "test_aiter_triton_experts.py", "test_rocm_answers.py::test_aiter"),
        ("amd-aiter", "triton"),
    ),
    Client(
        "flash-linear-attention", ("test_fla.py", "test_fla_operators.py"), ("fla-core", "einops"), "fla_packages",
    ),
    Client(
        "flash-attn's test_flash_attn_kvcache on hipkittens.flash_attn", ("test_flash_attn_kvcache.py",), ("flash-attn",),
        "flash_attn_packages/flash_attn-2.8.3",
    ),
    Client(
        "FlashMLA's tests of decoding, of its repository of April 2026, on hipkittens.integrations.flash_mla", ("test_flash_mla_decoding.py",),
        (),
    ),
    Client(
        "vLLM's layers, with the batches of its tests of attention, on hipkittens",
        ("test_vllm_attention.py", "test_vllm_mla.py", "test_vllm_layers.py", "test_vllm_linear.py", "test_vllm_experts.py"),
        ("vllm", "compressed-tensors"), "vllm_packages",
    ),
    Client("SGLang's layers, on hipkittens", ("test_sglang.py",), ("sglang",), "sglang_packages"),
    Client("TorchTitan's debug models of experts, on hipkittens", ("test_torchtitan.py",), ("torchtitan",), "torchtitan_packages"),
    Client("Megatron Core's layers, on hipkittens", ("test_megatron.py",), ("megatron-core",), "megatron_packages"),
    Client("IREE", ("test_iree.py",), ("iree-base-compiler", "iree-base-runtime"), "iree_packages"),
    Client("FlyDSL, with its repository's examples and MoE tests of August 2026", ("test_flydsl.py",), ("flydsl",), "flydsl_packages"),
    Client("Mojo", ("test_mojo.py",), ("mojo-compiler", "max-core", "max-mojo-libs"), "mojo_packages"),
    Client("AMD's Python bindings of HIP", ("test_rocm_bindings.py",), ("rocm-bindings-hip",), "rocm_packages"),
)  # fmt: skip
MOST_SHOWN = 6
RIGHT, WRONG, SKIPPED, THEIRS = "right", "wrong", "skipped", "the client's: "


def versions(client: Client) -> dict[str, str]:
    """The versions of the installed distributions, or "not installed"."""
    path = [str(Path(sys.prefix) / client.folder)] if client.folder else sys.path
    found = {
        each.metadata["Name"].lower().replace("_", "-"): each.version
        for each in importlib.metadata.distributions(path=path)
    }
    return {name: found.get(name, "not installed") for name in client.distributions}


def result(case: slow_tests.Case) -> str:
    if case.outcome == "passed" and "client_fault" in case.properties:
        return THEIRS + case.properties["client_fault"]
    return {"passed": RIGHT, "failed": WRONG, "skipped": SKIPPED}[case.outcome]


def run(client: Client) -> dict:
    """Runs all tests of the client, including those that are not slow."""
    found = {}
    packages = Path(sys.prefix) / client.folder if client.folder and client.in_place else None
    for place in client.tests:
        file, _, beginning = place.partition("::")
        chosen = ["-k", beginning] if beginning else []
        for case in slow_tests.cases(str(ORACLES / file), ["-o", "addopts=", *chosen], packages):
            if case.name.startswith(beginning) or case.outcome == "failed":
                found[f"{file}::{case.name}"] = result(case)
    return {"date": datetime.date.today().isoformat(), "versions": versions(client), "cases": found}


def target_of(case: str) -> str:
    """The one target that a case's parameters name, or "" if they name none or several."""
    named = [target for target in TARGETS if target in case.partition("[")[2]]
    return named[0] if len(named) == 1 else ""


def counts(outcomes: Sequence[str]) -> str:
    theirs = sum(each.startswith(THEIRS) for each in outcomes)
    return f"{len(outcomes) - outcomes.count(SKIPPED)} / {outcomes.count(RIGHT)} / {theirs}"


def some(cases: Sequence[str]) -> str:
    """Names of cases for a table cell; only the first ones if there are many. The results contain all of them."""
    shown = cases if len(cases) <= MOST_SHOWN else cases[: MOST_SHOWN - 1]
    others = [f"and {len(cases) - len(shown)} others"] if len(shown) < len(cases) else []
    return "<br>".join([*(f"`{case}`" for case in shown), *others])


def text(results: Mapping[str, dict]) -> str:
    """The page."""
    head = ["client", "versions", *TARGETS, "no one target", "wrong", "skipped", "run"]
    body, faults = [], []
    for name, found in results.items():
        cases = found["cases"]
        outcomes = list(cases.values())
        body.append(
            [
                name,
                ", ".join(f"{each} {version}" for each, version in found["versions"].items()),
                *(
                    counts([outcome for case, outcome in cases.items() if target_of(case) == target])
                    for target in (*TARGETS, "")
                ),
                str(outcomes.count(WRONG)),
                str(outcomes.count(SKIPPED)),
                found["date"],
            ]
        )
        reasons: dict[str, list[str]] = {}
        for case, outcome in cases.items():
            if outcome.startswith(THEIRS):
                reasons.setdefault(outcome.removeprefix(THEIRS), []).append(case)
        faults += [[name, reason, some(which)] for reason, which in reasons.items()]
    page = HEAD + table(head, body)
    page += "\n## What is the client's\n\n"
    page += (
        table(["client", "what it does", "where it is shown"], faults)
        if faults
        else "Nothing, in these cases.\n"
    )
    page += "\n## Where the tests are\n\n"
    page += table(
        ["client", "tests, below `tests/oracles`"],
        [[client.name, ", ".join(f"`{place}`" for place in client.tests)] for client in CLIENTS],
    )
    return page


def read() -> dict[str, dict]:
    return in_order(json.loads(RESULTS.read_text()) if RESULTS.is_file() else {})


def in_order(results: Mapping[str, dict]) -> dict[str, dict]:
    """The results in the order of CLIENTS; clients that were never run have no entry."""
    return {client.name: results[client.name] for client in CLIENTS if client.name in results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="default: all of them")
    parser.add_argument(
        "--page", action="store_true", help="run nothing: write the page from the results that are there"
    )
    arguments = parser.parse_args()
    names = [client.name for client in CLIENTS]
    if unknown := sorted(set(arguments.clients) - set(names)):
        raise SystemExit(f"no client {', '.join(unknown)}; there are {', '.join(names)}")
    results = read()
    if not arguments.page:
        for client in CLIENTS:
            if client.name in (arguments.clients or names):
                print(f"== {client.name}", flush=True)
                results[client.name] = run(client)
                RESULTS.write_text(json.dumps(in_order(results), indent=1, ensure_ascii=False) + "\n")
        results = read()
    PAGE.write_text(text(results))
    return int(any(WRONG in found["cases"].values() for found in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
