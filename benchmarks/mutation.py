#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how many small mistakes in the shipped kernels are detected: each mutant of a kernel is one.

    python benchmarks/mutation.py [--kernel gemm_nt_bf16_256x256x64] [--target gfx950] [--kind wait] [--json | --markdown]

A mutant is one change in the machine code, among the instructions that a small problem executes: a wait deleted, or
weakened by one; a barrier deleted; an s_nop deleted; two memory instructions swapped across a barrier; one bit of a
constant in the computation of an address flipped; an offset shifted by one element. It is run in three orders of the waves and,
if it is not detected, in the problem's other launches of the kernel too.

* found: the simulator faults or a checker reports something.
* found by bits: neither, but a result differs from that of the shipped kernel. A user has no such result to compare with.
* equivalent: mutation_proof.py proves from the code that it behaves like the kernel.
* equivalent on this problem: nothing was noticed, and the record of one run shows that nothing could be. Another problem may differ.
* missed: the rest, which is listed.

--kernel takes names without `hipkittens_` and the target, or patterns such as `attention_*`; by default one kernel of
each kind that the packs have, 20 mutants of each. --all takes every kernel, --sample 0 every mutant. Exit code 1 when something
is missed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from mutation_code import KINDS, Mutant, Mutations, mutated
from mutation_problems import argument, kernels
from mutation_proof import ALWAYS, ON_THIS_PROBLEM, Proof, proof
from mutation_run import Launch, Subject, captures

from hipkittens import _disassembly, _installation
from hipkittens._representative import trial

TARGETS = _installation.TARGETS
# Launches of a kernel in its small problem: enough for each set of options that problems have.
MOST_LAUNCHES = 6


def usual(target: str) -> list[str]:
    """One kernel of each kind of each operation: the one with the most code, the first of them on ties."""
    pack, largest = _installation.pack(target), {}
    for name, kernel in kernels(target).items():
        size = sum(len(text) for _, text in _disassembly.code(pack.image(pack.entry(kernel.symbol))))
        known = largest.get((kernel.folder, kernel.kind))
        if known is None or size > known[0]:
            largest[kernel.folder, kernel.kind] = size, name
    return [name for _, name in largest.values()]


def chosen(target: str, patterns: Sequence[str]) -> list[str]:
    """Short names of kernels. A pattern that matches none is an error."""
    names = list(kernels(target))
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"mutation: no kernel of {target} is called {pattern!r}; one is {names[0]}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def launches(target: str, name: str, most: int) -> list[Launch]:
    """The first launches of a kernel in its small problem, reduced to the part that is mutated."""
    kernel = kernels(target)[name]
    problem = trial(kernel)
    # If no launch runs, a second launch may depend on results that the first has not computed.
    of_each = captures(target, [kernel.symbol], problem.run, problem.skip, 1 if problem.skip else most)
    found = of_each[kernel.symbol]
    for launch in found:
        if problem.shared_by:
            launch.share_among(problem.workgroups, *argument(kernel, problem.shared_by))
        launch.first_workgroups(problem.workgroups)
    return found


def subject(target: str, name: str, launch: Launch | None = None) -> Subject:
    """The kernel in that launch, by default in its first one."""
    pack = _installation.pack(target)
    image = pack.image(pack.entry(kernels(target)[name].symbol))
    return Subject(launch or launches(target, name, most=1)[0], image)


class Trials:
    """A kernel in the launches of its small problem. Launches after the first are prepared when a mutant is not noticed in the first."""

    def __init__(self, target: str, name: str):
        self._target, self._name = target, name
        first, *self._left = launches(target, name, MOST_LAUNCHES)
        self._ready = [self._prepared(first)]
        self.mutations = self._ready[0][1]  # of the instructions that the first launch executes

    def _prepared(self, launch: Launch) -> tuple[Subject, Mutations]:
        shipped = subject(self._target, self._name, launch)
        return shipped, Mutations(self._target, shipped.image, shipped.executed)

    def _each(self, mutant: Mutant) -> Iterator[tuple[Subject, Mutations]]:
        """The launches that execute the changed instruction."""
        yield self._ready[0]
        self._ready += [self._prepared(launch) for launch in self._left]
        self._left = []
        yield from (each for each in self._ready[1:] if mutant.address in each[1].executed)

    def noticed(self, mutant: Mutant) -> str | None:
        """The result of `Subject.noticed` for the first launch in which the mutant is noticed."""
        found = (shipped.noticed(mutated(shipped.image, mutant)) for shipped, _ in self._each(mutant))
        return next(filter(None, found), None)

    def proof(self, mutant: Mutant) -> Proof | None:
        """A proof that the mutant is equivalent in every launch."""
        proofs = [proof(mutant, mutations, shipped) for shipped, mutations in self._each(mutant)]
        return None if None in proofs else min(proofs, key=lambda each: each.holds == ALWAYS)


def measure(
    target: str, name: str, kinds: Sequence[str] = KINDS, sample: int = 0, seed: int = 0
) -> dict[str, Any]:
    """The row of a kernel. sample: number of its mutants to test, drawn by the seed and the kernel's name."""
    trials, problem = Trials(target, name), trial(kernels(target)[name])
    mutants = list(trials.mutations.of(kinds))
    if sample:
        mutants = random.Random(f"{seed} {target} {name}").sample(mutants, min(sample, len(mutants)))
    found: Counter[str] = Counter()
    equivalent, missed = [], []
    for mutant in mutants:
        who = trials.noticed(mutant)
        if who:
            found[who] += 1
        elif proved := trials.proof(mutant):
            equivalent.append(describe(mutant) | {"proof": proved.reason, "holds": proved.holds})
        else:
            missed.append(describe(mutant))
    holds = Counter(mutant["holds"] for mutant in equivalent)
    return {
        "kernel": name, "target": target, "problem": problem.title, "workgroups": problem.workgroups,
        "mutants": len(mutants), "found": found.total() - found["result"], "found_by_bits": found["result"],
        "equivalent": holds[ALWAYS], "equivalent_on_this_problem": holds[ON_THIS_PROBLEM], "missed": len(missed),
        "kinds": dict(Counter(mutant.kind for mutant in mutants)), "found_by": dict(found),
        "equivalent_mutants": equivalent, "missed_mutants": missed,
        "drawn": [mutant.address for mutant in mutants],
    }  # fmt: skip


def describe(mutant: Mutant) -> dict[str, Any]:
    return {"kind": mutant.kind, "address": mutant.address, "instruction": mutant.text, "change": mutant.what}


def _measure(task: tuple) -> dict[str, Any]:
    return measure(*task)


NUMBERS = {
    "mutants": "mutants", "found": "found", "found_by_bits": "found by bits", "equivalent": "equivalent",
    "equivalent_on_this_problem": "equivalent on this problem", "missed": "missed",
}  # fmt: skip


def percent(some: int, of: int) -> float:
    return 100 * some / of if of else 100.0


def scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Percent found of the mutants that are not equivalent, with the most favorable way of counting first."""
    total = {key: sum(row[key] for row in rows) for key in NUMBERS}
    judged = total["mutants"] - total["equivalent"]
    found = total["found"] + total["found_by_bits"]
    return {
        "with bits, of those that can have an effect on this problem": percent(
            found, judged - total["equivalent_on_this_problem"]
        ),
        "with bits, of all": percent(found, judged),
        "without bits, of all": percent(total["found"], judged),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| kernel | target | " + " | ".join(NUMBERS.values()) + " | found, with and without bits |",
        "| --- | --- |" + " ---: |" * (len(NUMBERS) + 1),
    ]

    def line(name, target, members):
        numbers = " | ".join(str(sum(row[key] for row in members)) for key in NUMBERS)
        _, with_bits, without = scores(members).values()
        return f"| {name} | {target} | {numbers} | {with_bits:.1f} %, {without:.1f} % |"

    lines += [line(row["kernel"], row["target"], [row]) for row in rows]
    return "\n".join([*lines, line("all of these", "", rows)])


def page(rows: Sequence[dict[str, Any]], arguments: Sequence[str]) -> str:
    """docs/mutation.md."""
    command = " ".join(["python benchmarks/mutation.py", *arguments])
    who = Counter()
    for row in rows:
        who.update(row["found_by"])
    by_kind = defaultdict(Counter)
    for row in rows:
        for kind, count in row["kinds"].items():
            by_kind[kind]["mutants"] += count
        for mutant in row["missed_mutants"]:
            by_kind[mutant["kind"]]["missed"] += 1
        for mutant in row["equivalent_mutants"]:
            by_kind[mutant["kind"]][mutant["holds"]] += 1
    lines = [
        "# Mutation score", "",
        f"Written by `{command}`. `benchmarks/mutation.py` defines mutants and the columns of the tables.",
        f"Only these {len(rows)} kernels were run; the sample of each kernel is drawn with a separate seed.", "",
        *(f"* {value:.1f} % found {name}" for name, value in scores(rows).items()), "",
        "\"Bits\" is the comparison with the result of the shipped kernel; without it, a mutant is found by a fault or a checker.",
        "\"Equivalent\" is proved from the code. \"Equivalent on this problem\" is not: in one run of one small problem the mutation could not",
        "have any effect, and the second line counts it as not found.", "",
        "Found by: " + ", ".join(f"{name} {count}" for name, count in who.most_common()) + ".", "",
        "| kind | mutants | equivalent | equivalent on this problem | missed |", "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {kind} | {n['mutants']} | {n[ALWAYS]} | {n[ON_THIS_PROBLEM]} | {n['missed']} |"
            for kind, n in by_kind.items()
        ), "",
        "Most of the barriers that are equivalent on this problem keep one half of the waves in arithmetic while the other half accesses",
        "memory: without them the kernel is slower. A replay of a recorded run (`benchmarks/mutation_order.py`) shows that they order",
        "nothing. The replay shares no code with racecheck; `tests/test_mutation.py` checks that both give the same answer.",
        "", "## Kernels", "", table(rows), "", "## Problems", "",
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
    lines += ["", "## Equivalent", "", "| kind | mutants | holds | proof |", "| --- | ---: | --- | --- |"]
    proofs: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        # The part counted in the run is specific to the kernel; the rest of the sentence is the proof.
        proofs.update(
            (
                mutant["kind"],
                mutant["holds"],
                re.sub(r"((vm|lgkm)cnt) \d+", r"\1 of that many", mutant["proof"]),
            )
            for mutant in row["equivalent_mutants"]
        )
    lines += [
        f"| {kind} | {count} | {holds} | {reason} |" for (kind, holds, reason), count in proofs.most_common()
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kernel", nargs="+", metavar="NAME", help="default: one of each kind")
    parser.add_argument("--all", action="store_true", help="every kernel of the packs")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=1, help="kernels that are tried side by side")
    parser.add_argument(
        "--sample", type=int, default=20, help="so many mutants of each kernel; 0: all of them"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones --sample takes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    tasks = [
        (target, name, options.kind, options.sample, options.seed)
        for target in ([options.target] if options.target else TARGETS)
        for name in chosen(target, ["*"] if options.all else options.kernel or usual(target))
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
        for name, value in scores(rows).items():
            print(f"{value:.1f} % found {name}")
        for row in rows:
            for mutant in row["missed_mutants"]:
                place = f"{row['kernel']} {row['target']} text+{mutant['address']:#x}"
                print(f"missed: {place}: {mutant['kind']}: {mutant['instruction']}: {mutant['change']}")
    return 1 if any(row["missed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
