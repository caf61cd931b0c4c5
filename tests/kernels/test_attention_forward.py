"""Every prebuilt attention forward kernel against float64, with the simulator's checkers on."""

import re

import numpy as np
import pytest

from hipkittens._installation import pack
from tests.kernels.attention_forward import (
    CASE_NAMES,
    CASES,
    ROWS,
    Forward,
    PlanError,
    make_plan,
    places,
    run,
)
from tests.simulated_device import TARGETS

LENGTHS = (1, 2, 17, 255, 257)


@pytest.mark.parametrize(("row", "target"), CASES, ids=CASE_NAMES)
def test_row(row, target):
    """Whole tiles without bank conflicts; then partial ones, with groups of heads, gaps between rows and a short head."""
    of = ROWS[row]
    tiles = Forward(target, of.element, of.head_dim, 32 * of.waves, 192, value_dim=of.value_dim, **of.options)
    _, report = run(tiles, row)
    assert report.lds_conflict_cycles == 0
    short = Forward(target, of.element, of.head_dim - 24, 32 * of.waves + 19, 141, value_dim=of.value_dim - 24, batch=2,
                    heads=6, key_heads=2, causal=True, padding=6, sinks=True, **of.options)  # fmt: skip
    results = []
    for seed in (0, 11, 12):
        _, report = run(short, row, wave_order_seed=seed)
        assert report.lds_conflict_cycles == 0
        results.append((short.out.copy(), short.lse.copy()))
    for out, lse in results[1:]:
        assert np.array_equal(out, results[0][0]) and np.array_equal(lse, results[0][1])


@pytest.mark.parametrize(("row", "target"), CASES, ids=CASE_NAMES)
def test_registers_hold_everything(row, target):
    (kernel,) = pack(target).entry(f"hipkittens_attention_{row}_{target}")["kernels"]
    # At head size 256 a VGPR may be spilled to an AGPR, but none to memory.
    assert kernel["scratch_bytes"] == kernel["sgpr_spills"] == 0
    assert kernel["vgpr_spills"] == 0 or "_d256" in row


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n_q", LENGTHS)
@pytest.mark.parametrize("n_k", LENGTHS)
def test_lengths(target, n_q, n_k):
    for causal in (False, True):
        run(Forward(target, "bf16", 64, n_q, n_k, causal=causal))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [8, 16, 40, 64, 72, 80, 96, 120, 128, 136, 192, 256])
def test_head_sizes(target, head_dim):
    launch, _ = run(Forward(target, "bf16", head_dim, 33, 65, heads=2, key_heads=1))
    size = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    assert launch["variant"].removesuffix("_interleaved").endswith(f"_d{size}")


INTERLEAVED = [
    case for case in CASES if re.fullmatch(r"forward_bf16_d\d+(_v\d+)?_interleaved(_8_waves)?", case[0])
]


@pytest.mark.parametrize(("row", "target"), INTERLEAVED)
@pytest.mark.parametrize("n_k", [1, 64, 65, 128, 190, 256, 320])
def test_interleaved_does_not_depend_on_the_order_of_waves(target, row, n_k):
    """Fewer tiles of keys than buffers, odd and even numbers of them, and waves that finish before the others."""
    of = ROWS[row]
    for seed, masks in enumerate(
        ({"window": (70, 30)}, {"causal": True, "window": (70, 30)}, {"causal": True}), 1
    ):
        problem = Forward(target, "bf16", of.head_dim, 256, n_k, value_dim=of.value_dim, **masks)
        run(problem, row, wave_order_seed=seed)
    bias = np.arange(n_k) // 16 * 6.0
    run(Forward(target, "bf16", of.head_dim, 70, n_k, value_dim=of.value_dim, bias=bias), row)


def test_the_large_tiles_are_for_large_problems():
    def chosen(**changes):
        (launch,) = make_plan(Forward("gfx942", "f16", 128, 512, 64, heads=8, **changes).problem)
        return launch["variant"]

    assert chosen() == "forward_f16_d128_interleaved"
    assert chosen(batch=19) == "forward_f16_d128_interleaved_8_waves"
    decode = make_plan(Forward("gfx942", "f16", 128, 1, 64, heads=8, key_heads=8, batch=64).problem)
    assert [launch["variant"] for launch in decode] == ["forward_f16_d128_interleaved"]


def test_few_queries_share_the_keys_of_their_group():
    def chosen(n_q, key_heads, **changes):
        return make_plan(
            Forward("gfx950", "bf16", 128, n_q, 64, heads=8, key_heads=key_heads, **changes).problem
        )

    shared, alone = "forward_bf16_d128_interleaved_grouped", "forward_bf16_d128_interleaved"
    for n_q, key_heads, variant, workgroups in ((1, 2, shared, 2), (32, 2, shared, 2), (32, 1, shared, 2),
                                                (33, 2, alone, 8), (1, 8, alone, 8)):  # fmt: skip
        (launch,) = chosen(n_q, key_heads)
        assert (launch["variant"], launch["grid"][0]) == (variant, workgroups)
    assert chosen(1, 2, dropout_p=0.5)[0]["variant"] == "forward_bf16_d128_dropout"
    far = Forward("gfx950", "bf16", 128, 1, 64, heads=8, key_heads=2).problem
    far.q.head_stride = 1 << 30
    (launch,) = make_plan(far)
    assert launch["variant"] == alone


@pytest.mark.parametrize(("row", "target"), [case for case in CASES if case[0].endswith("_grouped")])
@pytest.mark.parametrize("n_q", [1, 2, 5, 17])
@pytest.mark.parametrize("group", [1, 3, 4, 5, 8])
def test_rows_of_a_group(row, target, n_q, group):
    """Every length of keys with every mask in turn; a short head, gaps between rows, tiles with rows of two waves and more."""
    element, head_dim = ROWS[row].element, ROWS[row].head_dim
    masks = ({}, {"causal": True}, {"window": (20, 3)})
    lengths = LENGTHS if head_dim == 64 else (17, 257)
    for i, n_k in enumerate(lengths):
        problem = Forward(target, element, head_dim - 8 * (i % 2), n_q, n_k, batch=2, heads=2 * group, key_heads=2,
                          padding=6, **masks[(i + n_q + group) % 3])  # fmt: skip
        _, report = run(problem, row, 1 + i % 3)
        assert report.lds_conflict_cycles == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (3, 1), (8, 2), (12, 4), (10, 2), (5, 1), (16, 2)])
def test_head_groups(target, heads, key_heads):
    run(Forward(target, "f16", 16, 40, 70, batch=2, heads=heads, key_heads=key_heads, causal=True))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("window", [(0, 0), (5, -1), (-1, 5), (64, 63), (200, 0), (-1, -1), (3, 100)])
def test_windows(target, window):
    for n_q, n_k in ((200, 200), (150, 330), (330, 150)):
        for causal in (False, True):
            run(Forward(target, "bf16", 32, n_q, n_k, window=window, causal=causal))


@pytest.mark.parametrize("target", TARGETS)
def test_queries_that_see_nothing(target):
    for problem in (
        Forward(target, "bf16", 64, 300, 40, causal=True),
        Forward(target, "bf16", 64, 300, 300, window=(0, -1), causal=True),
        Forward(target, "f16", 64, 9, 0),
        Forward(target, "bf16", 64, 500, 20, window=(2, 2)),
    ):
        run(problem)
        blind = ~problem.seen.any(axis=1)
        assert not problem.out[:, blind].any() and np.isneginf(problem.lse[:, :, blind]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("step", [1, 2, 4, 6, 20, -20])
def test_scores_that_grow_from_tile_to_tile(target, element, step):
    """In natural units: 6 is more than 8 in log2, where the running maximum must be updated; with 1 to 4 it may first lag behind."""
    for every in (16, 64):
        problem = Forward(target, element, 64, 70, 640, bias=np.arange(640) // every * float(step))
        run(problem, splits=1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", range(6))
def test_one_jump_at_every_tile(target, tile):
    for place in (0, 31, 32, 63):
        bias = np.zeros(384)
        bias[64 * tile + place] = 16
        run(Forward(target, "bf16", 64, 33, 384, bias=bias))
        run(
            Forward(target, "bf16", 64, 33, 384, bias=np.where(np.arange(384) < 64 * tile + place, 0.0, 12.0))
        )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.0, 1.0, -0.25, 1e-4])
def test_scales(target, scale):
    run(Forward(target, "f16", 48, 50, 130, scale=scale, causal=True))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_of_more_than_4_gib(target):
    problem = Forward(target, "bf16", 64, 40, 200)
    stride = 12 << 20
    for name, layout in (("q", problem.problem.q), ("k", problem.problem.k), ("v", problem.problem.v)):
        near = problem.regions[name].reshape(-1, 64)
        far = np.zeros((len(near) - 1) * stride + 64, np.uint16)  # mapped, not touched
        for row, values in enumerate(near):
            far[row * stride : row * stride + 64] = values
        problem.regions[name] = far
        layout.data, layout.row_stride = far.ctypes.data, stride
    assert problem.regions["k"].nbytes > 1 << 32
    run(problem)


@pytest.mark.parametrize("target", TARGETS)
def test_broadcast_keys(target):
    """A stride of zero between batches and heads."""
    problem = Forward(target, "bf16", 64, 40, 100, batch=2, heads=3, key_heads=3)
    problem.k[:], problem.v[:] = problem.k[:1, :, :1], problem.v[:1, :, :1]
    for layout in (problem.problem.k, problem.problem.v):
        layout.batch_stride = layout.head_stride = 0
    run(problem)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("batch", "heads", "key_heads", "n_q"), [(1, 1, 1, 1), (2, 6, 2, 700), (3, 5, 5, 1000), (1, 64, 8, 300)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_every_tile_is_taken_once(target, batch, heads, key_heads, n_q, causal):
    problem = Forward(target, "bf16", 8, n_q, 8, batch=batch, heads=heads, key_heads=key_heads, causal=causal)
    (launch,) = make_plan(problem.problem)
    taken = places(bytes.fromhex(launch["arguments"]), launch["grid"][0])
    assert len({tuple(place) for place in taken}) == len(taken) == batch * heads * -(-n_q // 128)
    assert (taken.max(axis=0) + 1 == (-(-n_q // 128), heads, batch, 1)).all() and (taken >= 0).all()


@pytest.mark.parametrize("xcds", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_stay_on_one_xcd(xcds, causal):
    """The first workgroups of an XCD are the tiles of two heads that share keys; and every tile is processed once."""
    problem = Forward("gfx942", "bf16", 8, 1024, 1024, heads=48, key_heads=24, causal=causal).problem
    problem.shared.compute_units, problem.shared.xcds = 38 * xcds, xcds
    (launch,) = make_plan(problem, splits=1)
    taken = places(bytes.fromhex(launch["arguments"]), launch["grid"][0])
    tiles = len(taken) // 48
    assert sorted(map(tuple, taken[:, :2])) == [(tile, head) for tile in range(tiles) for head in range(48)]
    for xcd in range(xcds):
        first = taken[xcd::xcds][: 2 * tiles]
        # Under a causal mask the longest tiles of further heads, as many as fill an XCD, precede the next ones.
        assert len(set(first[:, 0])) < tiles if causal else len(set(first[:, 1] // 2)) == 1


def test_long_tiles_come_first():
    """Among the heads that share keys, longest first, and every tile of every head once."""
    (launch,) = make_plan(
        Forward("gfx950", "bf16", 8, 1024, 1024, heads=16, key_heads=8, causal=True).problem, splits=1
    )
    taken = places(bytes.fromhex(launch["arguments"]), 128)
    of_first_xcd = taken[::8]
    assert of_first_xcd[:, 0].tolist() == [tile for tile in range(7, -1, -1) for _ in range(2)]
    assert sorted(map(tuple, taken[:, :2])) == [(tile, head) for tile in range(8) for head in range(16)]


def test_the_plan_says_what_is_wrong():
    def refused(match, **changes):
        problem = Forward("gfx950", "bf16", 64, 4, 4, heads=2).problem
        for name, value in changes.items():
            owner, _, field = name.rpartition("__")
            setattr(getattr(problem, owner or "shared"), field, value)
        with pytest.raises(PlanError, match=match):
            make_plan(problem)

    refused("target gfx90 has no kernels", target=90)
    refused("no compute units or no XCDs", xcds=0)
    refused("no compute units or no XCDs", compute_units=0)
    refused("head_dim = 60 is not a multiple of 8", head_dim=60)
    refused("head_dim = 264", head_dim=264)
    refused("2 heads are not a multiple of 3 key heads", key_heads=3)
    refused("scale is not finite", scale=float("nan"))
    refused("q: the stride of its rows is 127", q__row_stride=127)
    refused("k does not begin on 4 bytes", k__data=0x1002)
    refused("within 4 GiB", v__row_stride=1 << 26)
    refused("n_q = 0", n_q=0)


def test_dropout_has_kernels_of_its_own():
    dropping = Forward(
        "gfx942", "bf16", 64, 512, 64, heads=200, dropout_p=0.2
    ).problem  # enough for large tiles
    (launch,) = make_plan(dropping)
    assert launch["variant"] == "forward_bf16_d64_dropout"
    plain = Forward("gfx942", "bf16", 64, 4, 4).problem
    for problem, row in (
        (dropping, "forward_bf16_d64_interleaved"),
        (plain, "forward_bf16_d64_dropout"),
    ):
        with pytest.raises(PlanError, match="cannot run this problem"):
            make_plan(problem, row)
    plain.shared.dropout_p = 0.5
    with pytest.raises(PlanError, match="a seed is needed"):
        make_plan(plain)
