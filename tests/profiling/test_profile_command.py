# SPDX-License-Identifier: MIT
"""`hipkittens profile`: listings of operations and of programs, and the sentence about the bottleneck."""

import json
import sys

import pytest

from hipkittens import _timing, cli
from hipkittens.profiling import listing, problems
from hipkittens.profiling.bench import modelled_launches
from hipkittens.profiling.main_loop import MainLoop


def launch_of(busy=None, rounds=2.0, read=0.0, instructions=(), microseconds=10.0):
    """A report as the model would make it, with the fields that a test needs."""
    everything = {"matrix": 0.1, "vector": 0.1, "lds": 0.1, "vector_memory": 0.1} | (busy or {})
    report = {
        "busy": everything,
        "caches": {"hbm_bytes_read": read, "hbm_bytes_written": 0.0},
        "instructions": list(instructions),
        "rounds": rounds,
        "workgroups": 512,
        "waves_per_workgroup": 4,
        "workgroups_per_compute_unit": 2,
        "waves_per_simd": 1.5,
        "occupancy_limited_by": "registers",
        "lds_conflict_cycles": 1234.0,
    }
    return _timing.ModelledLaunch("kernel", "MI355X", 1e4, microseconds, 2.6, report, ())


def wait(address, clocks, reason="vmcnt"):
    row = {
        "address": address,
        "text": "s_waitcnt vmcnt(0)",
        "source": f"tiles/words.h:{address}",
        "called_from": f"kernel.cpp:{address}",
        "unit": "internal",
    }
    return row | {"issues": 4, "stalls": {reason: clocks}}


def barrier(address):
    return wait(address, 0.0) | {"text": "s_barrier", "stalls": {}}


@pytest.mark.parametrize(
    "launch, sentence",
    (
        (launch_of({"matrix": 0.9}), "MFMA-bound: the matrix cores work 90 % of the time."),
        (
            launch_of({"lds": 0.8}),
            "LDS-bound: the banks of LDS work 80 % of the time, bank conflicts take 1.23e+03",
        ),
        (launch_of({"vector": 0.8}), "VALU-bound"),
        (launch_of(read=60e6), "HBM-bound: 6.00 TB/s, 75 % of the data sheet's."),
        (
            launch_of(instructions=[wait(16, 300.0), wait(32, 100.0), wait(48, 100.0, "barrier")]),
            "Waiting for vmcnt: 80 % of the clocks that waves wait, 75 % of them at 0x10 `s_waitcnt vmcnt(0)` "
            "(tiles/words.h:16, called from kernel.cpp:16); HBM moves 0.00 TB/s, 0 % of the data sheet's; the busiest unit",
        ),
        (launch_of(instructions=[wait(16, 1.0)]), "occupancy is 1.5 waves a SIMD, limited by registers."),
        (launch_of(rounds=0.25, instructions=[wait(16, 1.0)]), "the grid fills 25 % of the places"),
        (launch_of(), "Nothing waits"),
        (
            launch_of(instructions=[barrier(12), wait(16, 8.0, "barrier")]),
            "at s_barrier: 100 % of the clocks that waves wait, 100 % of them at 0xc `s_barrier` (tiles/words.h:12, called from kernel.cpp:12)",
        ),
        (
            launch_of(instructions=[wait(4 * at, 1.0) for at in range(20)]),
            "no more than 5 % of them at 0x0 `s_waitcnt vmcnt(0)` (tiles/words.h:0, called from kernel.cpp:0); HBM moves 0.00 TB/s, 0 % of",
        ),
    ),
)
def test_the_sentence(launch, sentence):
    assert sentence in listing.listing(launch).bottleneck


def test_a_kernel_that_is_bound_in_its_main_loop_alone():
    launch = launch_of(instructions=[wait(0, 60.0), wait(64, 40.0)])
    lines = listing.listing(launch).lines
    loop = MainLoop(64, 96, 9, 4, 0.9, 0.5, 0.93)
    said = listing.bottleneck(launch, lines, loop)
    assert said.startswith(
        "MFMA-bound in the main loop, where the matrix cores work 93 % of the time, but that is 50 % of"
    )
    assert "outside it, waiting for vmcnt" in said and "at 0x0 `s_waitcnt" in said
    busy = listing.bottleneck(launch_of({"matrix": 0.8}), lines, loop)
    assert busy == "MFMA-bound: the matrix cores work 80 % of the time, 93 % in the main loop."


def test_every_reason_of_the_model_has_words():
    (problem,) = problems.parse_shapes("rms_norm", "4x128")
    (launch,) = modelled_launches("MI355X", problem.call())
    assert set(launch.report["stall_names"]) - {"none"} == set(listing.REASONS)


def test_an_operation(capsys):
    assert cli.main(["profile", "gemm", "--shape", "1024x1024x128", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (launch,) = said["launches"]
    assert said["modelled"] and launch["modelled"] and launch["device"] == "MI355X"
    assert launch["error"]["percent"] is None and "gemm on MI355X" in launch["error"]["like"]
    assert 0 < launch["main_loop_mfma_busy"] == launch["main_loop"]["mfma_busy"] < 1
    assert sum(launch["issue_share"].values()) == pytest.approx(1)
    by_text = {line["text"].split()[0]: line for line in launch["lines"]}
    assert by_text["s_endpgm"]["issues"] and any("mfma" in name for name in by_text)
    assert all(line["source"].startswith("csrc/") for line in launch["lines"])
    by_word = [line for line in launch["lines"] if line["source"].startswith("csrc/tiles/")]
    assert by_word and all(line["called_from"].startswith("csrc/kernels/") for line in by_word)
    assert sum(line["clocks"] for line in launch["lines"]) == pytest.approx(sum(launch["stalls"].values()))


def test_the_listing_as_text(capsys):
    assert cli.main(["profile", "rms_norm", "--shape", "4x128", "--top", "5", "--arch", "gfx942"]) == 0
    said = capsys.readouterr().out
    assert "main loop: " in said and "issue slots: VALU" in said and "measured row" in said
    assert "bottleneck: " in said and "on MI300X, modelled" in said and "Modelled: by the cycle model" in said
    assert len([line for line in said.splitlines() if "csrc/" in line and "bottleneck" not in line]) == 5


def test_several_launches_are_summed_by_kernel(capsys):
    assert cli.main(["profile", "attention_backward", "--shape", "B1H1N64D64", "--top", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    (title,) = [line for line in said if " launches, modelled: " in line]
    sums = said[said.index(title) + 2 : said.index("", said.index(title))]
    listed = [line for line in said if " on MI355X, modelled: " in line]
    assert title.split()[0] == str(len(listed)) and len(sums) == len({line.split()[0] for line in listed})
    times = [float(line.split()[2].replace(",", "")) for line in sums]
    assert times == sorted(times, reverse=True) and all("±" in line for line in sums)
    assert sum(times) == pytest.approx(float(title.split()[-2].replace(",", "")), abs=0.02)


def test_a_program_that_does_more_than_can_be_modelled(capfd, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, hipkittens\n"
        "x, w = torch.ones(4, 128, dtype=torch.bfloat16), torch.ones(128)\n"
        "hipkittens.rms_norm(x, w)\n"
        "with hipkittens.simulate('gfx942'): hipkittens.rms_norm(x, w)\n"
        "with hipkittens.simulate(checks='all') as run: hipkittens.rms_norm(x, w)\n"
        "with hipkittens.timing('MI355X', values=False) as own: hipkittens.rms_norm(x, w)\n"
        "assert len(own.launches) == 1 and run.findings == []\n"
        "hipkittens.rms_norm(x, w)\n"
    )
    assert cli.main(["profile", "--device", "MI355X", "--json", "--", sys.executable, str(script)]) == 0
    out, err = capfd.readouterr()
    assert [launch["device"] for launch in json.loads(out)["launches"]] == ["MI355X"] * 2
    assert (
        "2 launches were not modelled for MI355X: they were for another target than gfx950, or checked" in err
    )


def test_a_program(capfd, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, hipkittens\n"
        "print('said', hipkittens.rms_norm(torch.ones(4, 128, dtype=torch.bfloat16), torch.ones(128))[0, 0].item())\n"
        "raise SystemExit(3)\n"
    )
    assert cli.main(["profile", "--device", "MI325X", "--json", "--", sys.executable, str(script)]) == 3
    out, err = capfd.readouterr()
    said = json.loads(out)
    assert said["exit_status"] == 3 and "said 1.0" in err  # it computes, too
    (launch,) = said["launches"]
    assert launch["device"] == "MI325X" and "gfx942" in launch["kernel"]


@pytest.mark.parametrize(
    "arguments, text",
    (
        (["gem"], "OP is 'gem'"),
        (["gemm", "rotary"], "'rotary' follows the operation; allowed: one operation, or -- PROGRAM"),
        (["--", "no_such_program", "x"], "cannot run 'no_such_program': No such file or directory"),
        (["gemm", "--shape", "8x8x8,4x4x4"], "allowed: one shape"),
        (["gemm", "--top", "0"], "--top is 0"),
        (["--shape", "8x8x8", "--", "python", "x.py"], "a program has shapes of its own"),
    ),
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(SystemExit, match="hipkittens profile: ") as error:
        cli.main(["profile", *arguments])
    assert text in str(error.value)


def test_a_roofline_is_a_picture_of_what_an_operation_reaches(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "roofline.png"
    assert cli.main(["profile", "gemm", "--shape", "512x512x512", "--top", "1", "--roofline", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and "bottleneck" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, says",
    (
        (["gemm", "--roofline", "picture.txt"], "does not end as a picture"),
        (["rms_norm", "--roofline", "picture.png"], "rms_norm has no count of operations"),
        (
            ["--roofline", "picture.png", "--", sys.executable, "-c", "0"],
            "--roofline belongs to an operation",
        ),
    ),
)
def test_a_roofline_that_cannot_be_drawn_is_refused_before_anything_runs(arguments, says):
    with pytest.raises(SystemExit, match=f"hipkittens profile: --roofline.*|.*{says}") as refused:
        cli.main(["profile", *arguments])
    assert says in str(refused.value)
