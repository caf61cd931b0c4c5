# SPDX-License-Identifier: MIT
"""hipkittens in processes as programs make them: forked, spawned, interrupted, terminated in the middle of something."""

import contextlib
import copy
import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import hipkittens

BF16 = torch.bfloat16


def python(code, *options, timeout=120, **environment):
    """Run `code` in a new interpreter; return its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return done.returncode, done.stdout, done.stderr


# --- fork, spawn ---------------------------------------------------------------------------------------------

DATA = """
import faulthandler, os, sys, threading, torch, hipkittens
faulthandler.dump_traceback_later(100, exit=True)
torch.set_num_threads(1)

def product(seed):
    a, b = torch.randn(2, 48, 48, generator=torch.Generator().manual_seed(seed)).bfloat16()
    results = []
    for arch in ("gfx942", "gfx950"):
        with hipkittens.simulate(arch, threads=2, checks="all") as run:
            results.append(hipkittens.matmul(a, b))
        assert run.findings == []
    assert torch.equal(*results)
    return results[0]

class Products(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, seed): return product(seed)
"""

FORK = (
    DATA
    + """
right = [product(seed) for seed in range(6)]
a, b = torch.ones(2, 64, 64, dtype=torch.bfloat16)
done = threading.Event()
def launch():
    while not done.is_set():
        hipkittens.matmul(a, b, out_dtype=torch.float32)
        hipkittens.rms_norm(a, b[0])
others = [threading.Thread(target=launch) for _ in range(2)]
for other in others: other.start()
for turn in range(20):
    child = os.fork()
    if child == 0:
        os._exit(not torch.equal(product(turn % 6), right[turn % 6]))
    assert os.waitpid(child, 0)[1] == 0, turn
done.set()
for other in others: other.join()
loader = torch.utils.data.DataLoader(Products(), batch_size=3, num_workers=2, multiprocessing_context="fork")
assert torch.equal(torch.cat(list(loader)), torch.stack(right))
assert torch.equal(product(3), right[3])
"""
)

SPAWN = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
import products
if __name__ == "__main__":
    right = [products.product(seed) for seed in range(2)]
    for method in sys.argv[2:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            results = pool.map(products.product, range(2))
        assert all(map(products.torch.equal, results, right)), method
"""


def test_forked_children_launch_while_other_threads_of_the_parent_did():
    assert python(FORK, "-W", "ignore:This process:DeprecationWarning") == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_children_launch(tmp_path, method):
    (tmp_path / "products.py").write_text(DATA)
    (tmp_path / "main.py").write_text(SPAWN)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), str(tmp_path), method],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# --- signals -------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted_soon():
    # What torch imports at the first backward pass must not be interrupted halfway: Python keeps such modules.
    x = torch.ones(8, 8, dtype=BF16, requires_grad=True)
    hipkittens.matmul(x, x).backward(torch.ones_like(x))
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    yield timer.start
    # A signal that comes after its test would otherwise end the whole session.
    with contextlib.suppress(KeyboardInterrupt):
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def assert_usable():
    eye = torch.eye(32, dtype=BF16)
    assert torch.equal(hipkittens.matmul(eye, eye), eye)
    assert torch.equal(hipkittens.rms_norm(torch.ones(4, 64), torch.ones(64), eps=0.0), torch.ones(4, 64))


def test_an_interrupt_ends_a_launch_and_nothing_else(interrupted_soon):
    assert_usable()
    started = time.monotonic()
    interrupted_soon()
    with hipkittens.simulate("gfx950", arithmetic="exact"), pytest.raises(KeyboardInterrupt) as caught:
        hipkittens.matmul(torch.ones(4096, 4096, dtype=BF16), torch.ones(4096, 4096, dtype=BF16))  # minutes
    assert time.monotonic() - started < 10
    assert caught.value.__cause__ is None
    assert_usable()


def test_an_interrupt_ends_a_backward_pass(interrupted_soon):
    a, b = torch.ones(2048, 4096, dtype=BF16, requires_grad=True), torch.ones(4096, 4096, dtype=BF16)
    out = hipkittens.matmul(a, b)
    interrupted_soon()
    started = time.monotonic()
    with hipkittens.simulate(arithmetic="exact"), pytest.raises(KeyboardInterrupt) as caught:
        out.backward(torch.ones_like(out))
    assert time.monotonic() - started < 10 and caught.value.__context__ is None
    assert a.grad is None
    assert_usable()


INTERRUPTED = """
import signal, sys, torch, hipkittens
signal.signal(signal.SIGINT, signal.default_int_handler)
a = torch.ones(4096, 4096, dtype=torch.bfloat16)
hipkittens.matmul(a[:16, :16], a[:16, :16])
print("ready", flush=True)
with hipkittens.simulate(arithmetic="exact"):
    hipkittens.matmul(a, a)
"""


def test_control_c_ends_a_program_as_it_ends_any_other():
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "ready\n"
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=20)
    assert program.returncode == -signal.SIGINT
    assert errors.splitlines()[-1].startswith("KeyboardInterrupt")
    assert "RuntimeError" not in errors


# --- the end -------------------------------------------------------------------------------------------------

DAEMONS = """
import atexit, threading, time, torch, hipkittens
a = torch.ones(2048, 2048, dtype=torch.bfloat16)
small = torch.ones(32, 32, dtype=torch.bfloat16)
atexit.register(lambda: print(hipkittens.matmul(small, small)[0, 0].item()))
hipkittens.simulate("gfx950", arithmetic="exact").__enter__()
hipkittens.matmul(small, small)
def launch():
    while True: hipkittens.matmul(a, a)
def many():
    while True: hipkittens.matmul(small, small)
for target in (launch, many):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)
"""


def test_a_program_ends_while_its_daemon_threads_launch():
    """Including inside `simulate`, whose context is never exited."""
    assert python(DAEMONS) == (0, "32.0\n", "")


# --- import --------------------------------------------------------------------------------------------------

IMPORT = """
import os, sys, threading, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
tasks = set(os.listdir("/proc/self/task"))
import hipkittens
assert set(os.listdir("/proc/self/task")) == tasks and threading.active_count() == 1
assert "HOME" not in os.environ
eye = torch.eye(16, dtype=torch.bfloat16)
with hipkittens.simulate("gfx950", checks="all"):
    assert torch.equal(hipkittens.matmul(eye, eye), eye)
"""


def test_importing_warns_of_nothing_starts_no_thread_and_needs_no_home():
    environment = {
        name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- copies --------------------------------------------------------------------------------------------------


class Attend(hipkittens.nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


LAYERS = {
    "attention": lambda: Attend(64, 2, batch_first=True, dtype=BF16),
    "linear": lambda: hipkittens.nn.Linear(64, 32, dtype=BF16),
    "layer norm": lambda: hipkittens.nn.LayerNorm(64, dtype=BF16),
    "rms norm": lambda: hipkittens.nn.RMSNorm(64, dtype=BF16),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_can_be_copied_and_saved_after_use(name):
    layer, x = LAYERS[name](), torch.randn(2, 5, 64, dtype=BF16)
    before = layer(x)
    before.float().sum().backward()
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), before)
        assert {id(parameter) for parameter in twin.parameters()}.isdisjoint(map(id, layer.parameters()))
