#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many small mistakes in the shipped kernels are noticed: each mutant of a kernel is one.

    python benchmarks/mutation.py [--kernel gemm_nt_bf16_256x256x64] [--target gfx950] [--kind wait] [--json | --markdown]

A mutant is one change in the machine code, among the instructions that a small problem executes: a wait deleted, or
weakened by one; a barrier deleted; an s_nop deleted; two memory instructions swapped across a barrier; one bit of a
constant in the computation of an address flipped; an offset shifted by one element. It is found if the simulator faults,
a checker reports something, or a result differs, in one of three orders of the waves. Of those that are not found, the
ones that mutation_proof.py proves equal to the kernel count as equivalent; the rest is missed, and listed.

--kernel takes names without `hipkittens_` and the target, or patterns such as `attention_*`; by default one kernel of
each kind. --all takes every kernel of the packs. Exit code 1 when something is missed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mutation_code import KINDS, Mutant, Mutations, mutated
from mutation_problems import argument, kernels
from mutation_proof import proof
from mutation_run import Subject, capture

from hipkittens import _installation
from hipkittens._representative import trial

TARGETS = _installation.TARGETS
USUAL = (
    "gemm_nt_bf16_256x256x64", "attention_forward_bf16_d128_interleaved*", "attention_backward_delta_bf16",
    "attention_backward_[!d]*_bf16_d128", "norm_forward_bf16_2048",
    "norm_backward_bf16_2048", "rotary_bf16",
)  # fmt: skip


def chosen(target: str, patterns: Sequence[str]) -> list[str]:
    """Short names of kernels. A pattern that fits none is an error."""
    names = list(kernels(target))
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"mutation: no kernel of {target} is called {pattern!r}; one is {names[0]}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def subject(target: str, name: str) -> Subject:
    kernel = kernels(target)[name]
    symbol, problem = kernel.symbol, trial(kernel)
    launch = capture(target, [symbol], problem.run, problem.skip)[symbol]
    if problem.shared_by:
        launch.share_among(problem.workgroups, *argument(kernel, problem.shared_by))
    launch.first_workgroups(problem.workgroups)
    pack = _installation.pack(target)
    return Subject(launch, pack.image(pack.entry(symbol)))


def measure(
    target: str, name: str, kinds: Sequence[str] = KINDS, sample: int = 0, seed: int = 0
) -> dict[str, Any]:
    """The row of a kernel. sample: so many of its mutants, drawn by the seed."""
    shipped, problem = subject(target, name), trial(kernels(target)[name])
    mutations = Mutations(target, shipped.image, shipped.executed)
    mutants = list(mutations.of(kinds))
    if sample:
        mutants = random.Random(seed).sample(mutants, min(sample, len(mutants)))
    found: Counter[str] = Counter()
    equivalent, missed = [], []
    for mutant in mutants:
        who = shipped.noticed(mutated(shipped.image, mutant))
        if who:
            found[who] += 1
        elif reason := proof(mutant, mutations, shipped):
            equivalent.append(describe(mutant) | {"proof": reason})
        else:
            missed.append(describe(mutant))
    return {
        "kernel": name, "target": target, "problem": problem.title, "workgroups": problem.workgroups,
        "mutants": len(mutants), "found": found.total(), "equivalent": len(equivalent), "missed": len(missed),
        "kinds": dict(Counter(mutant.kind for mutant in mutants)), "found_by": dict(found),
        "equivalent_mutants": equivalent, "missed_mutants": missed,
    }  # fmt: skip


def describe(mutant: Mutant) -> dict[str, Any]:
    return {"kind": mutant.kind, "address": mutant.address, "instruction": mutant.text, "change": mutant.what}


def _measure(task: tuple) -> dict[str, Any]:
    return measure(*task)


def score(rows: Sequence[dict[str, Any]]) -> float:
    """Percent found of those not proved equivalent."""
    judged = sum(row["mutants"] - row["equivalent"] for row in rows)
    return 100 * sum(row["found"] for row in rows) / judged if judged else 100.0


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| kernel | target | mutants | found | equivalent | missed | found of the rest |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        numbers = " | ".join(str(row[key]) for key in ("mutants", "found", "equivalent", "missed"))
        lines.append(f"| {row['kernel']} | {row['target']} | {numbers} | {score([row]):.1f} % |")
    sums = " | ".join(
        str(sum(row[key] for row in rows)) for key in ("mutants", "found", "equivalent", "missed")
    )
    return "\n".join([*lines, f"| all of these | | {sums} | {score(rows):.1f} % |"])


def page(rows: Sequence[dict[str, Any]], arguments: Sequence[str]) -> str:
    """docs/mutation.md."""
    command = " ".join(["python benchmarks/mutation.py", *arguments])
    who = Counter()
    for row in rows:
        who.update(row["found_by"])
    lines = [
        "# Mutation score", "",
        f"Made by `{command}`. What a mutant is, and when one is found: `benchmarks/mutation.py`.",
        f"These {len(rows)} kernels were run, and no others.", "", table(rows), "",
        "Who found them first: " + ", ".join(f"{name} {count}" for name, count in who.most_common()) + ".", "",
        "Most of the equivalent barriers keep one half of the waves in arithmetic while the other half is in memory: they cost",
        "speed when they are gone, and order nothing. Their proof is a replay of a recorded run (`benchmarks/mutation_order.py`),",
        "which shares no code with racecheck; `tests/test_mutation.py` holds the two to the same answer.", "",
        "## Problems", "",
    ]  # fmt: skip
    lines += [
        f"- {row['kernel']} on {row['target']}: {row['problem']}, at most {row['workgroups']} workgroups"
        for row in rows
    ]
    lines += ["", "## Missed"]
    for row in rows:
        if row["missed_mutants"]:
            lines += ["", f"{row['kernel']} on {row['target']}", ""]
        for mutant in row["missed_mutants"]:
            lines.append(
                f"- {mutant['kind']}, text+{mutant['address']:#x}, `{mutant['instruction']}` {mutant['change']}"
            )
    lines += ["", "## Proved equivalent", "", "| kind | mutants | proof |", "| --- | ---: | --- |"]
    proofs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        # What was counted in the run is the kernel's; the rest of the sentence is the proof.
        proofs.update(
            (mutant["kind"], re.sub(r"((vm|lgkm)cnt) \d+", r"\1 of that many", mutant["proof"]))
            for mutant in row["equivalent_mutants"]
        )
    lines += [f"| {kind} | {count} | {reason} |" for (kind, reason), count in proofs.most_common()]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kernel", nargs="+", default=list(USUAL), metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every kernel of the packs")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=1, help="kernels that are tried side by side")
    parser.add_argument(
        "--sample", type=int, default=0, help="so many mutants of each kernel, instead of all"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones --sample takes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    tasks = [
        (target, name, options.kind, options.sample, options.seed)
        for target in ([options.target] if options.target else TARGETS)
        for name in chosen(target, ["*"] if options.all else options.kernel)
    ]
    if options.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=4) as pool:
            rows = pool.map(_measure, tasks, chunksize=1)
    else:
        rows = []
        for task in tasks:
            rows.append(_measure(task))
            print(f"{task[1]} {task[0]}: {rows[-1]['missed']} missed", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))
    elif options.markdown:
        print(page(rows, [argument for argument in arguments if argument != "--markdown"]))
    else:
        print(table(rows))
        for row in rows:
            for mutant in row["missed_mutants"]:
                place = f"{row['kernel']} {row['target']} text+{mutant['address']:#x}"
                print(f"missed: {place}: {mutant['kind']}: {mutant['instruction']}: {mutant['change']}")
    return 1 if any(row["missed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
