# SPDX-License-Identifier: MIT
"""Launches that are described instead of run: what they would run, independent of the tensors' addresses."""

import pytest
import torch

import hipkittens
from hipkittens import _simulator


def described(call):
    with _simulator.described_launches() as found:
        result = call()
    return found, result


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_description_is_of_the_work(target):
    """Other tensors of the same shapes have the same description; other shapes, strides and numbers have another."""
    with hipkittens.simulate(target):

        def product(m=64, n=64, k=64, x=None):
            x = torch.zeros(m, k, dtype=torch.bfloat16) if x is None else x
            return described(lambda: hipkittens.matmul(x, torch.zeros(k, n, dtype=torch.bfloat16)))[0]

        first = product()
        assert len(first) == 1 and set(first[0]) == {
            "kernel",
            "grid",
            "block",
            "dynamic_lds_bytes",
            "arguments",
        }
        assert first[0]["kernel"].endswith(target) and first[0]["block"][0] > 0
        kept = [torch.zeros(777) for _ in range(3)]  # so that tensors get other addresses
        assert product() == first and len(kept) == 3
        assert product(x=torch.zeros(64, 80, dtype=torch.bfloat16)[:, :64]) != first
        assert product(m=65) != first
        x = torch.zeros(8, 64)
        rows = [
            described(lambda eps=eps: hipkittens.rms_norm(x, x[0], eps=eps))[0] for eps in (1e-5, 1e-6, 1e-5)
        ]
        assert rows[0] == rows[2] != rows[1]


def test_tensors_are_numbered_by_their_first_argument():
    q = torch.zeros(1, 8, 2, 64, dtype=torch.bfloat16)
    with hipkittens.simulate("gfx950"):
        (one,), _ = described(lambda: hipkittens.attention(q, q, q))
        (three,), _ = described(lambda: hipkittens.attention(q, q.clone(), q.clone()))
    named = [[word for word in each["arguments"] if word.startswith("tensor")] for each in (one, three)]
    assert named[0][:3] == ["tensor 0+0"] * 3 and named[1][:3] == ["tensor 0+0", "tensor 1+0", "tensor 2+0"]


def test_nothing_runs_until_the_context_ends():
    """Bad arguments raise as usual; outputs keep their contents."""
    q = torch.ones(1, 4, 64, dtype=torch.bfloat16)
    cache = torch.ones(1, 16, 4, 64, dtype=torch.bfloat16)
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.full((1,), 16, dtype=torch.int32)
    out = torch.full_like(q, 7.0)
    with hipkittens.simulate("gfx950"):

        def attend():
            return hipkittens.attention_paged(q, cache, cache, table, lengths, out=out)

        (launch, *_), _ = described(attend)
        assert "paged_attention" in launch["kernel"] and (out == 7).all()
        with pytest.raises(ValueError, match=r"hipkittens\.rms_norm"):
            described(lambda: hipkittens.rms_norm(torch.ones(4, 128), torch.ones(5)))
        attend()
        torch.testing.assert_close(out, q)
