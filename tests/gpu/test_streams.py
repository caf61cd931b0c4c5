# SPDX-License-Identifier: MIT
"""Launches on non-default streams, alongside other work on them, and launches from several threads."""

import threading

import pytest
import torch

import hipkittens
from tests.gpu.conftest import drawn, late

X, W = (lambda: drawn(64, 256)), (lambda: drawn(256, seed=1))


@pytest.fixture
def stream():
    return torch.cuda.Stream()


def test_a_launch_returns_before_its_kernel_ends(stream):
    x, w = X(), W()
    expected = hipkittens.rms_norm(x, w)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = hipkittens.rms_norm(late(x), w)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(found, expected)


def test_kernels_are_ordered_with_pytorchs_own(stream):
    x, w = X(), W()
    expected = hipkittens.rms_norm(x, w) * 2 + 1
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = hipkittens.rms_norm(late(x), w) * 2 + 1
    stream.synchronize()
    assert torch.equal(found, expected)


def test_a_stream_waits_for_an_event_of_another(stream):
    x, w, other = X(), W(), torch.cuda.Stream()
    expected = hipkittens.rms_norm(hipkittens.rms_norm(x, w), w)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        first = hipkittens.rms_norm(late(x), w)
        done = stream.record_event()
    with torch.cuda.stream(other):
        other.wait_event(done)
        found = hipkittens.rms_norm(first, w)
        found.record_stream(other)
    other.synchronize()
    assert torch.equal(found, expected)


def test_a_stream_that_does_not_wait_reads_what_was_there(stream):
    """Shows that these tests would detect a launch on the wrong stream."""
    x, w = X(), W()
    wrong = hipkittens.rms_norm(torch.zeros_like(x), w)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        given = torch.zeros_like(x)
        stream.synchronize()
        torch.cuda._sleep(200_000_000)
        given.copy_(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = hipkittens.rms_norm(given, w)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(found, wrong)


def test_a_backward_runs_on_the_stream_of_its_forward(stream):
    w = drawn(256, 256, seed=2).requires_grad_()
    x = X().requires_grad_()

    def step(x):
        y = hipkittens.linear(x, w)
        return torch.autograd.grad(y.float().square().sum(), (x, w))

    expected = step(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        given = late(x.detach()).requires_grad_()
        found = step(given)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_memory_that_another_stream_uses_is_not_given_away(stream):
    x, w = X(), W()
    expected = hipkittens.rms_norm(x, w)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        given = x.clone()
    torch.cuda.current_stream().wait_stream(stream)
    found = hipkittens.rms_norm(given, w)
    given.record_stream(torch.cuda.current_stream())
    del given
    with torch.cuda.stream(stream):
        for _ in range(8):
            torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


def test_neighbours_in_the_same_allocation_keep_what_others_write(stream):
    """Tensors of a few KiB share an allocation of the caching allocator: a kernel may write back only its own bytes."""
    x, w, counter = X(), W(), torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(50):
            counter += 1
    for _ in range(10):
        found = hipkittens.rms_norm(x, w)
    torch.cuda.synchronize()
    assert torch.equal(counter, torch.full_like(counter, 50)) and torch.equal(
        found, hipkittens.rms_norm(x, w)
    )


def test_threads_with_streams_of_their_own():
    expected, found, errors = {}, {}, []

    def work(seed):
        q, k, v = (drawn(1, 64, 4, 64, seed=seed + i).requires_grad_() for i in range(3))
        y = hipkittens.attention(q, k, v)
        return y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))

    def in_thread(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                found[seed] = work(seed)
                torch.cuda.current_stream().synchronize()
        except Exception as error:
            errors.append(error)

    for seed in (0, 10, 20, 30):
        expected[seed] = work(seed)
    torch.cuda.synchronize()
    threads = [threading.Thread(target=in_thread, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for seed, results in expected.items():
        assert all(torch.equal(a, b) for a, b in zip(found[seed], results, strict=True))
