# SPDX-License-Identifier: MIT
"""hipkittens.cache_write and mla_cache_write: every byte of the caches, at the offsets that vLLM and AITER publish."""

import ctypes
import math

import pytest
import torch

import hipkittens
from hipkittens import _library, _simulator, cache_write, mla_cache_write
from hipkittens._latent_rows import scaled_rows_of
from hipkittens.cache import LAYOUTS, shapes_of
from hipkittens.quantization import dtype_of

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NAN = float("nan")
FILL = 0x5A  # the bytes of a cache before it is written


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def filled(sizes, dtype):
    count = math.prod(sizes) * dtype.itemsize
    return torch.full((count,), FILL, dtype=torch.uint8).view(dtype).view(sizes)


def sizes_of(layout, blocks, size, heads, features, value_features, itemsize):
    words = {"blocks": blocks, "block_size": size}
    return [
        tuple(each if isinstance(each, int) else words.get(each) or size * itemsize // 16 for each in shape)
        for shape in shapes_of(layout, heads, features, value_features, itemsize)
    ]


def offset_of(layout, values, x, size, heads, features, slot, h, d):
    """Offset in elements from the start of a contiguous cache: section by section the formulas of vLLM's and AITER's kernels."""
    b, o = slot // size, slot % size
    if layout == "nhd":
        return ((b * size + o) * heads + h) * features + d
    if layout == "hnd":
        return ((b * heads + h) * size + o) * features + d
    if not values:
        return ((b * heads + h) * (features // x) + d // x) * size * x + o * x + d % x
    if layout == "paged":
        return ((b * heads + h) * features + d) * size + o
    return ((b * heads + h) * (size // x) + o // x) * features * x + d * x + o % x


def codes_of(rows, dtype, scale):
    if dtype.itemsize == 2:
        return rows
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scaled = rows.float() * (1 / torch.tensor(scale, dtype=F32))
    if dtype == torch.int8:
        return scaled.nan_to_num(0.0, torch.inf, -torch.inf).round().clamp(-largest, largest).to(dtype)
    return scaled.clamp(-largest, largest).to(dtype)


def expected(cache, rows, slots, layout, values, size, dtype, scale=1.0):
    """The expected bytes of a contiguous cache after the write."""
    heads, features = rows.shape[1:]
    flat = (
        cache.clone().view(torch.uint8).reshape(-1).view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    )
    codes = codes_of(rows, dtype, scale).view(flat.dtype)
    head, feature = torch.arange(heads)[:, None], torch.arange(features)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            at = offset_of(layout, values, 16 // dtype.itemsize, size, heads, features, slot, head, feature)
            flat[at] = codes[token]
    return flat.view(torch.uint8)


def bytes_of(cache):
    return cache.contiguous().view(torch.uint8).reshape(-1)


def slots_of(tokens, count, dtype=torch.int64):
    slots = torch.randperm(count, generator=torch.Generator().manual_seed(3))[:tokens].to(dtype)
    slots[1::4] = -1
    return slots


def dtypes_of(kind, dtype):
    return {"same": dtype, "int8": torch.int8, "float8": dtype_of("fp8", torch.device("cpu"))}[kind]


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_byte(target, layout, size, kind, dtype):
    of_cache = dtypes_of(kind, dtype)
    if layout == "asm" and size % (16 // of_cache.itemsize):
        size = 32  # that layout stores groups of x
    blocks = -(-70 // size)
    for tokens, heads, features, value_features in ((1, 1, 64, 64), (17, 3, 48, 32), (61, 2, 128, 128)):
        key = draw(tokens, heads, features, dtype=dtype, scale=100.0)
        value = draw(tokens, heads, value_features, dtype=dtype, seed=1)
        caches = [
            filled(sizes, of_cache)
            for sizes in sizes_of(layout, blocks, size, heads, features, value_features, of_cache.itemsize)
        ]
        slots = slots_of(tokens, blocks * size, torch.int32 if tokens == 17 else torch.int64)
        scales = {} if kind == "same" else {"k_scale": torch.tensor(0.3), "v_scale": torch.tensor([1.7])}
        right = [
            expected(cache, rows, slots, layout, values, size, of_cache, scale)
            for cache, rows, values, scale in zip(
                caches, (key, value), (False, True), (0.3, 1.7), strict=True
            )
        ]
        assert cache_write(key, value, *caches, slots, layout=layout, **scales) is None
        for cache, bytes_right in zip(caches, right, strict=True):
            assert torch.equal(bytes_of(cache), bytes_right)


@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
@pytest.mark.parametrize("features", [1, 2, 7, 17, 130, 255])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_odd_features(target, layout, features, kind):
    dtype = dtypes_of(kind, BF16)
    key, slots = draw(9, 3, features), slots_of(9, 12)
    caches = [filled(sizes, dtype) for sizes in sizes_of(layout, 3, 4, 3, features, features, dtype.itemsize)]
    right = expected(caches[0], key, slots, layout, False, 4, dtype)
    cache_write(key, key, *caches, slots, layout=layout)
    assert all(torch.equal(bytes_of(cache), right) for cache in caches)


def test_bytes_are_a_cache_of_float8(target):
    key, slots = draw(5, 2, 64), slots_of(5, 32)
    named = [filled((2, 16, 2, 64), dtype_of("fp8", key.device)) for _ in range(2)]
    plain = [filled((2, 16, 2, 64), torch.uint8) for _ in range(2)]
    cache_write(key, key, *named, slots)
    cache_write(key, key, *plain, slots)
    assert torch.equal(named[1].view(torch.uint8), plain[1])


def test_every_bf16_pattern_as_float8(target):
    """The values of PyTorch's conversion; NaN stays NaN, infinity becomes the largest value."""
    key = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16).view(64, 8, 128)
    dtype = dtype_of("fp8", key.device)
    for scale in (1.0, 3.1):
        caches = [filled((4, 16, 8, 128), dtype) for _ in range(2)]
        cache_write(key, key, *caches, torch.arange(64), k_scale=torch.tensor(scale))
        codes, right = caches[0].flatten(0, 1), codes_of(key, dtype, scale)
        number = ~key.isnan()
        assert torch.equal(codes.view(torch.uint8)[number], right.view(torch.uint8)[number])
        assert codes.float()[~number].isnan().all()


def test_every_bf16_pattern_as_int8(target):
    """Rounded to nearest even and clamped to 127 both ways; NaN is 0."""
    key = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16).view(64, 8, 128)
    for scale in (1.0, 2.0, 3.1):  # halves are ties of 2
        caches = [filled((4, 16, 8, 128), torch.int8) for _ in range(2)]
        cache_write(key, key, *caches, torch.arange(64), v_scale=torch.tensor(scale))
        assert torch.equal(caches[0].flatten(0, 1), codes_of(key, torch.int8, 1.0))
        assert torch.equal(caches[1].flatten(0, 1), codes_of(key, torch.int8, scale))
        assert caches[1].amin() == -127 and not caches[1].flatten(0, 1)[key.isnan()].any()


def test_bits_of_nan_are_copied(target):
    key = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16).view(64, 8, 128)
    caches = [filled((4, 16, 8, 128), BF16) for _ in range(2)]
    cache_write(key, key, *caches, torch.arange(64))
    assert all(torch.equal(cache.flatten(0, 1).view(torch.int16), key.view(torch.int16)) for cache in caches)


def test_strides(target):
    """Rows from a packed qkv and with gaps; caches that are parts of one tensor, or a transposed one."""
    qkv = draw(9, 6, 3, 66)
    slots = slots_of(9, 32)
    for key in (
        qkv[:, :3, 0, :64],
        qkv[:, 1:4, 2, 1:65],
        qkv[::2, ::2, 1, 2:],
        draw(64, 3, 9).permute(2, 1, 0),
    ):
        mine = slots[: key.shape[0]]
        whole = filled((2, 2, 16, 3, 64), BF16)
        cache_write(key, key, whole[:, 0], whole[:, 1], mine)
        right = expected(filled((2, 16, 3, 64), BF16), key.contiguous(), mine, "nhd", False, 16, BF16)
        assert all(torch.equal(bytes_of(whole[:, part]), right) for part in (0, 1))
        across = filled((2, 3, 16, 64), BF16)
        cache_write(key, key, across.transpose(1, 2), filled((2, 16, 3, 64), BF16), mine)
        assert torch.equal(bytes_of(across.transpose(1, 2)), right)
        odd = filled((2, 16, 3, 65), BF16)
        cache_write(key, key, odd[..., 1:], filled((2, 16, 3, 64), BF16), mine)
        assert torch.equal(bytes_of(odd[..., 1:]), right) and (odd[..., 0].view(torch.int16) == 0x5A5A).all()


def test_slots_with_a_stride(target):
    key, slots = draw(6, 1, 16), slots_of(6, 16)
    one, other = (filled((1, 16, 1, 16), BF16) for _ in range(2))
    cache_write(key, key, one, filled((1, 16, 1, 16), BF16), slots)
    cache_write(key, key, other, filled((1, 16, 1, 16), BF16), torch.stack((slots, slots), 1)[:, 1])
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
@pytest.mark.parametrize(("latent", "rotary"), [(512, 64), (40, 4), (17, 3), (592, 64)])
def test_latents(target, latent, rotary, kind):
    dtype = dtypes_of(kind, BF16)
    kv_c, k_pe = draw(11, latent, scale=9.0), draw(11, rotary, seed=1)
    slots = slots_of(11, 24)
    cache = filled((3, 8, latent + rotary), dtype)
    scale = {} if kind == "same" else {"scale": torch.tensor([0.7])}
    rows = torch.cat((kv_c, k_pe), -1).unsqueeze(1)
    right = expected(cache, rows, slots, "nhd", False, 8, dtype, 0.7)
    mla_cache_write(kv_c, k_pe.unsqueeze(1), cache, slots, **scale)
    assert torch.equal(bytes_of(cache), right)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn], ids=str)
def test_latents_with_scales_in_their_rows(target, dtype):
    """Every byte, with gaps between pages and between rows; zeros, a NaN, infinities and the least magnitudes among the latents."""
    kv_c, k_pe = draw(11, 512, scale=9.0), draw(11, 64, seed=1)
    kv_c[0] = 0
    kv_c[1, 130], kv_c[2, 5], kv_c[3, :128] = NAN, float("inf"), 2.0**-130
    kv_c[4] *= torch.linspace(-20, 20, 512).exp2().to(BF16)
    slots = slots_of(11, 24)
    room = torch.full((3, 11, 720), 0x5A, dtype=torch.uint8)
    cache = room[:, 2:10, 32:688].view(dtype)
    right = torch.full((24, 656), 0x5A, dtype=torch.uint8)
    kept = slots >= 0
    right[slots[kept].long()] = scaled_rows_of(torch.cat((kv_c, k_pe), -1))[kept]
    mla_cache_write(kv_c, k_pe.unsqueeze(1), cache, slots)
    written = cache.view(torch.uint8).flatten(0, 1)
    codes, theirs = (
        each[:, :512].contiguous().view(torch.float8_e4m3fn).float() for each in (written, right)
    )
    torch.testing.assert_close(codes, theirs, rtol=0, atol=0, equal_nan=True)
    scales, others = (each[:, 512:528].contiguous().view(torch.float32) for each in (written, right))
    torch.testing.assert_close(scales, others, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(written[:, 528:], right[:, 528:])
    room[:, 2:10, 32:688] = 0x5A
    assert (room == 0x5A).all()


def test_rows_with_scales_in_torch(target, monkeypatch):
    kv_c, k_pe, slots = draw(11, 512), draw(11, 64, seed=1), slots_of(11, 24)
    ours, torchs = (filled((3, 8, 656), torch.uint8) for _ in range(2))
    mla_cache_write(kv_c, k_pe, ours, slots)
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    mla_cache_write(kv_c, k_pe, torchs, slots)
    codes, theirs = (each[..., :512].view(torch.float8_e4m3fn).float() for each in (ours, torchs))
    assert torch.equal(codes, theirs) and torch.equal(ours[..., 512:], torchs[..., 512:])


def test_nothing_to_write(target):
    cache = filled((1, 16, 2, 16), BF16)
    empty = torch.zeros(0, dtype=torch.int64)
    cache_write(draw(0, 2, 16), draw(0, 2, 16), cache, cache.clone(), empty)
    cache_write(draw(3, 2, 16), draw(3, 2, 16), cache, cache.clone(), torch.tensor([-1, -7, -(2**40)]))
    mla_cache_write(draw(0, 8), draw(0, 8), filled((1, 1, 16), BF16), empty)
    assert (cache.view(torch.int16) == 0x5A5A).all()


@pytest.mark.parametrize("wrong", [32, 2**31, 2**40])
def test_a_slot_behind_the_last(target, wrong):
    key, cache = draw(2, 1, 8), filled((2, 16, 1, 8), BF16)
    with pytest.raises(RuntimeError, match=rf"slot {wrong} at \[1\]; the cache has 32, 2 blocks of 16"):
        cache_write(key, key, cache, cache.clone(), torch.tensor([3, wrong]))
    assert (cache.view(torch.int16) == 0x5A5A).all()


@pytest.fixture
def between_check_and_launch():
    """Installs a function that runs after the host has checked the values: what it writes is visible as writes to a GPU's tensors are."""
    install = _library.operators().hipkittens_torch_set_before_launch
    settings = ctypes.CFUNCTYPE(None)(_simulator.apply_settings_address())
    kept = []

    def run(function):
        kept.append(ctypes.CFUNCTYPE(None)(lambda: (settings(), function())[0]))
        install(ctypes.cast(kept[-1], ctypes.c_void_p))

    yield run
    install(ctypes.cast(settings, ctypes.c_void_p))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_kernel_leaves_out_slots_behind_the_last(target, between_check_and_launch, dtype):
    key, slots = draw(4, 2, 16), torch.tensor([3, 1, -1, 2], dtype=dtype)
    caches = [filled((1, 4, 2, 16), BF16) for _ in range(2)]
    wrong = torch.tensor([4, 1, -(2**31), 2**31 - 1], dtype=dtype) + (dtype == torch.int64) * torch.tensor(
        [0, 0, -(2**40), 2**40]
    )
    right = expected(caches[0], key[1:2], torch.tensor([1]), "nhd", False, 4, BF16)
    between_check_and_launch(lambda: slots.copy_(wrong))
    cache_write(key, key, *caches, slots)
    assert torch.equal(slots, wrong.to(dtype))
    assert all(torch.equal(bytes_of(cache), right) for cache in caches)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_other_backend(layout, monkeypatch):
    from hipkittens import _backend

    key, value = draw(9, 2, 32), draw(9, 2, 48, seed=1)
    slots = slots_of(9, 64)
    half = torch.tensor(0.4)
    for dtype, scale in ((BF16, None), (dtype_of("fp8", key.device), half), (torch.int8, half / 20)):
        mine, theirs = (
            [filled(sizes, dtype) for sizes in sizes_of(layout, 2, 32, 2, 32, 48, dtype.itemsize)]
            for _ in range(2)
        )
        with hipkittens.simulate():
            cache_write(key, value, *mine, slots, layout=layout, k_scale=scale, v_scale=scale)
        monkeypatch.setattr(_backend._State, "backend", "torch")
        cache_write(key, value, *theirs, slots, layout=layout, k_scale=scale, v_scale=scale)
        monkeypatch.undo()
        assert all(torch.equal(bytes_of(a), bytes_of(b)) for a, b in zip(mine, theirs, strict=True))


def test_versions_and_gradients(target):
    key, cache = draw(2, 1, 8), filled((1, 16, 1, 8), dtype_of("fp8", torch.device("cpu")))
    other, slots = cache.clone(), torch.tensor([1, 2])
    before = cache._version
    cache_write(key, key, cache, other, slots)
    assert cache._version > before
    needs = key.clone().requires_grad_()
    with pytest.raises(ValueError, match="value requires a gradient and gets none"):
        cache_write(key, needs, cache, other, slots)
    with torch.no_grad():
        cache_write(needs, needs, cache, other, slots)


def test_opcheck(target):
    operators, key, slots = torch.ops.hipkittens, draw(3, 2, 16), torch.tensor([2, -1, 0])
    caches = [filled((1, 16, 2, 16), BF16) for _ in range(2)]
    codes = [filled((1, 16, 2, 16), torch.uint8) for _ in range(2)]
    whole = [filled((1, 16, 2, 16), torch.int8) for _ in range(2)]
    calls = [
        (operators.cache_write, (key, key, *caches, slots, None, None, 2)),
        (operators.cache_write, (key, key, *codes, slots, torch.tensor(0.5), None, 2)),
        (operators.cache_write, (key, key, *whole, slots, torch.tensor(0.5), None, 2)),
        (operators.mla_cache_write, (key[:, 0], key[:, 1], filled((1, 16, 32), BF16), slots, None)),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
def test_compile(target, kind):
    torch._dynamo.reset()
    dtype = dtypes_of(kind, BF16)

    def step(key, keys, values, slots):
        cache_write(key * 2, key, keys, values, slots)
        return keys.view(torch.uint8).sum(dtype=torch.int64)

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for tokens in (3, 8):
        key, slots = draw(tokens, 2, 16), slots_of(tokens, 16)
        mine, right = ([filled((1, 16, 2, 16), dtype) for _ in range(2)] for _ in range(2))
        assert compiled(key, *mine, slots) == step(key, *right, slots)
        assert all(torch.equal(bytes_of(a), bytes_of(b)) for a, b in zip(mine, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [BF16, torch.uint8])
def test_more_than_two_to_the_31_elements(dtype):
    key = draw(3, 1, 64)
    blocks = 2**31 // (16 * 64) + 2
    with hipkittens.simulate("gfx950"):
        caches = [torch.empty(blocks, 16, 1, 64, dtype=dtype) for _ in range(2)]
        assert caches[0].numel() > 2**31
        slots = torch.tensor([blocks * 16 - 1, 5, blocks * 16 - 33])
        cache_write(key, key, *caches, slots)
        small = [torch.zeros(1, 3, 1, 64, dtype=dtype) for _ in range(2)]
        cache_write(key, key, *small, torch.arange(3))
        for cache, right in zip(caches, small, strict=True):
            assert torch.equal(cache.flatten(0, 1)[slots], right[0])


K = torch.zeros(3, 2, 16, dtype=BF16)
C = torch.zeros(2, 16, 2, 16, dtype=BF16)
S = torch.zeros(3, dtype=torch.int64)
LATENTS = torch.zeros(3, 512, dtype=BF16), torch.zeros(3, 64, dtype=BF16)
ROWS = torch.zeros(1, 16, 656, dtype=torch.uint8)
B8 = torch.zeros(2, 16, 2, 16, dtype=torch.uint8)
ONE = torch.ones(1)
BAD = [
    (lambda: cache_write(1, K, C, C, S), TypeError, "key is int; it must be a torch.Tensor"),
    (lambda: cache_write(K.float(), K, C, C, S), TypeError, "key is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda: cache_write(K, K.half(), C, C, S), TypeError, "key is torch.bfloat16 and value is torch.float16"),
    (lambda: cache_write(K[0], K, C, C, S), ValueError, "key has shape (2, 16); it must be (tokens, heads, features)"),
    (lambda: cache_write(K, K[:, :1], C, C, S), ValueError, "only their features may differ"),
    (lambda: cache_write(K[..., :0], K, C, C, S), ValueError, "with 1 feature or more"),
    (lambda: cache_write(K, K, C, C, S, layout="bnhd"), ValueError, "layout is 'bnhd'; allowed: paged, asm, nhd, hnd"),
    (lambda: cache_write(K, K, C, C, S.float()), TypeError, "slots is torch.float32; allowed: torch.int32, torch.int64"),
    (lambda: cache_write(K, K, C, C, S[:2]), ValueError, "slots has shape (2,); it must be (3,)"),
    (lambda: cache_write(K, K, C.half(), C, S), TypeError, "key_cache is torch.float16; allowed: torch.bfloat16"),
    (lambda: cache_write(K, K, C.to(torch.float8_e5m2), C, S), TypeError, "key_cache is torch.float8_e5m2; allowed"),
    (lambda: cache_write(K, K, B8, B8.to(torch.int8), S), TypeError, "key_cache is torch.uint8 and value_cache torch.int8"),
    (lambda: cache_write(K, K, C.to(torch.int16), C, S), TypeError, "key_cache is torch.int16; allowed: torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int8"),
    (lambda: cache_write(K, K, C, B8, S), TypeError, "key_cache is torch.bfloat16 and value_cache torch.uint8"),
    (lambda: cache_write(K, K, C, C[:1], S), ValueError, "key_cache has 2 blocks of 16 slots and value_cache 1 of 16"),
    (lambda: cache_write(K, K, C[..., :8], C, S), ValueError, "key_cache has shape (2, 16, 2, 8); with layout 'nhd' it must be (blocks, block_size, 2, 16)"),
    (lambda: cache_write(K, K, C, C, S, layout="paged"), ValueError, "with layout 'paged' it must be (blocks, 2, 2, block_size, 8)"),
    (lambda: cache_write(K[..., :12], K, C, C, S, layout="asm"), ValueError, "key has 12 features; layout 'asm' has 8"),
    (lambda: cache_write(K, K, C[:0], C[:0], S), ValueError, "key_cache has 0 blocks of 16 slots; 1 .. 2147483647"),
    (lambda: cache_write(K, K, C[:1].expand(2, 16, 2, 16), C, S), ValueError, "key_cache is expanded"),
    (lambda: cache_write(K, K, C, C, S, k_scale=ONE), ValueError, "only caches of 8-bit codes have a scale"),
    (lambda: cache_write(K, K, B8, B8, S, k_scale=0.5), TypeError, "k_scale is float; it must be a torch.Tensor"),
    (lambda: cache_write(K, K, B8, B8, S, v_scale=ONE.double()), TypeError, "v_scale is torch.float64; allowed: torch.float32"),
    (lambda: cache_write(K, K, B8, B8, S, v_scale=torch.ones(2)), ValueError, "v_scale has shape (2,); it must have one element"),
    (lambda: cache_write(K, K, C.to("meta"), C, S), ValueError, "key_cache is on meta and key on cpu"),
    (lambda: mla_cache_write(K, K[:, 0], C[:, :, 0], S), ValueError, "kv_c has shape (3, 2, 16); it must be (tokens, latent)"),
    (lambda: mla_cache_write(K[:, 0], K, C[:, :, 0], S), ValueError, "k_pe has shape (3, 2, 16); it has one head"),
    (lambda: mla_cache_write(K[:, 0], K[:2, 0], C[:, :, 0], S), ValueError, "both have the same tokens"),
    (lambda: mla_cache_write(K[:, 0], K[:, 0], ROWS, S), ValueError, "kv_c is torch.bfloat16 with 16 features and k_pe has 16; rows of 656 bytes are"),
    (lambda: mla_cache_write(*LATENTS, ROWS, S, scale=torch.ones(1)), ValueError, "scale is given and kv_cache has rows of 656 bytes"),
    (lambda: mla_cache_write(*LATENTS, ROWS[0], S), ValueError, "kv_cache has shape (16, 656); it must be (blocks, block_size, 656)"),
    (lambda: mla_cache_write(*LATENTS, ROWS.expand(2, -1, -1), S), ValueError, "kv_cache is expanded"),
    (lambda: mla_cache_write(*LATENTS, torch.zeros(1, 16, 658, dtype=torch.uint8)[..., 2:], S), ValueError, "begin on 4 bytes"),
    (lambda: mla_cache_write(*LATENTS, ROWS.view(torch.float8_e4m3fnuz), S), TypeError, "kv_cache is torch.float8_e4m3fnuz; allowed"),
    (lambda: mla_cache_write(K[:, 0], K[:, 0], C[:, :, 0], S), ValueError, "it must be (blocks, block_size, 32)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
