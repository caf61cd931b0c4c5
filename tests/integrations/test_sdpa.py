# SPDX-License-Identifier: MIT
"""torch.nn.functional.scaled_dot_product_attention in unmodified programs: routed to hipkittens, and back to PyTorch when switched off."""

import logging
import subprocess
import sys

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

import hipkittens
from hipkittens._accuracy import BAR, compare
from hipkittens.integrations import sdpa

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
INFINITE = float("-inf")


@pytest.fixture(autouse=True)
def one_target():
    with hipkittens.simulate("gfx950", checks=True):
        yield
    assert not sdpa.is_active()


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(*shapes, dtype=BF16):
    return tuple(draw(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))


def results(qkv, grad, options, dtype=None):
    """Output and gradients."""
    qkv = tuple((x if dtype is None else x.to(dtype)).detach().requires_grad_() for x in qkv)
    options = {
        name: value.to(dtype)
        if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in options.items()
    }
    out = F.scaled_dot_product_attention(*qkv, **options)
    return out, *torch.autograd.grad(out, qkv, grad.to(out.dtype))


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the names of the package's operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "hipkittens":
            self.names.append(function._schema.name.removeprefix("hipkittens::"))
        return function(*args, **(kwargs or {}))


def assert_parity(*shapes, dtype=BF16, **options):
    """Output and gradients within 2x the larger error of PyTorch's fused kernel and its unfused steps."""
    qkv = inputs(*shapes, dtype=dtype)
    grad = draw(*F.scaled_dot_product_attention(*qkv, **options).shape, dtype=dtype, seed=9)
    exact = results(qkv, grad, options, F64)
    theirs = [results(qkv, grad, options)]
    with torch_attention.sdpa_kernel(torch_attention.SDPBackend.MATH):
        theirs.append(results(qkv, grad, options))
    with sdpa.active(), Operators() as ran:
        ours = results(qkv, grad, options)
        assert sdpa.passed_on() == []
    assert ran.names and all(name.startswith("attention") for name in ran.names)
    for index, name in enumerate(("out", "dq", "dk", "dv")):
        scale = exact[index].abs().max().item()
        found = [compare(ours[index], other[index], exact[index], scale) for other in theirs]
        ratio = max(min(r.ratio_max for r in found), min(r.ratio_rms for r in found))
        assert ours[index].dtype == dtype and ratio <= BAR, (name, found)


def square(batch, heads, length, size):
    return ((batch, heads, length, size),) * 3


@pytest.mark.parametrize("length, keys", [(33, 33), (33, 45), (45, 33)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_top_left_causal_whatever_the_lengths(length, keys, is_causal):
    """PyTorch's causal mask is aligned to the first key, ours and flash-attn's to the last."""
    assert_parity((2, 4, length, 64), *((2, 4, keys, 64),) * 2, is_causal=is_causal)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_grouped_queries_and_scale(target, dtype):
    with hipkittens.simulate(target, checks=True):
        assert_parity(
            (1, 6, 40, 64), *((1, 2, 70, 64),) * 2, dtype=dtype, enable_gqa=True, scale=0.3, is_causal=True
        )


@pytest.mark.parametrize(
    "shapes",
    [
        ((45, 64), (33, 64), (33, 64)),
        ((3, 45, 64), (3, 33, 64), (3, 33, 64)),
        ((2, 3, 2, 20, 32), (2, 3, 2, 17, 32), (2, 3, 2, 17, 32)),
        ((2, 4, 20, 32), (2, 1, 17, 32), (2, 1, 17, 32)),
        ((1, 2, 20, 20), (1, 2, 17, 20), (1, 2, 17, 40)),
        ((1, 2, 20, 40), (1, 2, 17, 40), (1, 2, 17, 7)),
    ],
    ids=["2d", "3d", "5d", "one key head", "wide values", "narrow values"],
)
def test_shapes_that_pytorch_takes(shapes):
    assert_parity(*shapes)


def test_strides_of_transposed_heads_and_nothing_at_all():
    q, k, v = (draw(2, 30, 4, 32, seed=seed).transpose(1, 2) for seed in range(3))
    with sdpa.active():
        out = F.scaled_dot_product_attention(q, k, v)
        empty = (
            F.scaled_dot_product_attention(q[:, :, :0], k, v),
            F.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0]),
        )
        assert not sdpa.passed_on()
    assert torch.equal(out, hipkittens.attention(q, k, v, layout="bhnd"))
    assert empty[0].shape == (2, 4, 0, 32) and torch.equal(empty[1], torch.zeros_like(q))


ROW, PLACE = torch.arange(33)[:, None], torch.arange(33)
LENGTHS = torch.tensor([20, 33, 1])[:, None, None, None]
HOLES = torch.arange(33 * 3).reshape(3, 1, 1, 33) * 7 % 5 > 1


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, INFINITE).to(BF16)


@pytest.mark.parametrize(
    "mask",
    [
        HOLES,
        HOLES[0, 0],
        HOLES.expand(3, 2, 33, 33).contiguous(),
        additive(HOLES),
        ROW + 3 >= PLACE,
        ROW - 12 >= PLACE,
        additive(ROW >= PLACE),
        (ROW >= PLACE) & (PLACE < LENGTHS),
        (ROW >= PLACE) & (PLACE >= 33 - LENGTHS),
        torch.ones(33, 33, dtype=torch.bool),
    ],
    ids=[
        "keys", "keys of all", "keys, written out", "keys, additive", "diagonal", "diagonal below", "causal, additive",
        "causal and right padding", "causal and left padding", "nothing hidden",
    ],
)  # fmt: skip
def test_masks_that_have_a_kernel(mask):
    """A query that sees no key gives 0 here, as in PyTorch."""
    assert_parity(*square(3, 2, 33, 32), attn_mask=mask)


def test_lower_right_bias_of_pytorch():
    q, k, v = inputs((1, 2, 20, 32), *((1, 2, 31, 32),) * 2)
    with sdpa.active():
        out = F.scaled_dot_product_attention(q, k, v, causal_lower_right(20, 31))
    assert torch.equal(out, hipkittens.attention(q, k, v, causal=True, layout="bhnd"))


def test_dropout_draws_as_ours_does():
    q, k, v = inputs(*square(2, 4, 65, 32))
    torch.manual_seed(3)
    expected = hipkittens.attention(q, k, v, causal=True, dropout_p=0.25, layout="bhnd")
    with sdpa.active():
        torch.manual_seed(3)
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)
        other = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)
    assert torch.equal(found, expected) and not torch.equal(found, other)


REASONS = {
    "the batches of query, key and value differ": (inputs((2, 2, 9, 32), *((1, 2, 9, 32),) * 2), {}),
    "query is torch.float32": ([x.float() for x in inputs(*square(1, 2, 9, 32))], {}),
    "head sizes 264 and 264": (inputs(*square(1, 2, 9, 264)), {}),
    "dropout_p is 1.0": (inputs(*square(1, 2, 9, 32)), {"dropout_p": 1.0}),
    "adds values other than 0 and -inf": (
        inputs(*square(1, 2, 9, 32)),
        {"attn_mask": torch.ones(9, 9, dtype=BF16)},
    ),
    "hides other keys than padding": (
        inputs(*square(1, 2, 9, 32)),
        {"attn_mask": (torch.arange(81) % 4 > 0).view(9, 9)},
    ),
    "differs between heads": (
        inputs(*square(1, 2, 9, 32)),
        {"attn_mask": (torch.arange(2) > 0).view(2, 1, 1).expand(2, 9, 9)},
    ),
    "requires a gradient": (
        inputs(*square(1, 2, 9, 32)),
        {"attn_mask": torch.zeros(9, 9, dtype=BF16, requires_grad=True)},
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_no_kernel_has_goes_on_with_one_line(reason, caplog):
    qkv, options = REASONS[reason]
    torch.manual_seed(0)
    expected = F.scaled_dot_product_attention(*qkv, **options)
    with sdpa.active(), caplog.at_level(logging.WARNING, "hipkittens"):
        for _ in range(3):
            torch.manual_seed(0)
            found = F.scaled_dot_product_attention(*qkv, **options)
            assert torch.equal(found, expected) or bool(expected.isnan().all())
        (why,) = sdpa.passed_on()
    assert reason in why and [record.message.endswith(why) for record in caplog.records] == [True]


def test_pytorchs_own_errors_stay():
    q, k, v = inputs((1, 4, 9, 32), (1, 2, 9, 32), (1, 2, 9, 32))
    for wrong in ((q, k, v), (k, k[..., :16], v)):
        with pytest.raises(RuntimeError) as theirs:
            F.scaled_dot_product_attention(*wrong)
        with sdpa.active(), pytest.raises(RuntimeError) as ours:
            F.scaled_dot_product_attention(*wrong)
        assert str(ours.value) == str(theirs.value)


def goes_to_ours():
    q, k, v = inputs(*square(1, 1, 5, 32))
    with torch.profiler.profile() as run:
        F.scaled_dot_product_attention(q, k, v)
    return any(event.key == "hipkittens::attention_forward" for event in run.key_averages())


def test_activate_restore_and_nesting():
    assert not goes_to_ours()
    sdpa.activate()
    sdpa.activate()
    assert goes_to_ours() and sdpa.is_active()
    with sdpa.active():
        sdpa.restore()
        assert goes_to_ours()
        with sdpa.active(), torch.inference_mode():
            assert goes_to_ours()
        assert goes_to_ours()
    assert not goes_to_ours()
    sdpa.restore()
    assert not goes_to_ours()
    with pytest.raises(KeyError), sdpa.active():
        raise KeyError
    assert not goes_to_ours()


def test_pytorchs_registry_of_providers():
    assert "hipkittens" in torch_attention.list_flash_attention_impls()
    torch_attention.activate_flash_attention_impl("hipkittens")
    assert torch_attention.current_flash_attention_impl() == "hipkittens" and goes_to_ours()
    if hasattr(torch_attention, "restore_flash_attention_impl"):
        torch_attention.restore_flash_attention_impl()
        assert not goes_to_ours()
        torch_attention.activate_flash_attention_impl("hipkittens")
    sdpa.restore()
    assert not goes_to_ours()


def test_sdpa_kernel_decides_first():
    with sdpa.active():
        with torch_attention.sdpa_kernel(torch_attention.SDPBackend.MATH):
            assert not goes_to_ours()
        with torch_attention.sdpa_kernel(
            [torch_attention.SDPBackend.MATH, torch_attention.SDPBackend.FLASH_ATTENTION]
        ):
            assert goes_to_ours()
        assert sdpa.passed_on() == [
            "torch.nn.attention.sdpa_kernel is open without SDPBackend.FLASH_ATTENTION"
        ]


def test_unread_masks_and_transforms_go_on():
    q, k, v = inputs(*square(1, 2, 33, 32))
    with sdpa.active(read_masks=False), Operators() as ran:
        F.scaled_dot_product_attention(q, k, v, attn_mask=ROW >= PLACE)
        assert ran.names == [] and "read_masks is False" in sdpa.passed_on()[0]
        F.scaled_dot_product_attention(q, k, v, attn_mask=PLACE[None] < 20)
        assert ran.names == ["attention_varlen_forward"]
        torch.func.grad(lambda x: F.scaled_dot_product_attention(x, k, v).float().sum())(q)
        assert len(ran.names) == 1 and "torch.func" in sdpa.passed_on()[1]


def test_autocast_and_the_layers_of_torch():
    """float32 layers under autocast, padded, in training and in evaluation, where PyTorch uses a fused path."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
    x, padding = draw(2, 21, 64, dtype=torch.float32), torch.arange(21) >= torch.tensor([[15], [21]])
    causal = torch.nn.Transformer.generate_square_subsequent_mask(21, dtype=torch.bool)
    kept = ~padding
    for train in (True, False):
        for masks in ({"src_key_padding_mask": padding}, {"src_mask": causal, "is_causal": True}):
            layer.train(train)
            with torch.set_grad_enabled(train), torch.autocast("cpu", dtype=BF16):
                theirs = layer(x, **masks)
                with sdpa.active(), Operators() as ran:
                    ours = layer(x, **masks)
                    assert not sdpa.passed_on()
            assert len(ran.names) == 1
            assert (ours - theirs)[kept].abs().max() < 0.03
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_repeats_the_dropout(use_reentrant):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).float().square().sum()

    def run(wrap):
        qkv = [x.requires_grad_() for x in inputs(*square(1, 2, 40, 32))]
        torch.manual_seed(5)
        return torch.autograd.grad(wrap(*qkv), qkv) if not use_reentrant else backward(wrap, qkv)

    def backward(wrap, qkv):
        wrap(*qkv).backward()
        return [x.grad for x in qkv]

    with sdpa.active():
        expected = run(attend)
        with Operators() as ran:
            found = run(lambda *qkv: checkpoint(attend, *qkv, use_reentrant=use_reentrant))
    assert ran.names == ["attention_forward", "attention_forward", "attention_backward"]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_compile_takes_us_in_and_out_again():
    """One graph with our operators while active; a change recompiles instead of reusing the other program."""
    qkv = [x.requires_grad_() for x in inputs(*square(1, 2, 24, 32))]

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask)

    traced = []

    def record(graph, _inputs):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        traced.extend(name.split(".")[1] for name in names if "attention" in name)
        return make_boxed_func(graph)

    mask = HOLES[0, 0, :, :24]
    compiled = torch.compile(attend, backend=aot_autograd(fw_compiler=record), fullgraph=True)
    theirs = compiled(*qkv, mask)
    traced.clear()
    with sdpa.active():
        ours = compiled(*qkv, mask)
        gradients = torch.autograd.grad(ours, qkv, ours)
        assert traced == ["attention_varlen_forward", "attention_varlen_backward"]
        eager = attend(*qkv, mask)
        assert torch.equal(ours, eager) and (ours - theirs).abs().max() < 0.03
        for found, expected in zip(gradients, torch.autograd.grad(eager, qkv, eager), strict=True):
            assert torch.equal(found, expected)
        assert sdpa.passed_on() == []
        assert compiled(*qkv, (ROW >= PLACE)[:24, :24]).shape == ours.shape
        assert sdpa.passed_on() == ["the values of attn_mask are not known while torch.compile traces"]
    traced.clear()
    assert torch.equal(compiled(*qkv, mask), theirs)
    assert traced == ["_scaled_dot_product_flash_attention_for_cpu"]


@pytest.mark.slow
def test_a_program_on_disk_is_not_taken_for_the_other(tmp_path):
    """torch.compile caches programs on disk by their source, which is the same with and without us."""
    program = """
import torch, sys
from contextlib import nullcontext
from hipkittens.integrations import sdpa
q = torch.ones(1, 1, 8, 32, dtype=torch.bfloat16)
with sdpa.active() if sys.argv[1] == "ours" else nullcontext(), torch.profiler.profile() as run:
    torch.compile(torch.nn.functional.scaled_dot_product_attention)(q, q, q)
print(sum(event.key == "hipkittens::attention_forward" for event in run.key_averages()))
"""
    ran = []
    for who in ("theirs", "ours"):
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program, who], capture_output=True, text=True, env=environment, check=True
        )
        ran.append(done.stdout.strip())
    assert ran == ["0", "1"]


def test_importing_the_package_brings_no_integration():
    program = (
        "import sys, hipkittens; print([m for m in sys.modules if m.startswith('hipkittens.integrations')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
