# SPDX-License-Identifier: MIT
"""cache_write with scales shared by several slots, and AITER's function for it: every quantized value and scale, from a loop over
groups."""

import pytest
import torch

import hipkittens
from hipkittens import aiter, cache_write
from hipkittens.cache import LAYOUTS
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

BF16, F16, F32, U8, I8 = torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def rounded(values, dtype):
    largest = 127.0 if dtype == I8 else torch.finfo(dtype).max
    values = values.clamp(-largest, largest)
    return (values.nan_to_num(0.0).round() if dtype == I8 else values).to(dtype)


def expected(held, scales, rows, slots, dtype):
    """held: quantized values (slots, heads, features) and scales (groups, heads) after the write, group by group and head by head."""
    held, scales = held.clone(), scales.clone()
    size = held.shape[0] // scales.shape[0]
    largest = torch.tensor(127.0 if dtype == I8 else torch.finfo(dtype).max)
    last = {}
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            last[slot] = token
    for group in range(scales.shape[0]):
        inside = {slot - group * size: token for slot, token in last.items() if slot // size == group}
        if not inside:
            continue
        first, old = min(inside), scales[group].clone()
        new = rows[list(inside.values())].float()
        needed = new.abs().nan_to_num(0.0, torch.inf).amax((0, 2)).clamp_min(1e-6) / largest
        grows = (old < needed) | (first == 0)
        scales[group] = torch.where(grows, needed, old)
        for place in range(first):
            at = group * size + place
            again = rounded(held[at].float() * old[:, None] / scales[group][:, None], dtype)
            for head in grows.nonzero().flatten().tolist():
                held[at, head] = again[head]
        for place, token in inside.items():
            held[group * size + place] = rounded(rows[token].float() * (1 / scales[group])[:, None], dtype)
    return held, scales


def as_rows(cache, layout, values):
    """(slots, heads, features)."""
    if layout == "nhd":
        return cache.flatten(0, 1)
    if layout == "hnd" or (layout == "paged" and values):
        return cache.permute(*((0, 2, 1, 3) if layout == "hnd" else (0, 3, 1, 2))).flatten(0, 1)
    rows = cache.permute(*((0, 2, 4, 1, 3) if values else (0, 3, 1, 2, 4)))
    return rows.flatten(0, 2) if values else rows.flatten(3, 4).flatten(0, 1)


class Both:
    """Caches of bytes, their scales, and the expected contents."""

    def __init__(self, layout, heads, features, dtype, groups, blocks=3, size=16, storage=None):
        self.layout, self.dtype = layout, dtype
        self.caches = [
            caches_of(layout, blocks, size, heads, each, dtype)[i] for i, each in enumerate(features)
        ]
        self.scales = [torch.full((heads, groups), 0.01).t() for _ in range(2)]
        for cache in self.caches:
            cache.view(U8).random_(0, 120, generator=torch.Generator().manual_seed(9))
        self.right = [as_rows(cache, layout, bool(i)).clone() for i, cache in enumerate(self.caches)]
        self.right_scales = [each.clone() for each in self.scales]

    def write(self, key, value, slots):
        result = cache_write(key, value, *self.caches, slots, layout=self.layout, key_scales=self.scales[0],
                             value_scales=self.scales[1])  # fmt: skip
        assert result is None
        for i, rows in enumerate((key, value)):
            self.right[i], self.right_scales[i] = expected(
                self.right[i], self.right_scales[i], rows, slots, self.dtype
            )
            mine = as_rows(self.caches[i], self.layout, bool(i))
            assert torch.equal(self.scales[i], self.right_scales[i])
            assert torch.equal(mine.contiguous().view(U8), self.right[i].view(U8))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_that_go_on(target, layout, kind, dtype):
    """A prompt, then tokens that make scales grow and tokens that do not."""
    for features in ((32, 64), (128, 48)):
        both = Both(layout, 3, features, dtype_of(kind, torch.device("cpu")), 3)
        first = 0
        for count, scale in ((19, 1.0), (1, 8.0), (2, 0.25), (9, 30.0)):
            key, value = (draw(count, 3, each, dtype=dtype, seed=count, scale=scale) for each in features)
            both.write(key, value, torch.arange(first, first + count))
            first += count


@pytest.mark.parametrize("groups", [1, 2, 6, 12, 48])
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_groups_and_slots_in_any_order(target, kind, groups):
    """Slots that are negative or repeated, with holes between, in groups of blocks and of parts of blocks."""
    for layout, features in (("nhd", (17, 255)), ("hnd", (1, 8)), ("paged", (32, 31))):
        both = Both(layout, 2, features, dtype_of(kind, torch.device("cpu")), groups)
        for turn in range(3):
            generator = torch.Generator().manual_seed(turn)
            slots = torch.randint(-6, 48, (29,), generator=generator).to(torch.int32 if turn else torch.int64)
            key, value = (draw(29, 2, each, seed=turn, scale=2.0**turn) for each in features)
            both.write(key, value, slots)


def test_more_tokens_than_a_workgroup_looks_at_together(target):
    """A group's tokens are 2500 apart, and their indices are of 4 or 8 bytes and have gaps."""
    slots = torch.arange(2600)
    slots[2550:] = torch.arange(2600, 2650)
    slots[3], slots[2590] = -1, 3
    for numbers in (slots, slots.int().repeat_interleave(3)[::3]):
        both = Both("nhd", 1, (8, 8), I8, 170, blocks=170)
        both.write(draw(2600, 1, 8), draw(2600, 1, 8, seed=1), numbers)


@pytest.mark.parametrize("heads", [4, 5, 19])
def test_heads_of_waves(target, heads):
    """Heads of one workgroup and of several, and several times as many tokens as those process at once; a group that continues."""
    for tokens in (3, 1300):
        both = Both("hnd", heads, (8, 24), I8, 82, blocks=82)
        for first, scale in ((0, 1.0), (tokens, 4.0)):
            key, value = (draw(tokens, heads, each, seed=first, scale=scale) for each in (8, 24))
            both.write(key, value, torch.arange(first, first + tokens) % 1312)


def test_the_largest_group(target):
    both = Both("hnd", 1, (16, 16), I8, 1, blocks=64)
    both.write(draw(40, 1, 16), draw(40, 1, 16, seed=1), torch.arange(40) * 25)


def test_what_is_no_number_and_zeros(target):
    for dtype in (I8, dtype_of("fp8", torch.device("cpu"))):
        both = Both("nhd", 2, (16, 16), dtype, 3)
        key = draw(20, 2, 16)
        key[2, 0, 3] = key[17, 1] = torch.nan
        cache_write(key, torch.zeros_like(key), *both.caches, torch.arange(20), key_scales=both.scales[0],
                    value_scales=both.scales[1])  # fmt: skip
        largest = 127.0 if dtype == I8 else torch.finfo(dtype).max
        right = key[:16].float().abs().nan_to_num(0.0).amax((0, 2)) / largest
        assert torch.equal(both.scales[0][0], right)
        codes = both.caches[0].flatten(0, 1)[:20].float()
        assert (codes[2, 0, 3] == 0 if dtype == I8 else codes[2, 0, 3].isnan()) and codes[
            2, 0, :3
        ].isfinite().all()
        assert (both.scales[1][:2] == torch.tensor(1e-6) / largest).all()
        assert not both.caches[1].flatten(0, 1)[:20].view(U8).any()


def test_strides(target):
    """Rows from a packed qkv and with gaps, caches that are parts of one tensor."""
    qkv, slots = draw(9, 6, 3, 66), torch.arange(9) + 2
    for key in (qkv[:, :3, 0, :64], qkv[:, 1:4, 2, 1:65], qkv[::2, ::2, 1, 2:]):
        whole, scales = torch.full((2, 2, 16, 3, 64), 7, dtype=I8), torch.full((2, 2, 3), 0.5)
        mine = slots[: len(key)]
        cache_write(
            key, key, whole[:, 0], whole[:, 1], mine, key_scales=scales[:, 0], value_scales=scales[:, 1]
        )
        codes, right = expected(torch.full((32, 3, 64), 7, dtype=I8), torch.full((2, 3), 0.5), key, mine, I8)
        for part in (0, 1):
            assert torch.equal(whole[:, part].flatten(0, 1), codes) and torch.equal(scales[:, part], right)


def test_nothing_to_write(target):
    caches, scales = [torch.full((1, 16, 2, 8), 9, dtype=I8) for _ in range(2)], torch.ones(1, 2)
    for key, slots in ((draw(0, 2, 8), torch.arange(0)), (draw(3, 2, 8), torch.tensor([-1, -5, -(2**40)]))):
        cache_write(key, key, *caches, slots, key_scales=scales, value_scales=scales)
    assert all((each == 9).all() for each in caches) and (scales == 1).all()


def of_aiter(rows, held, scales, slots, size, dtype):
    """What AITER's kernel does for one sequence with neighboring slots: block by block, from the position of its first new token on.
    Values are rounded to nearest even here."""
    held, scales, largest = held.clone(), scales.clone(), 127.0 if dtype == I8 else torch.finfo(dtype).max
    for block in range(int(slots[0]) // size, int(slots[-1]) // size + 1):
        run = rows[slots // size == block].float()
        begin = int(slots[slots // size == block][0])
        for head in range(rows.shape[1]):
            new = run[:, head].abs().amax().clamp_min(1e-6) / torch.tensor(largest)
            if begin % size and not scales[block, head] < new:
                new = scales[block, head].clone()
            elif begin % size:
                before = slice(block * size, begin)
                held[before, head] = rounded(held[before, head].float() * scales[block, head] / new, dtype)
            scales[block, head] = new
            held[begin : begin + len(run), head] = rounded(run[:, head] * (1 / new), dtype)
    return held, scales


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("asm", [False, True])
def test_the_names_of_aiter(target, asm, kind):
    dtype, layout, blocks = dtype_of(kind, torch.device("cpu")), "asm" if asm else "paged", 32
    for size, function, more in (
        (16, aiter.reshape_and_cache_with_block_quant, ()),
        (128, aiter.reshape_and_cache_with_block_quant_for_asm_pa, ()),
        (256, aiter.reshape_and_cache_with_block_quant_for_asm_pa, (256,)),
    ):
        caches, groups = caches_of(layout, blocks, 16, 2, 32, dtype), blocks * 16 // size
        scales = [torch.zeros((groups, 2) if asm else (2, groups)) for _ in range(2)]
        right = [(torch.zeros(512, 2, 32, dtype=dtype), torch.zeros(groups, 2)) for _ in range(2)]
        first = torch.tensor([0, 256])  # of two sequences
        for tokens, scale in ((37, 1.0), (1, 5.0), (20, 7.0)):
            key, value = (draw(2, tokens, 2, 32, seed=tokens + i, scale=scale) for i in range(2))
            slots = first[:, None] + torch.arange(tokens)
            first = first + tokens
            function(key, value, *caches, *scales, slots.flatten(), asm, *more)
            for i, rows in enumerate((key, value)):
                for sequence in range(2):
                    right[i] = of_aiter(rows[sequence], *right[i], slots[sequence], size, dtype)
                mine = as_rows(caches[i], layout, bool(i)).contiguous()
                assert torch.equal(mine.view(U8), right[i][0].view(U8))
                assert torch.equal(scales[i] if asm else scales[i].t(), right[i][1])
    with pytest.raises(ValueError, match="ori_block_size is 64; allowed: 128, 256"):
        function(key, value, *caches, *scales, slots.flatten(), asm, 64)
    with pytest.raises(
        ValueError, match=r"key has shape \(40, 2, 32\); it must be \(batch, tokens, heads, features\)"
    ):
        function(key.flatten(0, 1), value, *caches, *scales, slots.flatten(), asm, 256)
    with pytest.raises(ValueError, match="v_dequant_scales has shape"):
        function(key, value, *caches, scales[0], torch.zeros(3, 3), slots.flatten(), asm, 256)
    with pytest.raises(ValueError, match="3 blocks of 16 slots are no whole number of 128 slots"):
        aiter.reshape_and_cache_with_block_quant_for_asm_pa(
            key, value, *(each[:3] for each in caches), *scales, slots.flatten(), asm
        )


def test_the_other_backend(monkeypatch):
    from hipkittens import _backend

    def results():
        written = []
        for layout in LAYOUTS:
            for dtype, groups in ((U8, 2), (I8, 4)):
                caches, scales = (
                    caches_of(layout, 2, 16, 2, 64, dtype),
                    [torch.full((groups, 2), 0.02) for _ in range(2)],
                )
                for turn in range(2):
                    key, slots = draw(9, 2, 64, seed=turn, scale=4.0**turn), torch.arange(3, 12) + 7 * turn
                    slots[4] = -1
                    cache_write(
                        key, -key, *caches, slots, layout=layout, key_scales=scales[0], value_scales=scales[1]
                    )
                empty = key[:0]
                cache_write(
                    empty,
                    empty,
                    *caches,
                    slots[:0],
                    layout=layout,
                    key_scales=scales[0],
                    value_scales=scales[1],
                )
                written += [*caches, *scales]
        return written

    with hipkittens.simulate():
        mine = results()
    monkeypatch.setattr(_backend._State, "backend", "torch")
    assert all(map(torch.equal, mine, results()))


def test_the_same_bits_in_any_order_of_workgroups(target):
    """Groups with scattered tokens, in several schedules."""
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(5))[:40]
    found = []
    for seed in range(3):
        with hipkittens.simulate(target, seed=seed):
            caches, scales = caches_of("nhd", 3, 16, 2, 64, I8), [torch.full((3, 2), 1e-3) for _ in range(2)]
            cache_write(
                draw(40, 2, 64), draw(40, 2, 64), *caches, slots, key_scales=scales[0], value_scales=scales[1]
            )
            found.append((*caches, *scales))
    assert all(all(map(torch.equal, found[0], each)) for each in found[1:])


def test_opcheck_and_versions(target):
    key, slots = draw(5, 2, 64), torch.arange(5) - 1
    caches, scales = (
        [torch.zeros(1, 16, 2, 64, dtype=I8) for _ in range(2)],
        [torch.zeros(1, 2) for _ in range(2)],
    )
    operator = torch.ops.hipkittens.cache_write_shared_scale.default
    inputs = (key, key, *caches, *scales, slots, 2)
    assert set(torch.library.opcheck(operator, inputs).values()) == {"SUCCESS"}
    before = [each._version for each in (*caches, *scales)]
    cache_write(key, key, *caches, slots, key_scales=scales[0], value_scales=scales[1])
    assert all(each._version > old for each, old in zip((*caches, *scales), before, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def step(key, keys, values, scales, slots):
        cache_write(key * 2, key, keys, values, slots, key_scales=scales[0], value_scales=scales[1])
        return keys.sum(dtype=torch.int64)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=compile_backend)
    for tokens in (3, 8):
        key, slots = draw(tokens, 2, 16), torch.arange(tokens) + 1
        mine, right = ([torch.full((1, 16, 2, 16), 50, dtype=I8) for _ in range(2)] for _ in range(2))
        of_mine, of_right = (torch.full((2, 1, 2), 1e-3) for _ in range(2))
        assert compiled(key, *mine, of_mine, slots) == step(key, *right, of_right, slots)
        assert all(map(torch.equal, (*mine, of_mine), (*right, of_right)))


KEY, S = torch.zeros(3, 2, 64, dtype=BF16), torch.arange(3)
CACHES = [torch.zeros(1, 16, 2, 64, dtype=I8) for _ in range(2)]
LONG = [torch.zeros(2, 1024, 2, 64, dtype=I8) for _ in range(2)]
ONES = torch.ones(1, 2)
BAD = [
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=ONES), ValueError, "value_scales is None and the other scales are not"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=ONES, value_scales=torch.ones(2, 2)), ValueError, "value_scales has shape (2, 2); it must be (1, 2), as key_scales"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=torch.ones(1, 3), value_scales=torch.ones(1, 3)), ValueError, "key_scales has shape (1, 3); it must be (1, 2)"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=torch.ones(3, 2), value_scales=torch.ones(3, 2)), ValueError, "key_scales has 3 groups for 16 slots; each has the same number of slots, 1 to 1024"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=torch.ones(0, 2), value_scales=torch.ones(0, 2)), ValueError, "key_scales has 0 groups for 16 slots"),
    (lambda: cache_write(KEY, KEY, *LONG, S, key_scales=ONES, value_scales=ONES), ValueError, "key_scales has 1 groups for 2048 slots"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=ONES.double(), value_scales=ONES), TypeError, "key_scales is torch.float64; allowed: torch.float32"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=ONES[0], value_scales=ONES), ValueError, "key_scales has shape (2,); it must be (1, 16, 2), or (groups, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
