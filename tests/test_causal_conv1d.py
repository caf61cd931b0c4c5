# SPDX-License-Identifier: MIT
"""hipkittens.causal_conv1d and causal_conv1d_update through the public API."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _accuracy, _backend, causal_conv1d, causal_conv1d_update

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ONE_STEP = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-20}


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def laid_out(x, channels_last):
    return x.mT.contiguous().mT if channels_last else x


def reference(x, weight, bias=None, activation=None, before=None):
    """For x (.., channels, times), by the definition's sum, with `before` in place of zeros."""
    width, times = weight.shape[1], x.shape[-1]
    if before is None:
        before = x.new_zeros(*x.shape[:-1], width - 1)
    history = torch.cat((before, x), -1)
    y = sum(weight[:, j, None] * history[..., j : j + times] for j in range(width))
    y = y if bias is None else y + bias[:, None]
    return F.silu(y) if activation else y


def in_float32(x, weight, bias=None, activation=None):
    tensors = (None if each is None else each.float() for each in (x, weight, bias))
    return reference(*tensors, activation).to(x.dtype)


def close(mine, right):
    """Within one rounding, and the error of sums in float32."""
    limit = ONE_STEP[mine.dtype] * right.abs() + 2.0**-20 * right.abs().max().clamp(min=1)
    return bool(((mine.double() - right).abs() <= limit).all())


def with_gradients(function, leaves, dy):
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_the_error_is_at_most_twice_torchs(target, dtype, width, activation, channels_last):
    for batch, channels, times in ((2, 19, 1024), (3, 64, 8), (2, 5, 3), (1, 33, 2), (4, 16, 1), (1, 1, 255)):
        x = laid_out(draw(batch, channels, times, dtype=dtype), channels_last)
        weight, bias = draw(channels, width, dtype=dtype, seed=1), draw(channels, dtype=dtype, seed=2)
        leaves, dy = (x, weight, bias), draw(*x.shape, dtype=dtype, seed=3)
        ours = with_gradients(lambda *leaves: causal_conv1d(*leaves, activation=activation), leaves, dy)
        theirs = with_gradients(lambda *leaves: in_float32(*leaves, activation), leaves, dy)
        exact = with_gradients(
            lambda *leaves: reference(*leaves, activation), [leaf.double() for leaf in leaves], dy
        )
        for mine, other, right in zip(ours, theirs, exact, strict=True):
            assert mine.dtype == dtype and mine.shape == right.shape
            comparison = _accuracy.compare(mine, other, right, right.abs().max().item())
            assert comparison.passes, (x.shape, comparison)


@pytest.mark.parametrize("channels_last", [False, True])
def test_many_tiles_for_each_thread(channels_last):
    """So many tiles that the gradient's threads process more than one each."""
    channels, times = (1024, 8 * 520) if channels_last else (2048, 8 * 130)
    x = laid_out(draw(1, channels, times, scale=0.5), channels_last)
    weight, dy = draw(channels, 4, seed=1), draw(1, channels, times, seed=2)
    with hipkittens.simulate("gfx950"):
        ours = with_gradients(causal_conv1d, (x, weight), dy)
    right = with_gradients(reference, (x.double(), weight.double()), dy)
    assert all(close(mine, exact) for mine, exact in zip(ours, right, strict=True))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("channels", [13, 16])
def test_packed_sequences(target, dtype, width, channels_last, channels):
    ends = [0, 1, 1, 3, 6, 14, 14, 31, 40, 57]
    starts = torch.tensor(ends)
    x = laid_out(draw(channels, 60, dtype=dtype), channels_last)
    weight, bias, dy = (
        draw(channels, width, dtype=dtype, seed=1),
        draw(channels, dtype=dtype, seed=2),
        draw(channels, 60, seed=3),
    )
    ours = with_gradients(
        lambda *leaves: causal_conv1d(*leaves, activation="silu", query_start_loc=starts),
        (x, weight, bias),
        dy,
    )

    def apart(x, weight, bias):
        parts = [reference(x[:, a:b], weight, bias, "silu") for a, b in pairwise(ends)]
        return torch.cat([*parts, x[:, ends[-1] :] * 0], -1)

    right = with_gradients(apart, (x.double(), weight.double(), bias.double()), dy)
    assert all(close(mine, exact) for mine, exact in zip(ours, right, strict=True))
    assert not ours[0][:, 57:].any() and not ours[1][:, 57:].any()
    # The bits of each sequence alone.
    for a, b in pairwise(ends):
        assert torch.equal(ours[0][:, a:b], causal_conv1d(x[:, a:b], weight, bias, activation="silu"))


def test_not_a_number_stays_in_its_sequence_and_window(target):
    for channels, channels_last in ((9, False), (9, True), (16, True)):
        x = laid_out(draw(2, channels, 40, dtype=F32), channels_last)
        x[0, 3, 10], x[1, 3, 39], x[1, 5, 0] = math.nan, math.inf, math.nan
        weight = draw(channels, 3, dtype=F32, seed=1)
        y = causal_conv1d(x, weight)
        assert torch.equal(y.isfinite(), reference(x, weight).isfinite())
        ours = with_gradients(
            lambda x, w: causal_conv1d(x, w, activation="silu"), (x, weight), torch.ones_like(x)
        )
        finite = torch.ones(2, channels, 40, dtype=torch.bool)
        finite[0, 3, 8:13] = finite[1, 3, 37:] = finite[1, 5, :3] = False
        assert ours[1][finite].isfinite().all()


@pytest.mark.parametrize("states_last", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("channels", [17, 24])
def test_states_in_place(target, width, channels_last, states_last, channels):
    """Sequences of every length, with and without a previous state; padding slots, and unused slots."""
    ends = [0, 1, 3, 6, 14, 14, 14, 31, 40]
    x = laid_out(draw(channels, 43), channels_last)
    weight, bias = draw(channels, width, seed=1), draw(channels, seed=2)
    states = laid_out(draw(11, channels, width - 1, seed=3), states_last)
    old = states.clone()
    slots = torch.tensor([9, 0, 3, -1, 5, 4, 10, 1])
    present = torch.tensor([True, False, True, True, True, False, False, True])
    version = states._version
    y = causal_conv1d(
        x, weight, bias, activation="silu", query_start_loc=torch.tensor(ends, dtype=torch.int32), conv_states=states,
        cache_indices=slots, has_initial_state=present,
    )  # fmt: skip
    assert states._version > version
    expected = old.clone()
    for number, (a, b) in enumerate(pairwise(ends)):
        slot, own = slots[number], x[:, a:b]
        if slot < 0:
            assert not y[:, a:b].any()
            continue
        before = old[slot] * present[number]
        exact = reference(own.double(), weight.double(), bias.double(), "silu", before.double())
        assert close(y[:, a:b], exact) if b > a else True
        expected[slot] = torch.cat((before, own), -1)[:, b - a :]
    assert torch.equal(states, expected)
    assert not y[:, ends[-1] :].any()


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("channels", [8, 21])
def test_decoding_goes_on_where_a_prefill_ended(target, width, channels):
    """Bitwise equal to one call on everything, one time step at a time and several at once."""
    x, weight, bias = draw(3, channels, 19), draw(channels, width, seed=1), draw(channels, seed=2)
    whole = causal_conv1d(x, weight, bias, activation="silu")
    state = torch.full((3, channels, width - 1), math.nan, dtype=BF16)
    first = causal_conv1d(x[..., :7], weight, bias, activation="silu", conv_states=state)
    rest = [causal_conv1d_update(x[..., t], state, weight, bias, "silu") for t in range(7, 10)]
    rest = [each.unsqueeze(-1) for each in rest]
    rest += [causal_conv1d_update(x[..., a:b], state, weight, bias, "silu") for a, b in ((10, 12), (12, 19))]
    assert torch.equal(torch.cat((first, *rest), -1), whole)
    assert torch.equal(state, x[..., 20 - width :])


@pytest.mark.parametrize("columns", [3, 4, 7])
def test_longer_states_shift(target, columns):
    x, weight = draw(2, 10, 5), draw(10, 4, seed=1)
    state = draw(2, 10, columns, seed=2)
    together = torch.cat((state, x), -1)
    y = causal_conv1d_update(x, state, weight)
    assert close(
        y, reference(x.double(), weight.double(), before=together[..., columns - 3 : columns].double())
    )
    assert torch.equal(state, together[..., -columns:])


@pytest.mark.parametrize("states_last", [False, True])
@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("channels", [2, 154])
def test_one_time_in_the_kernel_of_its_own(target, channels, dtype, columns, states_last):
    """Bitwise equal to the kernel for any number of time steps, which handles states with gaps between their channels and columns."""
    x, bias = draw(5, channels, dtype=dtype), draw(channels, dtype=dtype, seed=1)
    weight, slots = draw(channels, 4, dtype=dtype, seed=2), torch.tensor([5, -1, 0, 6, 2])
    start = laid_out(draw(6, channels, columns, dtype=dtype, seed=3), states_last)
    for options in (
        {"activation": "silu", "bias": bias, "conv_state_indices": slots},
        {"bias": bias, "conv_state_indices": slots[2:3].expand(1)},
        {"activation": "silu"},
        {
            "split": (channels // 2 // 2 * 2, 0, channels - channels // 2 // 2 * 2),
            "conv_state_indices": slots,
        },
    ):
        rows = x[:1] if options.get("conv_state_indices", slots).numel() == 1 else x
        results = []
        for apart in (False, True):
            state = start.clone()
            if apart:
                state = start.new_full((6, 2 * channels, 2 * columns), torch.nan)[:, ::2, ::2].copy_(start)
            y = causal_conv1d_update(rows, state, weight, **options)
            results.append((*(y if isinstance(y, tuple) else (y,)), state))
        for mine, general in zip(*results, strict=True):
            assert torch.equal(mine, general)
    assert not torch.equal(state, start)


@pytest.mark.parametrize(
    ("kernel", "x", "state", "options"),
    [
        ("update_3_columns_channels_last", draw(4, 16), draw(4, 3, 16).mT, {}),
        ("update_4_columns", draw(4, 16), draw(4, 16, 4), {"activation": "silu", "split": (2, 4, 10)}),
        ("forward_channels_last", draw(4, 16), draw(4, 16, 5), {}),
        ("forward_channels_last", draw(4, 16), draw(4, 32, 3)[:, ::2], {}),
        ("forward_channels_last", draw(4, 16), draw(4, 16, 3), {"cache_seqlens": torch.arange(4)}),
        ("forward_channels_last", draw(4, 3, 16).mT, draw(4, 16, 3), {}),
        ("forward_odd_channels_last", draw(4, 16), draw(4, 16, 3), {"split": (1, 5, 10)}),
        ("forward_odd_channels_last", draw(4, 17), draw(4, 17, 3), {}),
    ],
)
def test_which_kernel_decodes(kernel, x, state, options):
    with hipkittens.timing("MI355X") as run:
        causal_conv1d_update(x, state, draw(x.shape[1], 4), **options)
    assert [launch.kernel for launch in run.launches] == [f"hipkittens_conv_{kernel}_bf16_gfx950"]


@pytest.mark.parametrize("times", [1, 2, 9])
@pytest.mark.parametrize("columns", [3, 5])
def test_circular_states(target, columns, times):
    x, weight = draw(3, 12, times), draw(12, 4, seed=1)
    state, positions = draw(6, 12, columns, seed=2), torch.tensor([0, 4, 23])
    slots = torch.tensor([5, 2, 0], dtype=torch.int32)
    old = state.clone()
    y = causal_conv1d_update(x, state, weight, cache_seqlens=positions, conv_state_indices=slots)
    for n in range(3):
        position, ring = int(positions[n]), old[slots[n]].clone()
        before = ring[:, [(position - 3 + j) % columns for j in range(3)]]
        assert close(y[n], reference(x[n].double(), weight.double(), before=before.double()))
        for t in range(times):
            ring[:, (position + t) % columns] = x[n, :, t]
        old[slots[n]] = ring
    assert torch.equal(state, old)


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_speculative_decoding(target, width, times):
    """The next step sees exactly the accepted tokens of each step."""
    generator = torch.Generator().manual_seed(4)
    weight, bias = draw(9, width, seed=1), draw(9, seed=2)
    columns = width - 2 + times
    state = draw(2, 9, columns + 1, seed=3)
    untouched = state[..., columns:].clone()
    accepted = torch.tensor([1, times])
    history = [state[n, :, : int(accepted[n]) - 1 + width - 1].clone() for n in range(2)]
    for _ in range(4):
        x = torch.randn(2, 9, times, generator=generator).to(BF16)
        y = causal_conv1d_update(x, state, weight, bias, num_accepted_tokens=accepted)
        accepted = torch.randint(1, times + 1, (2,), generator=generator)
        for n in range(2):
            before = history[n][:, history[n].shape[1] - (width - 1) :].double()
            assert close(y[n], reference(x[n].double(), weight.double(), bias.double(), before=before))
            history[n] = torch.cat((history[n], x[n, :, : accepted[n]]), -1)
    assert torch.equal(state[..., columns:], untouched)


def test_padded_slots(target):
    x, weight, state = draw(4, 8), draw(8, 3, seed=1), draw(4, 8, 2, seed=2)
    old = state.clone()
    y = causal_conv1d_update(x, state, weight, conv_state_indices=torch.tensor([2, -1, 0, 9]))
    assert not y[1].any() and not y[3].any() and y[0].any()
    assert torch.equal(state[[1, 3]], old[[1, 3]]) and not torch.equal(state[0], old[0])
    state = old.clone()
    padded = causal_conv1d_update(
        x, state, weight, conv_state_indices=torch.tensor([2, 0, 1, 0]), pad_slot_id=0
    )
    assert torch.equal(padded[0], y[0]) and not padded[1].any() and torch.equal(state[0], old[0])


def test_strides_and_offsets(target):
    storage, weight = draw(3, 2, 41, 46), draw(9, 4, seed=1)
    wide = draw(9, 8, seed=2)[:, 1::2]
    views = [storage[0, :, 3:12, 5:44], storage[:, 1, 1:10, 1:], storage[0].transpose(1, 2)[:, 4:13, :40],
             storage[0, :, :9, ::2], storage[:, 0, :9, :1], storage[0, :, :9].expand(2, 9, 46)]  # fmt: skip
    for x in views:
        for taps in (weight, wide):
            dy = draw(*x.shape, seed=3)
            mine = with_gradients(causal_conv1d, (x, taps), dy)
            right = with_gradients(causal_conv1d, (x.contiguous(), taps.contiguous()), dy)
            # Sums of a gradient are in a different order for the other layout.
            assert torch.equal(mine[0], right[0]) and torch.equal(mine[1], right[1])
            torch.testing.assert_close(mine[2], right[2], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0)])
def test_empty(target, shape):
    weight = draw(shape[1], 3)
    y, dx, dweight = with_gradients(causal_conv1d, (draw(*shape), weight), torch.zeros(shape))
    assert y.shape == dx.shape == shape and not dweight.any()
    state = draw(2, shape[1], 2)
    old = state.clone()
    assert causal_conv1d_update(draw(*shape), state, weight).shape == shape
    assert torch.equal(state, old)


def test_the_layout_of_the_result(target):
    x, weight = draw(2, 8, 16), draw(8, 2)
    assert causal_conv1d(x, weight).is_contiguous()
    assert causal_conv1d(laid_out(x, True), weight).mT.is_contiguous()


def test_autocast(target):
    x, weight, bias = draw(1, 8, 16, dtype=F32), draw(8, 2, dtype=F32), draw(8, dtype=F32)
    with torch.autocast("cpu", BF16):
        y = causal_conv1d(x, weight, bias)
    assert torch.equal(y, causal_conv1d(x.bfloat16(), weight.bfloat16(), bias.bfloat16()))


def test_double_backward_is_refused(target):
    x, weight = draw(1, 8, 16).requires_grad_(), draw(8, 2)
    (dx,) = torch.autograd.grad(causal_conv1d(x, weight).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        dx.sum().backward()


def test_opcheck(target):
    operators = torch.ops.hipkittens
    x, weight, bias = (
        each.requires_grad_() for each in (draw(2, 6, 11), draw(6, 3, seed=1), draw(6, seed=2))
    )
    starts, slots = torch.tensor([0, 4, 11], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    plain = [each.detach() for each in (x, weight, bias)]
    packed, states = plain[0][:1], draw(2, 6, 2, seed=3)
    present = torch.ones(2, dtype=torch.uint8)
    calls = [
        (operators.causal_conv1d, (x, weight, bias, None, False, True)),
        (operators.causal_conv1d, (x.mT[:1], weight, None, starts, True, False)),
        (operators.causal_conv1d_backward, (plain[0], *plain, None, False, True)),
        (operators.causal_conv1d_states, (packed, *plain[1:], starts, states, slots, present, None, None, False, True)),
        (operators.causal_conv1d_states, (packed.mT, plain[1], None, None, states, slots[:1], None, slots[:1], None, True, False)),
    ]  # fmt: skip
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x, weight, states):
        y = causal_conv1d(x * 2, weight, activation="silu")
        with torch.no_grad():
            return y + causal_conv1d_update(x[..., 0], states, weight.detach())[..., None]

    compiled = torch.compile(block, fullgraph=True, backend=compile_backend)
    for seed in (0, 1):
        x, weight = draw(2, 8, 16, seed=seed), draw(8, 4, seed=2)
        states = [draw(2, 8, 3, seed=3) for _ in range(2)]
        mine, other = compiled(x, weight, states[0]), block(x, weight, states[1])
        assert torch.equal(mine, other) and torch.equal(*states)


def test_transforms_of_what_is_written_in_place(target):
    """vmap requires the states to be mapped; a tangent is refused, as is a gradient."""
    x, weight, states = draw(3, 2, 8), draw(8, 4, seed=1), draw(3, 2, 8, 3, seed=2)
    mapped = states.clone()
    found = torch.func.vmap(lambda x, state: causal_conv1d_update(x, state, weight))(x, mapped)
    for n in range(3):
        assert torch.equal(found[n], causal_conv1d_update(x[n], states[n], weight))
    assert torch.equal(mapped, states)
    with pytest.raises(RuntimeError, match=r"writes to states, which is not mapped"):
        torch.func.vmap(lambda x: causal_conv1d_update(x, states[0], weight))(x)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: causal_conv1d_update(x, states[0], weight), (x[0],), (x[0],))
    with pytest.raises(NotImplementedError, match="causal_conv1d_update has no derivative"):
        torch.func.grad(lambda x: causal_conv1d_update(x, states[0], weight).sum())(x[0])


def test_meta_tensors():
    x, weight = torch.empty(2, 8, 5, device="meta"), torch.empty(8, 4, device="meta")
    assert causal_conv1d(x, weight).shape == (2, 8, 5)


def test_the_torch_backend(monkeypatch):
    """The same results and states, by PyTorch's operations."""

    def results():
        x, weight, bias = draw(2, 6, 9, dtype=F32), draw(6, 4, dtype=F32, seed=1), draw(6, dtype=F32, seed=2)
        starts, slots = torch.tensor([0, 2, 8]), torch.tensor([3, -1])
        states = [draw(4, 6, columns, dtype=F32, seed=3) for columns in (3, 5, 5, 7)]
        return [
            causal_conv1d(x, weight, bias, activation="silu"),
            causal_conv1d(x[0], weight, query_start_loc=starts),
            causal_conv1d(x[0], weight, query_start_loc=starts, conv_states=states[0], cache_indices=slots,
                          has_initial_state=torch.tensor([True, False])),
            causal_conv1d_update(x, states[1], weight, bias),
            causal_conv1d_update(x[..., 0], states[2], weight, cache_seqlens=slots.abs()),
            causal_conv1d_update(x[..., :4], states[3], weight, num_accepted_tokens=slots.abs()),
            *states,
        ]  # fmt: skip

    with hipkittens.simulate("gfx942"):
        mine = results()
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for a, b in zip(mine, results(), strict=True):
        torch.testing.assert_close(a, b)


X, W, B, S = torch.zeros(2, 8, 5), torch.zeros(8, 4), torch.zeros(8), torch.zeros(2, 8, 3)
STARTS = torch.tensor([0, 5])
BAD = [
    (lambda: causal_conv1d([1.0], W), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: causal_conv1d(X.double(), W), TypeError, "x is torch.float64; allowed"),
    (lambda: causal_conv1d(X[0, 0], W), ValueError, "x has shape (5,); it needs (batch, channels, times) or (channels, times)"),
    (lambda: causal_conv1d(X, W.half()), TypeError, "weight is torch.float16; allowed: torch.float32"),
    (lambda: causal_conv1d(X, W[:7]), ValueError, "weight has shape (7, 4); it needs (8, width)"),
    (lambda: causal_conv1d(X, torch.zeros(8, 5)), ValueError, "weight has width 5; allowed: 2, 3, 4"),
    (lambda: causal_conv1d(X, W, B[:3]), ValueError, "bias has shape (3,); it needs (8,)"),
    (lambda: causal_conv1d(X, W, activation="gelu"), ValueError, "activation is 'gelu'; allowed: None, 'silu'"),
    (lambda: causal_conv1d(X, W, query_start_loc=STARTS), ValueError, "packed sequences are (channels, times)"),
    (lambda: causal_conv1d(X[0], W, query_start_loc=STARTS.float()), TypeError, "query_start_loc is torch.float32; allowed"),
    (lambda: causal_conv1d(X[0], W, query_start_loc=STARTS[:0]), ValueError, "query_start_loc has shape (0,); it needs (sequences + 1,)"),
    (lambda: causal_conv1d(X, W, cache_indices=STARTS), ValueError, "cache_indices is given without conv_states"),
    (lambda: causal_conv1d(X, W, conv_states=S[..., :2]), ValueError, "conv_states has 2 columns; it needs 3"),
    (lambda: causal_conv1d(X, W, conv_states=S[:1]), ValueError, "there are 2 sequences and 1 slots of states"),
    (lambda: causal_conv1d(X, W, conv_states=S[:, :7]), ValueError, "conv_states has shape (2, 7, 3); it needs (slots, 8, columns)"),
    (lambda: causal_conv1d(X, W, conv_states=S.bfloat16()), TypeError, "conv_states is torch.bfloat16; allowed: torch.float32"),
    (lambda: causal_conv1d(X, W, conv_states=S, has_initial_state=STARTS), TypeError, "has_initial_state is torch.int64; allowed: torch.bool"),
    (lambda: causal_conv1d(X, W.clone().requires_grad_(), conv_states=S), NotImplementedError, "causal_conv1d has no derivative where it writes conv_states in place"),
    (lambda: causal_conv1d_update(X, S[..., :2], W), ValueError, "conv_state has 2 columns; it needs 3 or more, the width of weight less one"),
    (lambda: causal_conv1d_update(X, S, W, num_accepted_tokens=STARTS), ValueError, "conv_state has 3 columns; it needs 7 or more for 5 speculative times"),
    (lambda: causal_conv1d_update(X[..., :1], S, W, cache_seqlens=STARTS, num_accepted_tokens=STARTS), ValueError, "are both given"),
    (lambda: causal_conv1d_update(X, S, W, conv_state_indices=STARTS[:1]), ValueError, "conv_state_indices has shape (1,); it needs (2,)"),
    (lambda: causal_conv1d_update(X, S, W, conv_state_indices=STARTS, pad_slot_id=None), TypeError, "pad_slot_id is None; it must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith(
        ("hipkittens.causal_conv1d", "hipkittens: causal_conv1d")
    )


OPERATORS = torch.ops.hipkittens
INTS = torch.zeros(2, dtype=torch.int32)
BAD_OPERANDS = [
    (lambda: OPERATORS.causal_conv1d(X, torch.zeros(8, 5), None, None, False, False), "width is 5; allowed: 2 .. 4"),
    (lambda: OPERATORS.causal_conv1d(X, W, None, None, True, False), "weight needs as many rows as x has channels"),
    (lambda: OPERATORS.causal_conv1d(X, W, B[::2], None, False, False), "bias needs to be contiguous"),
    (lambda: OPERATORS.causal_conv1d(X, W, B, INTS, False, False), "starts are for one packed x"),
    (lambda: OPERATORS.causal_conv1d_backward(X[:1], X, W, B, None, False, False), "dy needs the shape, the dtype and the device of x"),
    (lambda: OPERATORS.causal_conv1d_states(X, W, B, None, S[..., :2], None, None, None, None, False, False), "states have 2 columns; at least 3"),
    (lambda: OPERATORS.causal_conv1d_states(X, W, B, None, S, INTS.long(), None, None, None, False, False), "slots needs to be int32"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows further apart than 32-bit offsets reach."""
    storage = torch.zeros(3 * 2**30 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 8, 16), (3 * 2**29, 2**29 // 8, 1))
    x.copy_(draw(2, 8, 16))
    weight = draw(8, 4, seed=1)
    with hipkittens.simulate("gfx942"):
        assert torch.equal(causal_conv1d(x, weight), causal_conv1d(x.clone(), weight))
