# SPDX-License-Identifier: MIT
"""hipkittens.flash_attn compared with flash-attn 2's published interface, and with float64."""

import inspect
import itertools

import pytest
import test_attention_gradients as oracle
import torch

import hipkittens
from hipkittens import attention, flash_attn
from hipkittens._accuracy import BAR, compare
from hipkittens.flash_attn import bert_padding

BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


@pytest.fixture
def gfx942():
    with hipkittens.simulate("gfx942"):
        yield


def draw(*shape, dtype=BF16, seed=0, grad=False):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


OPTIONS = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
SEQUENCES = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
PUBLISHED = {
    "flash_attn_func": f"(q, k, v, {OPTIONS})",
    "flash_attn_kvpacked_func": f"(q, kv, {OPTIONS})",
    "flash_attn_qkvpacked_func": f"(qkv, {OPTIONS})",
    "flash_attn_varlen_func": f"(q, k, v, {SEQUENCES}, {OPTIONS}, block_table=None)",
    "flash_attn_varlen_kvpacked_func": f"(q, kv, {SEQUENCES}, {OPTIONS})",
    "flash_attn_varlen_qkvpacked_func": f"(qkv, cu_seqlens, max_seqlen, {OPTIONS})",
    "flash_attn_with_kvcache": "(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, "
    "causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False)",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_signatures(name):
    assert str(inspect.signature(getattr(flash_attn, name))) == PUBLISHED[name]
    assert sorted(PUBLISHED) == sorted(flash_attn.__all__)


@pytest.mark.parametrize(("dtype", "size"), [(BF16, 64), (F16, 128), (BF16, 36)])
@pytest.mark.parametrize(("causal", "window"), [(False, (-1, -1)), (True, (-1, -1)), (False, (9, 4))])
def test_parity(target, dtype, size, causal, window):
    """Outputs and gradients at most twice as far from float64 as PyTorch's own; also for sizes that are no multiple of 8."""
    inputs = draw(2, 20, 4, size, dtype=dtype), *(draw(2, 33, 2, size, dtype=dtype, seed=s) for s in (1, 2))
    grad_out = draw(2, 20, 4, size, dtype=dtype, seed=3)
    mask, scale = oracle.hidden(20, 33, causal, window), size**-0.5

    def ours(q, k, v):
        out, lse, pattern = flash_attn.flash_attn_func(
            q, k, v, causal=causal, window_size=window, return_attn_probs=True
        )
        assert lse.shape == (2, 4, 20) and lse.dtype == torch.float32
        assert pattern.numel() == 0 and pattern.dtype == dtype
        return out, lse

    def all_results(function, kind=None):
        given = [value.to(kind or dtype).requires_grad_() for value in inputs]
        out, _ = function(*given)
        return out, *torch.autograd.grad(out, given, grad_out.to(out.dtype))

    result = all_results(ours)
    expected = all_results(lambda *i: oracle.steps(*i, scale, mask), torch.float64)
    baselines = [all_results(lambda *i, o=order: oracle.steps(*i, scale, mask, o)) for order in (False, True)]
    sizes = [inputs[2].abs().max().item(), *oracle.magnitudes(*inputs, grad_out, scale, mask)]
    for index, size_of in enumerate(sizes):
        compared = [
            compare(result[index], theirs[index], expected[index].detach(), size_of) for theirs in baselines
        ]
        assert min(max(c.ratio_max, c.ratio_rms) for c in compared) <= BAR, (index, compared)
    lse = ours(*inputs)[1]
    torch.testing.assert_close(
        lse.double().nan_to_num(neginf=0), oracle.steps(*(i.double() for i in inputs), scale, mask)[1],
        rtol=1e-3, atol=1e-3,
    )  # fmt: skip


def test_positions_of_the_arguments(gfx942):
    """Every argument passed by position, in the published order, has the effect of the corresponding keyword of hipkittens.attention."""
    q, k, v = draw(1, 9, 2, 64), draw(1, 12, 2, 64, seed=1), draw(1, 12, 2, 64, seed=2)
    expected, lse = hipkittens.attention(q, k, v, scale=0.3, causal=True, window_size=(5, 0), return_lse=True)
    out, softmax_lse, _ = flash_attn.flash_attn_func(q, k, v, 0.0, 0.3, True, (5, 0), 0.0, None, True, True)
    assert torch.equal(out, expected) and torch.equal(softmax_lse, lse)
    kv = torch.stack((k, v), 2)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, 0.0, 0.3, True, (5, 0)), expected)


def test_packed_gradients_are_one_tensor(target):
    qkv, grad_out = draw(2, 11, 3, 4, 64, grad=True), draw(2, 11, 4, 64, seed=1)
    parts = [part.detach().clone().requires_grad_() for part in qkv.unbind(2)]
    expected = torch.autograd.grad(hipkittens.attention(*parts, causal=True), parts, grad_out)
    (grad,) = torch.autograd.grad(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), qkv, grad_out)
    assert grad.shape == qkv.shape and torch.equal(grad, torch.stack(expected, 2))
    q, kv = parts[0], torch.stack(parts[1:], 2).detach().requires_grad_()
    grads = torch.autograd.grad(flash_attn.flash_attn_kvpacked_func(q, kv, causal=True), (q, kv), grad_out)
    assert torch.equal(grads[0], expected[0]) and torch.equal(grads[1], torch.stack(expected[1:], 2))


LENGTHS_Q, LENGTHS_K = (5, 1, 17), (9, 1, 17)


def starts(lengths):
    return torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)


def attended_packed(q, k_pages, v_pages, table, lengths):
    """Attention of q (B, tokens, H, D) by flash_attn_varlen_func; in each sequence's pages its keys follow as many others as `lengths`
    states."""
    new = q.shape[1]
    ends = starts([length + new for length in lengths])
    packed = flash_attn.flash_attn_varlen_func(
        q.flatten(0, 1), k_pages, v_pages, starts([new] * len(q)), ends, new, 32, causal=True, block_table=table
    )  # fmt: skip
    return packed.view_as(q)


@pytest.mark.parametrize("size", [64, 20])
def test_packed_sequences(target, size):
    """Equal to each sequence alone: outputs, LSE and the gradients of packed and unpacked forms."""
    q = draw(sum(LENGTHS_Q), 4, size, grad=True)
    kv = draw(sum(LENGTHS_K), 2, 2, size, seed=1, grad=True)
    grad_out = draw(sum(LENGTHS_Q), 4, size, seed=2)
    sequences = (starts(LENGTHS_Q), starts(LENGTHS_K), max(LENGTHS_Q), max(LENGTHS_K))
    out, lse, pattern = flash_attn.flash_attn_varlen_kvpacked_func(
        q, kv, *sequences, causal=True, return_attn_probs=True
    )
    grads = torch.autograd.grad(out, (q, kv), grad_out)
    parts = [
        flash_attn.flash_attn_kvpacked_func(a[None], b[None], causal=True, return_attn_probs=True)
        for a, b in zip(q.split(LENGTHS_Q), kv.split(LENGTHS_K), strict=True)
    ]
    expected = torch.cat([part[0][0] for part in parts])
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, torch.cat([part[1][0] for part in parts], -1))
    assert lse.shape == (4, sum(LENGTHS_Q)) and pattern.numel() == 0
    for one, other in zip(grads, torch.autograd.grad(expected, (q, kv), grad_out), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    k, v = kv.unbind(1)
    assert torch.equal(flash_attn.flash_attn_varlen_func(q, k, v, *sequences, 0.0, None, True), out)


def test_packed_sequences_of_one_tensor(gfx942):
    qkv, total = draw(sum(LENGTHS_K), 3, 2, 64, grad=True), sum(LENGTHS_K)
    grad_out = draw(total, 2, 64, seed=2)
    out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts(LENGTHS_K), max(LENGTHS_K), 0.0, None, True)
    q, k, v = qkv.unbind(1)
    sequences = (starts(LENGTHS_K),) * 2 + (max(LENGTHS_K),) * 2
    expected = flash_attn.flash_attn_varlen_func(q, k, v, *sequences, causal=True)
    assert torch.equal(out, expected)
    (grad,) = torch.autograd.grad(out, qkv, grad_out)
    assert grad.shape == qkv.shape and torch.equal(grad, torch.autograd.grad(expected, qkv, grad_out)[0])


def test_cache(target):
    """Token by token through the caches gives the same as all tokens at once."""
    q, k, v = (draw(2, 12, 2, 32, seed=seed) for seed in range(3))
    angles = torch.outer(torch.arange(16.0), 10.0 ** -torch.arange(8.0))
    cos, sin = angles.cos(), angles.sin()
    for interleaved in (True, False):
        turned = [hipkittens.rotary(value, cos, sin, interleaved=interleaved) for value in (q, k)]
        expected = hipkittens.attention(*turned, v, causal=True)
        k_cache, v_cache = draw(2, 16, 2, 32, seed=8), draw(2, 16, 2, 32, seed=9)
        for begin, end in ((0, 7), (7, 11), (11, 12)):
            out, lse = flash_attn.flash_attn_with_kvcache(
                q[:, begin:end], k_cache, v_cache, k[:, begin:end], v[:, begin:end], cos, sin, begin, causal=True,
                rotary_interleaved=interleaved, return_softmax_lse=True,
            )  # fmt: skip
            torch.testing.assert_close(out, expected[:, begin:end], rtol=1e-2, atol=1e-2)
            assert lse.shape == (2, 2, end - begin)
        assert torch.equal(k_cache[:, :12], turned[1]) and torch.equal(v_cache[:, :12], v)
    # Without a mask all queries are at the same position; and no new keys, from a whole or a partly filled cache.
    k_cache[:, :12], v_cache[:, :12] = k, v
    out = flash_attn.flash_attn_with_kvcache(
        q[:, :2], k_cache, v_cache, k[:, :1], v[:, :1], cos, sin, cache_seqlens=12
    )
    place = torch.full((2,), 12)
    expected = hipkittens.attention(
        hipkittens.rotary(q[:, :2], cos, sin, interleaved=True, positions=place),
        k_cache[:, :13],
        v_cache[:, :13],
    )
    assert torch.equal(out, expected)
    assert torch.equal(
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=12),
        hipkittens.attention(q, k, v),
    )
    assert torch.equal(
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache), hipkittens.attention(q, k_cache, v_cache)
    )


@pytest.mark.parametrize("page", [8, 256])
def test_a_cache_in_pages(target, page):
    """New keys of sequences of different lengths go into shuffled pages, rotated, and attention equals that of each sequence alone."""
    lengths, new, heads, key_heads, size = [3, 17, 0], 2, 4, 2, 64
    angles = torch.outer(torch.arange(32.0), 10.0 ** -torch.arange(16.0))
    turn = {"cos": angles.cos(), "sin": angles.sin(), "interleaved": True}
    pages = -(-32 // page)
    table = torch.randperm(3 * pages, generator=torch.Generator().manual_seed(3)).view(3, pages).int()
    k_pages, v_pages = (
        torch.full((3 * pages, page, key_heads, size), float("nan")).bfloat16() for _ in range(2)
    )
    k_rows, v_rows = (torch.full((4, 32, key_heads, size), float("nan")).bfloat16() for _ in range(2))
    rows = torch.tensor([2, 0, 3])
    old_k, old_v = draw(3, 32, key_heads, size, seed=1), draw(3, 32, key_heads, size, seed=2)
    for b, length in enumerate(lengths):
        for place in range(length):
            at = table[b, place // page], place % page
            k_pages[at], v_pages[at] = old_k[b, place], old_v[b, place]
            k_rows[rows[b], place], v_rows[rows[b], place] = old_k[b, place], old_v[b, place]
    q, k, v = (
        draw(3, new, heads, size, seed=5),
        draw(3, new, key_heads, size, seed=6),
        draw(3, new, key_heads, size, seed=7),
    )
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    options = {
        "causal": True,
        "softcap": 9.0,
        "alibi_slopes": torch.rand(heads),
        "num_splits": 2,
        "return_softmax_lse": True,
    }
    given = (q, k_pages, v_pages, k, v, turn["cos"], turn["sin"], seqlens)
    out, lse = flash_attn.flash_attn_with_kvcache(*given, block_table=table, **options)
    assert out.shape == q.shape and lse.shape == (3, heads, new) and out.isfinite().all()
    in_rows = flash_attn.flash_attn_with_kvcache(
        q, k_rows, v_rows, *given[3:], cache_batch_idx=rows, **options
    )
    torch.testing.assert_close(out, in_rows[0], atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse, in_rows[1], atol=1e-5, rtol=1e-5)
    plain = flash_attn.flash_attn_with_kvcache(
        q, k_pages, v_pages, cache_seqlens=seqlens + new, block_table=table, causal=True
    )
    assert torch.equal(attended_packed(q, k_pages, v_pages, table, lengths), plain)
    for b, length in enumerate(lengths):
        place = torch.arange(length, length + new)
        keys = torch.cat((old_k[b, :length], hipkittens.rotary(k[b : b + 1], **turn, positions=place)[0]))[
            None
        ]
        values = torch.cat((old_v[b, :length], v[b]))[None]
        expected = hipkittens.attention(q[b : b + 1], keys, values, causal=True)
        torch.testing.assert_close(plain[b : b + 1], expected, atol=1e-2, rtol=1e-2)
        at = table[b, place // page].long(), place % page
        assert torch.equal(k_pages[at], keys[0, length:]) and torch.equal(v_pages[at], v[b])


@pytest.mark.parametrize("size", [36, 59, 80])
def test_a_cache_of_heads_that_are_filled_up(target, size, caplog):
    """With NaN past the keys and anything past the pages; new keys go into the cache that was passed."""
    lengths, new, page = [3, 17, 0], 2, 8
    table = torch.randperm(12, generator=torch.Generator().manual_seed(3)).view(3, 4).int()
    k_pages, v_pages = (torch.full((12, page, 2, size), float("nan"), dtype=F16) for _ in range(2))
    old_k, old_v = (draw(3, 32, 2, size, dtype=F16, seed=seed) for seed in (1, 2))
    for b, length in enumerate(lengths):
        places = torch.arange(length)
        at = table[b, places // page].long(), places % page
        k_pages[at], v_pages[at] = old_k[b, :length], old_v[b, :length]
        table[b, (length + new - 1) // page + 1 :] = 0x7FFFFFFF
    q, k, v = (draw(3, new, heads, size, dtype=F16, seed=heads) for heads in (4, 2, 2))
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    out, lse = flash_attn.flash_attn_with_kvcache(
        q,
        k_pages,
        v_pages,
        k,
        v,
        None,
        None,
        seqlens,
        block_table=table,
        causal=True,
        return_softmax_lse=True,
    )
    assert torch.equal(attended_packed(q, k_pages, v_pages, table, lengths), out)
    for b, length in enumerate(lengths):
        keys, values = (
            torch.cat(each)[None] for each in ((old_k[b, :length], k[b]), (old_v[b, :length], v[b]))
        )
        own = flash_attn.flash_attn_func(q[b : b + 1], keys, values, causal=True, return_attn_probs=True)
        torch.testing.assert_close(out[b : b + 1], own[0], atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(lse[b], own[1][0], atol=1e-5, rtol=1e-5)
        places = torch.arange(length, length + new)
        at = table[b, places // page].long(), places % page
        assert torch.equal(k_pages[at], k[b]) and torch.equal(v_pages[at], v[b])
    # With one length for all.
    rows = flash_attn.flash_attn_with_kvcache(q, old_k, old_v, cache_seqlens=9)
    expected = flash_attn.flash_attn_func(q, old_k[:, :9], old_v[:, :9])
    torch.testing.assert_close(rows, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("size", [64, 40])
def test_a_cache_that_begins_behind_padding(target, room, size):
    """Equal to attention over each sequence's own keys; positions count from the beginning of a row, including those of the rotation.
    With gaps between rows in memory, and NaN in the padding."""
    lengths, padding, new = [13, 20, 4], [0, 7, 4], 2
    angles = torch.outer(torch.arange(32.0), 10.0 ** -torch.arange(8.0))
    turn = {"cos": angles.cos().half(), "sin": angles.sin().half(), "interleaved": False}
    k_rows, v_rows = (draw(4, 24 + room, 2, size, dtype=F16, seed=seed)[:, :24] for seed in (1, 2))
    rows = torch.tensor([3, 0, 1])
    for b, (length, first) in enumerate(zip(lengths, padding, strict=True)):
        for cache in (k_rows, v_rows):
            cache[rows[b], :first] = cache[rows[b], length:] = float("nan")
    q, k, v = (draw(3, new, heads, size, dtype=F16, seed=heads) for heads in (4, 2, 2))
    seqlens, leftpad = (torch.tensor(each, dtype=torch.int32) for each in (lengths, padding))
    out = flash_attn.flash_attn_with_kvcache(
        q, k_rows, v_rows, k, v, turn["cos"], turn["sin"], seqlens, rows, leftpad, causal=True, rotary_interleaved=False,
        alibi_slopes=torch.full((4,), 0.1),
    )  # fmt: skip
    for b, (length, first) in enumerate(zip(lengths, padding, strict=True)):
        places = torch.arange(length, length + new)
        turned = hipkittens.rotary(q[b : b + 1], **turn, positions=places)
        keys, values = (cache[rows[b], first : length + new][None] for cache in (k_rows, v_rows))
        assert torch.equal(keys[0, -new:], hipkittens.rotary(k[b : b + 1], **turn, positions=places)[0])
        expected = flash_attn.flash_attn_func(
            turned, keys, values, causal=True, alibi_slopes=torch.full((4,), 0.1)
        )
        torch.testing.assert_close(out[b : b + 1], expected, atol=2e-3, rtol=2e-3)


def call(name, **changes):
    x, t, cu = draw(1, 4, 2, 64), draw(4, 2, 64), torch.tensor([0, 4], dtype=torch.int32)
    given = {
        "flash_attn_func": dict(q=x, k=x, v=x),
        "flash_attn_kvpacked_func": dict(q=x, kv=torch.stack((x, x), 2)),
        "flash_attn_qkvpacked_func": dict(qkv=torch.stack((x, x, x), 2)),
        "flash_attn_varlen_func": dict(
            q=t, k=t, v=t, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=4, max_seqlen_k=4
        ),
        "flash_attn_varlen_kvpacked_func": dict(
            q=t, kv=torch.stack((t, t), 1), cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=4, max_seqlen_k=4
        ),
        "flash_attn_varlen_qkvpacked_func": dict(qkv=torch.stack((t, t, t), 1), cu_seqlens=cu, max_seqlen=4),
        "flash_attn_with_kvcache": dict(q=x, k_cache=x, v_cache=x),
    }[name]
    return getattr(flash_attn, name)(**{**given, **changes})


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "kvcache" not in name])
def test_score_terms_are_passed_on(gfx942, name):
    """Compared with the same calls without them, which give another result, and with hipkittens.attention, which gives the same."""
    slopes = torch.tensor([0.5, 0.125])
    plain = call(name, causal=True)
    capped, tilted, both = (
        call(name, causal=True, **more)
        for more in ({"softcap": 0.5}, {"alibi_slopes": slopes}, {"softcap": 0.5, "alibi_slopes": slopes})
    )
    for one, other in itertools.combinations((plain, capped, tilted, both), 2):
        assert not torch.equal(one, other)
    with pytest.raises(ValueError, match=r"dropout_p is 0\.1 with softcap"):
        call(name, softcap=0.5, dropout_p=0.1)
    if name == "flash_attn_func":
        q = k = v = draw(1, 4, 2, 60)
        expected = attention(
            *(torch.nn.functional.pad(x, (0, 4)) for x in (q, k, v)),
            scale=60**-0.5,
            softcap=0.5,
            alibi_slopes=slopes,
        )
        assert torch.equal(call(name, q=q, k=k, v=v, softcap=0.5, alibi_slopes=slopes), expected[..., :60])
        narrow = call(name, v=draw(1, 4, 2, 20))
        assert narrow.shape == (1, 4, 2, 20)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_has_no_kernel_is_refused_by_name(gfx942, name):
    if "kvcache" not in name:
        with pytest.raises(NotImplementedError, match="return_attn_probs with dropout_p"):
            call(name, return_attn_probs=True, dropout_p=0.1)
    if "block_table" in PUBLISHED[name] and "dropout_p" in PUBLISHED[name]:
        with pytest.raises(NotImplementedError, match=r"dropout_p is 0\.1 with block_table"):
            call(name, block_table=torch.zeros(1, 1, dtype=torch.int32), dropout_p=0.1)


@pytest.mark.parametrize(
    ("name", "changes", "kind", "match"),
    [
        ("flash_attn_func", {"q": draw(4, 2, 64)}, ValueError, r"flash_attn_func: q is \(4, 2, 64\); it must be"),
        ("flash_attn_func", {"k": None}, ValueError, "k is NoneType"),
        ("flash_attn_func", {"v": draw(1, 3, 2, 64)}, ValueError, "k and v differ in more than the head size"),
        ("flash_attn_func", {"dropout_p": 1.5}, ValueError, "dropout_p is 1.5"),
        ("flash_attn_qkvpacked_func", {"qkv": draw(1, 4, 2, 2, 64)}, ValueError, r"qkv is \(1, 4, 2, 2, 64\)"),
        ("flash_attn_kvpacked_func", {"kv": draw(1, 4, 3, 2, 64)}, ValueError, r"must be \(batch, tokens, 2, heads"),
        ("flash_attn_varlen_qkvpacked_func", {"qkv": draw(4, 2, 64)}, ValueError, r"must be \(tokens, 3, heads"),
        ("flash_attn_with_kvcache", {"cache_seqlens": torch.tensor([3])}, ValueError, "cache_seqlens is torch.int64 of shape"),
        ("flash_attn_with_kvcache", {"cache_seqlens": 5}, ValueError, "cache_seqlens is 5"),
        ("flash_attn_with_kvcache", {"k": draw(1, 1, 2, 64)}, ValueError, "k and v go together"),
        ("flash_attn_with_kvcache", {"rotary_cos": torch.ones(4, 8)}, ValueError, "rotary_cos and rotary_sin need k"),
        ("flash_attn_with_kvcache", {"num_splits": 300}, ValueError, "num_splits is 300"),
        ("flash_attn_with_kvcache", {"block_table": torch.zeros(2, 1, dtype=torch.int32)}, ValueError, r"must be \(1, pages of"),
        ("flash_attn_with_kvcache", {"softcap": 5.0, "q": draw(4, 2, 64)}, ValueError, r"q is \(4, 2, 64\); it must be"),
        ("flash_attn_with_kvcache", {"cache_leftpad": torch.zeros(1)}, ValueError, r"cache_leftpad is torch.float32 of shape \(1,\); it must be"),
        ("flash_attn_with_kvcache", {"cache_leftpad": torch.zeros(1, dtype=torch.int32), "block_table": torch.zeros(1, 1, dtype=torch.int32)},
         ValueError, "block_table and cache_leftpad are given"),
    ],
)  # fmt: skip
def test_wrong_arguments(gfx942, name, changes, kind, match):
    with pytest.raises(kind, match=match):
        call(name, **changes)


def test_padding_there_and_back():
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
    x = draw(3, 4, 2, 8, grad=True)
    packed, indices, cu_seqlens, longest, used = bert_padding.unpad_input(x, mask)
    assert torch.equal(packed, x[mask.bool()]) and indices.tolist() == [0, 1, 3, 9, 10, 11]
    assert cu_seqlens.tolist() == [0, 3, 3, 6] and cu_seqlens.dtype == torch.int32
    assert longest == 3 and used.tolist() == [3, 0, 3]
    back = bert_padding.pad_input(packed, indices, 3, 4)
    assert torch.equal(back, x * mask[:, :, None, None])
    (grad,) = torch.autograd.grad(back, x, torch.ones_like(x))
    assert torch.equal(grad, mask[:, :, None, None].expand_as(x).to(BF16))
    unused = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    packed, indices, cu_seqlens, longest, used = bert_padding.unpad_input(x, mask.bool(), unused.bool())
    assert cu_seqlens.tolist() == [0, 4, 4, 7] and longest == 4 and used.tolist() == [3, 0, 3]
    assert torch.equal(bert_padding.index_first_axis(x.flatten(0, 1), indices), packed)
