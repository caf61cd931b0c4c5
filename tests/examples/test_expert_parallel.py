# SPDX-License-Identifier: MIT
"""expert_parallel.py: processes with a part of the experts each train the same layer as one process with all of them."""

import re
import subprocess
import sys

import expert_parallel
import pytest
from tiny_run import EXAMPLES


@pytest.mark.parametrize("processes, arch", [(2, "gfx950"), (1, "gfx942")])
def test_processes_train_the_whole_layer(processes, arch):
    # Later steps are less conclusive: a rounding difference may send a token to another expert.
    command = [sys.executable, str(EXAMPLES / "expert_parallel.py"), "--arch", arch, "--steps", "3"]
    done = subprocess.run(
        [*command, "--processes", str(processes)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    first, last, losses, *weights = map(float, re.findall(r"\d\.\d+(?:e[+-]\d+)?", done.stdout))
    assert last < first - 0.02
    # Sums over processes round differently from one sum: by at most one step of a bfloat16 weight, and so do the losses.
    assert losses <= 2.0**-10 * first and len(weights) == 3 and max(weights) <= 2.0**-8
    if processes == 1:
        assert losses == max(weights) == 0


def test_experts_that_are_not_shared_alike(capsys):
    for wrong, message in (
        (["--processes", "3"], "--processes 3 do not share 8 experts alike; allowed: 1, 2, 4, 8"),
        (["--steps", "0"], "--steps 0 is not 1 or more"),
    ):
        with pytest.raises(SystemExit):
            expert_parallel.parse(wrong)
        assert message in capsys.readouterr().err
