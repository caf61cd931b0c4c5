# SPDX-License-Identifier: MIT
"""benchmarks/calibration.py: which rows count, the split, the baselines, the fit, and tiny rows through the cycle model."""

import collections
import csv
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import calibration_baselines
import calibration_choice
import calibration_errors
import calibration_fit
import calibration_launch
import calibration_published
import calibration_report
import calibration_rows
import numpy as np
import pytest
from calibration_launch import Launch, Product
from calibration_rows import CannotRun, Row

from hipkittens.profiling import model_error
from hipkittens.profiling.problems import parse_shapes
from tests.oracles.aiter import wheel

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "calibration.py"
COLUMNS = (
    "hw,arch,co,symbol,us,M,N,K,splitK,token,model_dim,inter_dim,expert,topk,act,q_type,block_m,run_1stage"
)


def float4_record(m=64, n=256, k=512, us="6.5", tile="64x128"):
    name = f"f4gemm_bf16_per1x32Fp4_BpreShuffle_{tile}"
    return {
        "hw": "MI350X/MI355X", "arch": "gfx950", "co": f"gfx950/f4gemm/{name}.co", "symbol": f"_ZN5aiter{len(name)}{name}E",
        "us": us, "M": f"{m}.0", "N": str(n), "K": str(k), "splitK": "0.0",
    }  # fmt: skip


def mixture_record(token=4, us="30.0", name="fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_32x256", one=True):
    folder = "fmoe/silu" if one else "fmoe_2stages"
    return {
        "hw": "MI308X", "arch": "gfx942", "co": f"gfx942/{folder}/{name}.co", "symbol": f"_ZN5aiter{len(name)}{name}E",
        "us": us, "token": str(token), "model_dim": "512", "inter_dim": "512", "expert": "4", "topk": "2",
        "act": "ActivationType.Silu", "q_type": "QuantType.per_Token", "block_m": "32", "run_1stage": str(int(one)),
    }  # fmt: skip


def write(path, *records):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS.split(","), restval="")
        writer.writeheader()
        writer.writerows(records)
    return path


def read(tmp_path, *records):
    return calibration_rows.read(write(tmp_path / "rows.csv", *records))


def some_rows(count, family="f4gemm", hw="MI350X/MI355X"):
    return [
        Row(f"x/{family}/a.co", "a", "gfx950", hw, 1.0, (("M", m), ("N", 1), ("K", 1))) for m in range(count)
    ]


def launch(m=256, n=256, k=1024, tile=(128, 128), workgroups=4, matrix_format="f4"):
    moved = (m + n) * k / 2 + m * n * 2
    return Launch("x", (1, 1, 1), {}, matrix_format, (Product(1, m, n, k, *tile),), moved, workgroups, k)


def test_a_row_knows_its_shape_and_family(tmp_path):
    (row,), left_out = read(tmp_path, float4_record(m=3))
    assert row.dimensions == (3, 256, 512) and row.family == "f4gemm" and row.chip == "MI355X"
    assert not left_out.total()
    (row,), _ = read(tmp_path, mixture_record())
    assert row.dimensions == (4, 512, 512) and row.is_mixture and row.activation == "silu"


def test_times_copied_across_token_counts_are_dropped(tmp_path):
    copied = mixture_record(4, "30.0"), mixture_record(8, "30.0")
    rows, left_out = read(tmp_path, *copied, mixture_record(16, "50.0"))
    assert [row["token"] for row in rows] == [16]
    assert [count for why, count in left_out.items() if "several token counts" in why] == [2]
    other = mixture_record(8, "30.0", name="fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256")
    rows, _ = read(tmp_path, copied[0], other)
    assert not rows  # for any kernels they are declared to be of


def test_the_median_of_repeated_measurements_is_taken(tmp_path):
    (row,), left_out = read(tmp_path, *(float4_record(us=us) for us in ("6", "7", "10")))
    assert row.measured_us == 7 and left_out.total() == 2
    assert left_out.repeats == [pytest.approx(10 / 6)]


def test_times_below_the_peak_rates_are_impossible():
    (row,) = some_rows(1)
    work = launch(8192, 8192, 8192)
    least = work.operations / (16384 * 256 * 2400e6) * 1e6
    for factor, impossible in ((0.99, True), (1.01, False)):
        timed = dataclasses.replace(row, measured_us=factor * least)
        assert calibration_baselines.is_impossible(timed, work) is impossible


def test_the_place_of_the_kernel_that_the_log_chose():
    choice = calibration_choice.Choice(
        "a", "small", 1, {"right": (3.0, 2.0, 4.0), "ties": (2.0,) * 3, "wrong": (1.0, 2.0, 1.5)}
    )
    assert [choice.place(model) for model in choice.predictions] == [0, 0.5, 1]
    assert [choice.excess(model) for model in choice.predictions] == [0, 0, 1]
    assert choice.kernels == 3


@wheel.needs_wheel
def test_a_family_differs_in_the_tile_alone():
    names = calibration_choice.family("gfx950/f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128.co")
    assert len(names) > 20 and all("/f4gemm_bf16_per1x32Fp4_BpreShuffle_" in name for name in names)
    assert calibration_choice.family("gfx942/bf16gemm/bf16gemm_outf32_tn_32x64_pf3.co") == [
        f"gfx942/bf16gemm/bf16gemm_outf32_tn_{tile}x64_pf3.co" for tile in (32, 48, 64, 96)
    ]


def test_the_fastest_kernel_of_a_problem_is_the_log_s():
    row, other = some_rows(2)
    slower = dataclasses.replace(row, symbol="b", measured_us=2 * row.measured_us)
    pairs = [
        (slower, launch()),
        (row, launch()),
        (other, launch()),
        (other, launch(1 << 15, 1 << 15, 1 << 15)),
    ]
    assert {kept for kept, _ in calibration_choice.problems(pairs, 9)} == {row, other}
    assert len(calibration_choice.problems(pairs, 1)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stream", calibration_published.streams(), ids=lambda stream: stream.key)
def test_streams_run_at_the_measured_rate(stream):
    """RMS norms, to which bandwidths are fitted, within 1 %; layer norms, to which nothing is, within 5 %."""
    error = abs(stream.modelled({})["predicted_us"] / stream.measured_us - 1)
    assert error < (0.01 if stream.problem.operation == "rms_norm" else 0.05)


@pytest.mark.parametrize(
    "change, why",
    [({"run_1stage": "419.0"}, "shifted"), ({"token": "4.5"}, "token"), ({"us": "0"}, "us is '0'")],
)
def test_rows_that_contradict_themselves_are_counted(tmp_path, change, why):
    rows, left_out = read(tmp_path, mixture_record() | change)
    assert not rows
    ((reason, count),) = left_out.items()
    assert why in reason and count == 1


@pytest.mark.parametrize(
    "text, why",
    [
        ("symbol,us\n", "no column hw, arch, co"),
        ("hw,arch,co,symbol,us,M,N\nMI355X,gfx950,gfx950/f4gemm/x.co,x,1,2,3\n", "no column K"),
        ("", "is empty"),
    ],
)
def test_a_file_without_the_columns_is_refused(tmp_path, text, why):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        calibration_rows.read(path)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"us": "fast"}, "us is 'fast'; it must be a number"),
        ({"us": "inf"}, "us is 'inf'"),
        ({"K": "nan"}, "K is 'nan'"),
        ({"M": ""}, "M is ''"),
        ({"hw": "MI100"}, "hw is 'MI100'; known: "),
        ({"arch": "gfx942"}, "arch is 'gfx942'.* different targets"),
        ({"co": "f4gemm.co"}, "co is 'f4gemm.co'"),
    ],
)
def test_a_row_that_says_nothing_is_named_by_its_line(tmp_path, change, why):
    rows, left_out = read(tmp_path, float4_record(), float4_record(m=128) | change, {"M": "x"})
    assert len(rows) == 1
    second, third = left_out.messages()
    assert re.match(f"line 3: {why}", second) and third.startswith("line 4: M is 'x'")


def test_columns_may_come_in_any_order_and_beside_others(tmp_path):
    (row,), _ = read(tmp_path, float4_record())
    turned = {"extra": "x,y"} | dict(reversed(float4_record().items())) | {"hw": "MI355X"}
    with (tmp_path / "turned.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(turned))
        writer.writeheader()
        writer.writerow(turned)
    (again,), left_out = calibration_rows.read(tmp_path / "turned.csv")
    assert dataclasses.replace(again, hw=row.hw) == row and not left_out


def test_the_split_depends_on_no_order_and_cuts_each_family():
    rows = some_rows(100) + some_rows(10, "fmoe", "MI308X")
    fit, held_out = calibration_rows.split(rows)
    again, _ = calibration_rows.split(reversed(rows))
    assert [row.key for row in fit] == [row.key for row in again]
    assert {row.key for row in fit}.isdisjoint(row.key for row in held_out)
    assert len(fit) + len(held_out) == len(rows)
    assert collections.Counter(row.family for row in fit) == {"f4gemm": 35, "fmoe": 4}


def test_what_was_set_apart_before_is_so_in_every_file():
    rows = some_rows(100)
    fit, _ = calibration_rows.split(rows)
    few = [fit[0], *(row for row in rows if row not in fit)][:3]
    again, held_out = calibration_rows.split(few, {row.order for row in fit})
    assert again == few[:1] and held_out == few[1:]


def test_problems_of_several_kernels_are_never_fitted_on():
    rows = some_rows(100)
    others = [dataclasses.replace(row, symbol="b") for row in rows[:20]]
    fit, held_out = calibration_rows.split(rows + others)
    assert {*rows[:20], *others} <= set(held_out)
    assert len(fit) == 42


def test_in_a_sample_neither_a_family_nor_a_kernel_swamps_the_others():
    rows = some_rows(100) + some_rows(3, "fmoe")
    other = [dataclasses.replace(row, symbol="b", shape=(("M", 1000),)) for row in some_rows(1)]
    sample = calibration_rows.balanced_sample(
        rows + other, 20, lambda row: row.family, lambda row: row.symbol
    )
    assert collections.Counter(row.family for row in sample) == {"f4gemm": 20, "fmoe": 3}
    assert other[0] in sample


def test_kernels_that_were_measured_at_the_same_problem_are_found():
    rows = some_rows(3)
    same = [dataclasses.replace(rows[1], symbol="b"), dataclasses.replace(rows[2])]
    assert calibration_rows.with_several_kernels(rows + same) == [rows[1], same[0]]


def test_routing_lists_every_pair_once_in_whole_blocks():
    tokens, experts, top, block = 50, 8, 3, 16
    ids, owner, (used, count) = calibration_launch.routing(tokens, experts, top, block)
    real = ids[(ids & 0xFFFFFF) < tokens]
    assert count == tokens and len(set(real.tolist())) == len(real) == tokens * top
    assert set((real >> 24).tolist()) == set(range(top))
    assert used == block * np.count_nonzero(owner >= 0) and (np.diff(owner[owner >= 0]) >= 0).all()
    assert (ids[used:] == (top << 24 | tokens)).all()


def test_the_roofline_is_the_slower_of_matrix_units_and_memory():
    (row,) = some_rows(1)
    square, thin = launch(8192, 8192, 8192), launch(1, 8192, 8192)
    at_peak = 2 * 8192**3 / (16384 * 256 * 2400)
    assert calibration_baselines.roofline(row, square) == pytest.approx(at_peak)
    assert calibration_baselines.roofline(row, thin) == pytest.approx(thin.bytes / 6000 / 1e3)
    assert calibration_baselines.bound(row, square) == "matrix"
    assert calibration_baselines.bound(row, thin) == "memory"
    assert calibration_baselines.bound(row, launch(1, 512, 512)) == "small"


def test_origami_is_never_below_the_matrix_units_and_grows_with_every_dimension():
    (row,) = some_rows(1)
    times = [
        calibration_baselines.origami(row, launch(*shape, tile=(256, 256)))
        for shape in ((4096,) * 3, (8192, 4096, 4096), (8192, 8192, 4096), (8192,) * 3)
    ]
    assert times == sorted(times) and len(set(times)) == 4
    assert times[-1] > 2 * 8192**3 / (16384 * 256 * 2400)


def test_two_parameters_are_found_again():
    (row,) = some_rows(1)
    made = [(1, 512), (300, 512), (1, 4096), (700, 8192)]

    def timed(workgroups, k):
        rounds = -(-workgroups // 256)
        measured = rounds * (3.0 + 0.002 * k)
        return Row(row.name, "a", "gfx950", row.hw, measured, (("M", workgroups),)), launch(
            k=k, workgroups=workgroups
        )

    model = calibration_baselines.TwoParameters(timed(*entry) for entry in made)
    other, work = timed(1000, 2048)
    assert model(other, work) == pytest.approx(other.measured_us)
    stranger = Row("x/fmoe/b.co", "b", "gfx950", row.hw, 1.0, ())
    assert model(stranger, work) is None


def test_errors_and_rank_correlation():
    found = calibration_baselines.errors([(11, 10), (18, 20), (60, 50)])
    assert found == {
        "rows": 3,
        "mape": pytest.approx(40 / 3),
        "median": pytest.approx(10),
        "bias": pytest.approx(10),
        "worst": pytest.approx(20),
    }
    assert calibration_baselines.rank_correlation([(1, 5), (2, 6), (9, 7)]) == pytest.approx(1)
    assert calibration_baselines.rank_correlation([(1, 7), (2, 6), (9, 5)]) == pytest.approx(-1)
    assert calibration_baselines.rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.866, abs=1e-3)
    assert calibration_baselines.rank_correlation([(1, 1)]) is None


def test_kernels_that_measurements_do_not_tell_apart_can_be_left_out_of_the_ranking():
    rows = some_rows(2)
    near = dataclasses.replace(rows[0], symbol="b", measured_us=1.02)
    far = dataclasses.replace(rows[1], symbol="b", measured_us=2.0)
    said = [
        (row.problem, predicted, row.measured_us)
        for row, predicted in ((rows[0], 2.0), (near, 1.0), (rows[1], 1.0), (far, 2.0))
    ]
    rank = calibration_baselines.rank_correlation_at_same_problem
    assert rank(said) == (pytest.approx(0), 2)
    assert rank(said, 0.03) == (pytest.approx(1), 1)
    alike = [(problem, 5.0, measured) for problem, _, measured in said]
    assert rank(alike) == (0, 2)
    assert rank([("alone", 1.0, 2.0)]) == (None, 0)


def fit_record(key, modelled, measured, chip="MI355X", matrix_format="f4"):
    return {
        "key": key, "family": "f4gemm", "chip": chip, "bound": "matrix", "matrix_format": matrix_format,
        "predicted_us": modelled, "measured_us": measured, "cycles": 1500.0 * measured,
    }  # fmt: skip


def test_the_fit_finds_fixed_cost_scale_and_clock_despite_an_outlier(tmp_path):
    records = [fit_record(f"row {t}", t, 2.5 + 1.2 * t) for t in (2.0, 5.0, 20.0, 80.0, 300.0)]
    records += [fit_record("odd", 10.0, 200.0) | {"cycles": 9.0}, fit_record("few", 1.0, 9.0, "MI300X", "f8")]
    result = calibration_fit.fit(records, {"parameters": {}}, {"per class": 8}, ["b", "a"])
    (entry,) = result.fitted
    assert entry.fixed_us == pytest.approx(2.5, abs=0.05) and entry.time_scale == pytest.approx(1.2, rel=0.01)
    assert result.predict("MI300X", "f8", 1.0) == 1.0
    assert result.clock("f4gemm", "MI355X", "matrix") == pytest.approx(1500)
    assert result.clock("f4gemm", "MI300X", "matrix") is None
    result.save(tmp_path / "fit.json")
    assert calibration_fit.Fit.load(tmp_path / "fit.json") == result
    assert set(result.rows) == {record["key"] for record in records} and result.set_apart == ("a", "b")


def test_the_fit_that_is_kept_names_every_row_it_was_made_of():
    kept = calibration_fit.Fit.load(SCRIPT.with_name("calibration_fit.json"))
    assert len(set(kept.set_apart)) == len(kept.set_apart) > len(kept.rows)
    assert {hashlib.sha256(key.encode()).hexdigest()[:16] for key in kept.rows} <= set(kept.set_apart)


def report_record(key, chip, time, measured_cycles=None):
    return {
        "key": key, "chip": chip, "family": "f4gemm", "bound": "small", "shape_class": "small", "measured_us": 10.0,
        "predicted_us": time, "cycles": 100 * time, "measured_cycles": measured_cycles, "matrix_busy": 0.5, "M": 1, "N": 1,
        "K": 1, "held_out": True, "predictions": {"cycle model": time, "roofline": 5.0},
    }  # fmt: skip


@pytest.fixture
def report():
    rows = {f"{m}": row for m, row in enumerate(some_rows(3))}
    records = [report_record("0", "MI355X", 11.0, 1000.0), report_record("1", "MI355X", 9.0, 1000.0), report_record("2", "MI300X", 20.0)]  # fmt: skip
    counts = {"in the file": 9, "for fitting": 3, "held out": 6, "per class": 3, "largest GFLOP": 60.0}
    return calibration_report.Report(records, rows, {"why": 2}, counts, {"parameters": {}}, None)


def test_the_report_counts_each_group_on_its_own(report):
    assert report.as_json()["mape"] == pytest.approx(40)
    assert report.as_json()["errors"]["MI355X"]["cycle model"]["mape"] == pytest.approx(10)
    assert report.mean_over_families("cycle model") == (pytest.approx(55), 2)
    assert report.cycle_errors()["rows"] == 2 and report.cycle_errors()["mape"] == pytest.approx(10)
    assert "| MI300X | 1 | 100.0 % | +100.0 % | 50.0 % |" in report.table()
    assert "| f4gemm | MI300X | small | 1 | 100.0 % | +100.0 % | 100 % | none |" in report.class_table()
    assert "| 2 | why |" in report.text()


def test_goals_are_held_against_the_same_rows(report):
    goals = {name: (limit, value, reached) for name, limit, value, reached in report.goals()}
    assert goals["error in time, all rows, %"] == (15.0, pytest.approx(40), False)
    assert goals["error in cycles, f4gemm, %"][:2] == (10.0, pytest.approx(10))
    assert goals["less error than roofline on the same rows, %"] == (
        pytest.approx(50),
        pytest.approx(40),
        True,
    )


def test_goals_count_no_row_that_was_fitted_on(report):
    report.records[2]["held_out"] = False
    goals = {name: value for name, _, value, _ in report.goals()}
    assert goals["error in time, all rows, %"] == pytest.approx(10)
    said = report.as_json()
    assert (said["mape"], said["mape_held_out"]) == (pytest.approx(40), pytest.approx(10))
    assert "3 rows, 2 of them held out" in report.text()


def test_both_kernels_of_attention_backward_are_ranked(report):
    def published(sums, measured, predicted):
        return {"publisher": "ROCm/aiter", "sums": sums, "chip": "MI300X", "shape": "B1H8N512D128",
                "measured_us": measured, "predicted_us": predicted}  # fmt: skip

    wrong = [published("a16", 40.0, 50.0), published("a32", 50.0, 40.0)]
    forward, from_python = published("", 1.0, 1.0), published("a32", 1.0, 1.0) | {"publisher": "others"}
    report = dataclasses.replace(report, published=[*wrong, forward, from_python])
    ranked = report.ranked("cycle model")
    rank = calibration_baselines.rank_correlation_at_same_problem
    assert rank(ranked["attention backward"]) == (pytest.approx(-1), 1)
    assert len(ranked["both"]) == len(ranked["tuning logs"]) + 2
    assert list(report.ranked("roofline")) == ["tuning logs"]
    goals = {name: reached for name, *_, reached in report.goals()}
    assert goals["rank correlation at least, both: 1 problems with kernels 3% apart"] is False


def test_the_page_keeps_what_was_written_by_hand(report):
    marked = f"OUTDATED {calibration_report.BEGIN} by hand {calibration_report.END} OUTDATED"
    page = report.page(None, marked)
    assert "\n\nby hand\n\n" in page and "OUTDATED" not in page and "sample of 3" in page
    assert "FILE.csv --per-class 3 --largest 60\n" in page


def test_errors_by_class_are_written_for_the_package(report, tmp_path):
    calibration_errors.write(report.records, tmp_path / "errors.json")
    cells = [
        model_error.Cell(**entry) for entry in json.loads((tmp_path / "errors.json").read_text())["cells"]
    ]
    assert [(cell.operation, cell.chip, cell.bound, cell.rows) for cell in cells] == [
        ("scaled_matmul_mxfp4", "MI300X", "small", 1),
        ("scaled_matmul_mxfp4", "MI355X", "small", 2),
    ]
    assert (cells[1].error, cells[1].bias, cells[1].worst) == (10, 0, 10)


def test_published_figures_of_one_problem_are_one_with_a_spread(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text(
        "op,device,library,shape,microseconds,source\n"
        "attention,MI355X,aiter,B1H8N1024D128,30,ROCm/aiter@a\n"
        "attention,MI355X,aiter,B1H8N1024D128,20,ROCm/aiter@b\n"
        "attention_backward,MI300X,aiter,B1H8N512D128,50,HazyResearch/HipKittens@a\n"
        "attention,MI355X,triton,B1H8N1024D128,10,another library\n"
        "attention,MI355X,aiter,B1H8N1024D64,10,no object of that size\n"
        "attention_backward,MI300X,aiter,B1H8N512D128,40,ROCm/aiter@a (a32)\n"
    )
    from_python, backward, forward = calibration_published.figures(path)
    assert (from_python.publisher, from_python.sums, from_python.best) == (
        "HazyResearch/HipKittens",
        "a32",
        50,
    )
    assert (forward.best, forward.microseconds, forward.sums) == (20, (20, 30), "")
    assert (backward.best, backward.sums) == (40, "a32")
    record = calibration_published.record(forward, {"predicted_us": 22.0})
    assert (record["measured_us"], record["slowest_us"], record["bound"]) == (20, 30, "small")
    assert calibration_published.missing(forward) == (0, 0)
    rows, bandwidth = 8 * 512, calibration_launch.chip_parameters("MI300X")["hbm_bandwidth"]
    assert calibration_published.missing(backward) == (2, pytest.approx(rows * (516 + 768) / bandwidth / 1e3))


@wheel.needs_wheel
@pytest.mark.parametrize("chip, sums", [("MI300X", ""), ("MI355X", ""), ("MI300X", "a32"), ("MI355X", "a16")])
def test_attention_of_published_tables_goes_through_the_model(chip, sums):
    operation = "attention_backward" if sums else "attention"
    (problem,) = parse_shapes(operation, "B1H4K2N256D128:causal")
    said = calibration_published.modelled(
        calibration_published.Figure(problem, chip, "", sums, (1.0,), ("",)), {}
    )
    assert 5 < said["modelled_us"] < 100 and 0 < said["matrix_busy"] < 0.5
    launches = {"": 1, "a16": 3, "a32": 3}[sums]  # row sums, gradients, dQ
    assert said["launching_us"] == pytest.approx(
        launches * calibration_launch.chip_parameters(chip)["launch_overhead"]
    )
    assert said["predicted_us"] == pytest.approx(
        said["modelled_us"] + said["launching_us"] + said["missing_us"]
    )


@wheel.needs_wheel
def test_shapes_that_a_kernel_does_not_take_are_named(tmp_path):
    rows, _ = read(tmp_path, float4_record(k=500), float4_record(tile="1x1"))
    for row, why in zip(rows, ("K is 500, no multiple of 32", "no such code object"), strict=True):
        with pytest.raises(CannotRun, match=why):
            calibration_launch.prepare(row)


@wheel.needs_wheel
def test_rows_of_every_family_go_through_the_model(tmp_path):
    bf16, int8 = "bf16gemm_outf32_tn_32x64_pf3", "I8gemm_bf16_perTokenI8_BpreShuffle_128x128"
    products = [
        float4_record() | {"hw": "MI308X", "arch": "gfx942", "co": f"gfx942/{family}/{name}.co", "splitK": "2",
                           "symbol": f"_ZN5aiter{len(name)}{name}E"}
        for family, name in (("bf16gemm", bf16), ("i8gemm", int8))
    ]  # fmt: skip
    stage = mixture_record(name="fmoe_stage1_bf16_pertokenFp8_g1u1_32x64_4tg_pf3", one=False)
    one = mixture_record(name="fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_ps_32x256") | {
        "hw": "MI300X/MI325X"
    }
    path = write(tmp_path / "rows.csv", float4_record(), *products, one, stage)
    with path.open("a") as file:
        file.write("MI300X/MI325X,gfx942,gfx942/fmoe/silu/none.co,none,1,,,,,4,512,512,4,2,,,32,1\n")
    command = [
        sys.executable,
        SCRIPT,
        "--rows",
        path,
        "--json",
        "--plot",
        tmp_path / "plot.png",
        "--jobs",
        "2",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"calibration.py: {path}, line 7: fmoe: the wheel has no such code object"
    ]
    report = json.loads(done.stdout, parse_constant=pytest.fail)  # NaN and Infinity are not JSON
    errors = [abs(row["predicted_us"] / row["measured_us"] - 1) for row in report["rows"]]
    assert report["mape"] == report["mape_held_out"] == pytest.approx(100 * sum(errors) / len(errors))
    assert [row["line"] for row in report["rows"]] == [2, 3, 4, 5, 6]
    assert {row["family"] for row in report["rows"]} == {
        "f4gemm",
        "bf16gemm",
        "i8gemm",
        "fmoe",
        "fmoe_2stages",
    }
    for row in report["rows"]:
        assert 1 < row["predicted_us"] < 100, row
        assert {"symbol", "arch", "M", "N", "K", "measured_us"} <= row.keys()
        for name in ("two parameters per kernel", "two parameters, of all fit rows"):
            assert row["predictions"].pop(name) is None  # nothing to fit on
        assert all(value > 0 for value in row["predictions"].values())
    assert (tmp_path / "plot.png").stat().st_size > 10000


@wheel.needs_wheel
def test_a_split_product_is_measured_with_the_kernel_that_zeroes_its_result(tmp_path):
    name = "bf16gemm_outf32_tn_32x64_pf3"
    record = float4_record() | {"hw": "MI308X", "arch": "gfx942", "co": f"gfx942/bf16gemm/{name}.co", "symbol": f"_ZN5aiter{len(name)}{name}E"}  # fmt: skip
    whole, split = read(tmp_path, record | {"splitK": "1"}, record | {"splitK": "4"})[0]
    assert calibration_launch.prepare(whole).zeroed_bytes == 0
    launch = calibration_launch.prepare(split)
    assert launch.zeroed_bytes == 64 * 256 * 4
    said = calibration_launch.modelled(split, launch, {})
    assert 0.8 < said["zeroing_us"] < 2 < said["predicted_us"]
    assert said["cycles"] == pytest.approx(said["predicted_us"] * said["clock_mhz"])


@wheel.needs_wheel
def test_a_kernel_that_skips_vector_instructions_goes_through_the_model(tmp_path):
    (row,), _ = read(tmp_path, mixture_record())
    assert "_vs_" in row.name
    assert 1 < calibration_launch.modelled(row, calibration_launch.prepare(row), {})["predicted_us"] < 100


@wheel.needs_wheel
def test_time_grows_with_the_depth(tmp_path):
    rows, _ = read(tmp_path, float4_record(k=1024), float4_record(k=8192))
    short, long = (calibration_launch.modelled(row, calibration_launch.prepare(row), {}) for row in rows)
    assert long["predicted_us"] > 1.5 * short["predicted_us"]
