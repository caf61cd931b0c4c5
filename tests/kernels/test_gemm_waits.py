"""The simulator exposes every missing wait of a GEMM: memory completes late, so without the wait the numbers are wrong."""

import re

import pytest
from mutation_code import Mutations, mutated
from mutation_proof import proof
from mutation_run import Subject, capture

from hipkittens._installation import pack
from tests.kernels.gemm_plan import IN_FLIGHT, ROWS, STREAMED
from tests.kernels.packed_gemm import PackedGemm
from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.listing import Line, listing

S_NOP_0, S_TRAP_3 = 0xBF800000, 0xBF920003
# (variant, M = N, K): whole and partial tiles of K, several workgroups, every stage of the pipeline in use.
CASES = [("nt_bf16_256x256x64", 512, 448), ("nt_bf16_128x128x64", 256, 328), ("nt_bf16_16x64x64", 64, 840)]
SEEDS = range(6)


def replaced(image: bytes, line: Line, word: int) -> bytes:
    assert line.size == 4
    return image[: line.offset] + word.to_bytes(4, "little") + image[line.offset + 4 :]


def is_backward_branch(line: Line) -> bool:
    return line.mnemonic.startswith("s_cbranch") and int(line.text.split()[1], 0) % 65536 >= 32768


def is_executed(gemm: PackedGemm, line: Line) -> bool:
    try:
        gemm.run(replaced(gemm.image, line, S_TRAP_3))
    except SimulatorError:
        return True
    return False


def is_missed(gemm: PackedGemm, line: Line) -> bool:
    """Whether the kernel without this instruction faults or gives a wrong number, in any of the wave orders."""
    image = replaced(gemm.image, line, S_NOP_0)
    for seed in SEEDS:
        try:
            gemm.run(image, poison=1, wave_order_seed=seed)
        except SimulatorError:
            return True
        if not gemm.is_right():
            return True
    return False


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("variant", "size", "k"), CASES)
def test_a_deleted_wait_is_noticed(target, variant, size, k):
    gemm = PackedGemm(target, variant, size, size, k)
    for seed in SEEDS:
        gemm.run(poison=1, wave_order_seed=seed)
        assert gemm.is_right(), f"wrong as shipped, wave order {seed}"
    waits = [
        line
        for line in listing(gemm.image, target)
        if line.mnemonic == "s_waitcnt" and is_executed(gemm, line)
    ]
    unnoticed = [line for line in waits if not is_missed(gemm, line)]
    print(
        f"{target} {variant}: {len(waits) - len(unnoticed)} of {len(waits)} waits noticed; not: {unnoticed}"
    )
    assert len(waits) >= 12
    # Where the numbers do not show it, a checker does, or the wait is proved to order nothing: nothing is in flight at it,
    # or another wait covers its operations before anything reads the results.
    subject = Subject(capture(target, [gemm.symbol], gemm.run, False)[gemm.symbol], gemm.image)
    mutations = Mutations(target, subject.image, subject.executed)
    deleted = {mutant.address: mutant for mutant in mutations.of(["wait"]) if mutant.what == "deleted"}
    text = listing(gemm.image, target)[0].offset
    for line in unnoticed:
        mutant = deleted[line.offset - text]
        assert mutant.text == line.text
        assert subject.noticed(mutated(subject.image, mutant)) or proof(mutant, mutations, subject), line
    # After the loop the compiler also waits for what was loaded past the last tile, before it uses those registers.
    lines = listing(gemm.image, target)
    last_product = max(line.offset for line in lines if line.mnemonic.startswith("v_mfma"))
    end = max(line.offset for line in lines if is_backward_branch(line) and line.offset < last_product)
    loop_waits = [
        line for line in waits if "vmcnt" in line.text and "vmcnt(0)" not in line.text and line.offset < end
    ]
    # A streamed loop contains its body once for each K tile in flight, with a wait for the first of two products just before
    # the wait for the second. The simulator merges products (machine/product_runs.h), after the second wait: the numbers do not
    # show that the first is missing, but synccheck does, above.
    most = STREAMED[variant][1] if variant in STREAMED else 1
    assert sum(line in unnoticed for line in loop_waits) <= most, unnoticed


@pytest.mark.parametrize("target", TARGETS)
def test_a_deleted_barrier_of_the_interleaved_schedule_is_noticed(target):
    gemm = PackedGemm(target, "nt_bf16_128x128x64", 256, 256, 320)
    barriers = [
        line
        for line in listing(gemm.image, target)
        if line.mnemonic == "s_barrier" and is_executed(gemm, line)
    ]
    if target == "gfx950":  # the first one keeps loads in order, which affects timing only
        assert not is_missed(gemm, barriers.pop(0))
    assert barriers
    for line in barriers:
        assert is_missed(gemm, line), line


def hot_loop(lines: list[Line]) -> list[Line]:
    """The instructions of the innermost loop with the most matrix instructions."""

    def matrix_instructions(loop: list[Line]) -> int:
        return sum(line.mnemonic.startswith("v_mfma") for line in loop)

    loops = []
    for line in filter(is_backward_branch, lines):
        begin = line.offset + line.size + 4 * (int(line.text.split()[1], 0) % 65536 - 65536)
        loops.append([inner for inner in lines if begin <= inner.offset <= line.offset])
    return max(loops, key=matrix_instructions)


# The loads of interleaved loops go directly to LDS on gfx950.
THROUGH_REGISTERS = [
    (row, target)
    for row in IN_FLIGHT
    for target in TARGETS
    if row.startswith("nt_bf16")
    and ROWS[row][0] in ("both", target)
    and (target == "gfx942" or row in STREAMED)
]


@pytest.mark.parametrize(("row", "target"), THROUGH_REGISTERS)
def test_loads_through_registers_stay_under_way_for_as_many_k_tiles_as_the_row_says(row, target):
    """The compiler counts these loads; if it moves one, or if a path into the loop issues them in another order, the waits become
    shorter."""
    chosen = pack(target)
    loop = hot_loop(listing(chosen.image(chosen.entry(f"hipkittens_gemm_{row}_{target}")), target))
    loads = sum(line.mnemonic.startswith("buffer_load") for line in loop)
    in_registers = IN_FLIGHT[row][1]
    assert loads and loads % in_registers == 0
    waits = [int(count) for line in loop for count in re.findall(r"vmcnt\((\d+)\)", line.text)]
    assert waits and min(waits) >= (in_registers - 1) * (loads // in_registers), waits
