# SPDX-License-Identifier: MIT
"""The syntax of --shapes, and the operation counts of problems."""

import mmap
import re
from pathlib import Path

import pytest

from hipkittens import _timing
from hipkittens.profiling import bench, limits, problems, published

WRONG = {
    ("gemm", "256x256"): "'256x256' is not MxNxK, such as 4096x4096x4096",
    ("gemm", "256x0x256"): "N is 0; allowed: 1 to",
    ("gemm", "1x2x-3"): "is not MxNxK",
    ("gemm", "256x256x256,"): "'' is not MxNxK",
    ("layer_norm", "4x4x4"): "is not rowsxcolumns",
    ("rms_norm", "4x4:causal"): "after the colon is 'causal'; allowed: training",
    ("layer_norm_backward", "4x4:training"): "after the colon is 'training'; allowed: nothing",
    ("attention", "B1H2N64"): "has no D; attention takes BHND[K][L]",
    ("attention", "B1H2N64D64X3"): "X is no extent",
    ("attention", "B1B1H2N64D64"): "has B twice",
    ("attention", "B1H3K2N64D64"): "3 query heads cannot share 2 key heads",
    ("attention", "B1H2N64D64:full"): "after the colon is 'full'; allowed: causal",
    ("rotary", "B1H2N64D64:causal"): "allowed: nothing",
    ("rotary", "B1H2N64D63"): "it has to be even",
    ("rotary", "64x64"): "is not letters with numbers",
}


@pytest.mark.parametrize("operation, text", WRONG)
def test_a_wrong_shape_is_named(operation, text):
    with pytest.raises(problems.ShapeError) as error:
        problems.parse_shapes(operation, text)
    assert WRONG[operation, text] in str(error.value)


@pytest.mark.parametrize("operation", problems.OPERATIONS)
def test_shapes_are_written_as_they_are_read(operation):
    texts = (problems.SYNTAX[operation].example, *problems.SYNTAX[operation].shapes.split(","))
    assert [one.shape for one in problems.parse_shapes(operation, ",".join(texts))] == list(texts)


def test_extents_with_defaults():
    short, long = problems.parse_shapes("attention", "B2H4N64D128, B2H4K4N64L64D128")
    assert short == long and short["K"] == 4 and short["L"] == 64


def test_what_problems_count():
    (product,) = problems.parse_shapes("gemm", "3x5x7")
    assert product.flops == 2 * 3 * 5 * 7 and product.bytes == 2 * (3 * 7 + 7 * 5 + 3 * 5)
    full, causal = problems.parse_shapes("attention", "B2H4K2N64D128,B2H4K2N64D128:causal")
    assert full.flops == 2 * causal.flops == 4 * 2 * 4 * 64 * 64 * 128
    assert full.bytes == 2 * 2 * 64 * 128 * (2 * 4 + 2 * 2) + 4 * 2 * 4 * 64


def test_limits_are_those_of_the_data_sheets():
    # AMD's figures for dense bfloat16.
    stated = {"MI300X": 1307.4e12, "MI325X": 1307.4e12, "MI350X": 2306.9e12, "MI355X": 2516.6e12}
    assert {device: pytest.approx(limits.peak_flops(device), rel=1e-3) for device in stated} == stated
    (large,) = problems.parse_shapes("gemm", "8192x8192x8192")
    (flat,) = problems.parse_shapes("gemm", "16x8192x8192")
    assert limits.limit(large, "MI355X").unit == "matrix" and limits.limit(flat, "MI355X").unit == "memory"


def test_published_figures_are_found_and_parse():
    (problem,) = problems.parse_shapes("attention", "B16H16N1024D128:causal")
    found = published.figure(problem, "MI355X", "aiter")
    assert found is not None and "HipKittens" in found.source
    # That source says 554.6 TFLOP/s.
    assert problem.flops / found.microseconds * 1e-6 == pytest.approx(554.6, rel=0.05)
    assert published.figure(problem, "MI355X", "nobody") is None
    for operation, _, _, shape in published._rows():
        (one,) = problems.parse_shapes(operation, shape)
        assert one.shape == shape


MOST = 64
FEWER = {"B": 2, "H": 8, "K": 8, "G": 4}


def small(operation):
    """The example quoted by error messages, with smaller numbers."""

    def smaller(letter, number):
        return f"{letter}{min(int(number), FEWER.get(letter, MOST))}"

    text = re.sub(r"([A-Z]?)(\d+)", lambda part: smaller(*part.groups()), problems.SYNTAX[operation].example)
    return problems.parse_shapes(operation, text)[0]


def matrix_operations(launches, device, bits):
    """The operations that the matrix units can have done in the time for which they were busy."""
    value = {row["name"]: row["value"] for row in _timing.parameters(device)}
    rate = limits.MATRIX_RATE[_timing.DEVICES[device]] * value["xcds"] * value["compute_units_per_xcd"]
    return sum(launch.busy["matrix"] * launch.cycles for launch in launches) * rate * 16 / bits


@pytest.mark.parametrize("operation", problems.OPERATIONS)
def test_a_call_does_what_its_problem_counts(operation):
    """Every counted kernel is launched: no product is counted that only a gradient would perform."""
    problem = small(operation)
    device = "MI355X"  # whose matrix instructions take every format
    launches = bench.modelled_launches(device, problem.call(), values=problem.chained)
    assert launches and problem.size > 0
    if problem.flops is not None:
        assert matrix_operations(launches, device, problem.bits) >= problem.flops * (1 - 1e-6)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_tensors_of_zeros_take_memory_where_they_are_written():
    (problem,) = problems.parse_shapes("softmax", "16384x32768")
    before = resident_bytes()
    x = problem.tensor("cpu", problem["rows"], problem["columns"])
    assert not x[::512].any()
    assert resident_bytes() - before < 64 << 20  # of a GiB
    x[1] = 1
    assert x[:3].sum() == 32768 and problem.tensor("cpu", 0, 4).shape == (0, 4)
