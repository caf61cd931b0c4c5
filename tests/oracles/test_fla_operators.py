# SPDX-License-Identifier: MIT
"""flash-linear-attention's gated linear attention, short convolutions and norms: its unchanged Triton kernels on tensors of device="cuda",
compared with float64. Results, states and gradients, with every checker on. Its delta rules are in test_fla.py."""

import importlib
import itertools

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

from triton.runtime.autotuner import Autotuner

import hipkittens
from hipkittens.integrations import rocm
from tests.oracles import fla_packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(fla_packages.missing()), reason=fla_packages.missing()),
]
TARGETS = ("gfx942", "gfx950")
# For results and gradients, by norm: the order of float32's sums and its approximate exponentials; a few roundings to bfloat16.
BARS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
# Gated linear attention multiplies within chunks: the tolerance of flash-linear-attention's own tests for results and gradients.
BARS_OF_CHUNKS = {torch.float32: 5e-3, torch.bfloat16: 5e-3}
EPS = 1e-6
TOKENS, HEADS, KEYS, VALUES = 70, 2, 32, 64  # a whole chunk and a part of one
WIDTH, CHANNELS = 4, 200  # of a convolution
SEQUENCES = (0, 23, 24, 70)  # where each begins, of a packed batch, and the end
functional = torch.nn.functional


@pytest.fixture(scope="module")
def fla():
    """fla with the first configuration of each autotuned kernel: trying all of them, each simulated, takes hours."""
    right = Autotuner.__init__

    def first(self, kernel, names, configs, *given, **options):
        right(self, kernel, names, configs[:1], *given, **options)

    with pytest.MonkeyPatch.context() as patch, fla_packages.importable():
        patch.setattr(Autotuner, "__init__", first)
        yield


def random(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def theirs(module, function):
    return getattr(importlib.import_module(f"fla.{module}"), function)


def ends(x):
    return torch.tensor(SEQUENCES, device=x.device)


# Gated linear attention: queries, keys, values, logarithms of the decay of each key's channel, initial states.
def recurrence(q, k, v, g, state):
    """The recurrence, token by token."""
    out = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * KEYS**-0.5)
    return torch.stack(out, 1), state


def recurrences(q, k, v, g, state):
    """The recurrence of packed sequences."""
    found = [
        recurrence(*(each[:, begin:end] for each in (q, k, v, g)), state[number, None])
        for number, (begin, end) in enumerate(itertools.pairwise(SEQUENCES))
    ]
    return torch.cat([out for out, _ in found], 1), torch.cat([state for _, state in found])


def gla(name, packed=False):
    def run(q, k, v, g, state):
        options = {"cu_seqlens": ends(q)} if packed else {}
        function = theirs("ops.gla", name)
        return function(q, k, v, g, initial_state=state, output_final_state=True, **options)

    return run


def of_gla(states):
    sizes = [(1, TOKENS, HEADS, KEYS)] * 2 + [(1, TOKENS, HEADS, VALUES)]
    q, k, v = (random(*each, seed=seed) for seed, each in enumerate(sizes))
    gate = functional.logsigmoid(random(*sizes[0], seed=3))
    return [q, k, v, gate, random(states, HEADS, KEYS, VALUES, seed=4)]


# Short convolutions: x [batch, tokens, channels], the weights of each channel, a bias, a residual, the latest preceding inputs.
def convolution(x, weight, bias, residual=None, state=None):
    """A convolution followed by SiLU."""
    before = x.new_zeros(len(x), WIDTH, x.shape[2]) if state is None else state.mT
    rows = torch.cat((before, x), 1)[:, 1:]
    y = functional.conv1d(rows.mT, weight[:, None], bias, groups=x.shape[2]).mT
    y = functional.silu(y)
    return (y if residual is None else y + residual), rows[:, -WIDTH:].mT


def convolutions(x, weight, bias):
    found = [convolution(x[:, begin:end], weight, bias) for begin, end in itertools.pairwise(SEQUENCES)]
    return torch.cat([y for y, _ in found], 1)


def their_convolution(x, weight, bias, residual=None, state=None):
    return theirs("modules.causal_conv1d", "causal_conv1d")(
        x, weight, bias, residual, state, output_final_state=True, activation="silu"
    )


def their_convolutions(x, weight, bias):
    return theirs("modules.causal_conv1d", "causal_conv1d")(
        x, weight, bias, activation="silu", cu_seqlens=ends(x)
    )[0]


# Norms.
def rms(x):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


def layer(x):
    return functional.layer_norm(x, x.shape[-1:], eps=EPS)


def group(x):
    return functional.group_norm(x, 3, eps=EPS)


def norm(name, **options):
    return lambda *given: theirs("modules.norm.layernorm", name)(*given, eps=EPS, **options)


def fused(name, **options):
    return lambda *given: theirs("modules.norm.fused_norm_gate", name)(*given, eps=EPS, **options)


def grouped_and_gated(x, w, z):
    """The norm over 3 groups of each row, followed by the gate."""
    return (rms(x.unflatten(-1, (3, -1))).flatten(-2) * w) * functional.silu(z)


def their_grouped_and_gated(x, w, z):
    return theirs("modules.norm.layernorm_gated", "rmsnorm_fn")(x, w, None, z, EPS, x.shape[-1] // 3)


ROWS = [random(9, 690), random(690, seed=1), random(690, seed=2)]
SHORT = [random(130, 64), random(64, seed=1), random(64, seed=2)]  # for which other kernels take several rows
CONVOLUTION = [random(2, TOKENS, CHANNELS), random(CHANNELS, WIDTH, seed=1), random(CHANNELS, seed=2)]
# (theirs, float64's, inputs)
OPERATORS = {
    "chunk_gla": (gla("chunk_gla"), recurrence, of_gla(1)),
    "chunk_gla packed": (gla("chunk_gla", packed=True), recurrences, of_gla(3)),
    "fused_recurrent_gla": (gla("fused_recurrent_gla"), recurrence, of_gla(1)),
    "causal_conv1d": (their_convolution, convolution, CONVOLUTION),
    "causal_conv1d packed": (their_convolutions, convolutions, [CONVOLUTION[0][:1], *CONVOLUTION[1:]]),
    "causal_conv1d residual and state": (their_convolution, convolution, [*CONVOLUTION, random(2, TOKENS, CHANNELS, seed=3), random(2, CHANNELS, WIDTH, seed=4)]),
    "rms_norm": (lambda x, w: norm("rms_norm")(x, w, None), lambda x, w: rms(x) * w, ROWS[:2]),
    "rms_norm residual": (lambda x, w, r: norm("rms_norm", prenorm=True)(x, w, None, r), lambda x, w, r: (rms(x + r) * w, x + r), [*ROWS[:2], random(9, 690, seed=3)]),
    "rms_norm short": (lambda x, w: norm("rms_norm")(x, w, None), lambda x, w: rms(x) * w, SHORT[:2]),
    "layer_norm": (norm("layer_norm"), lambda x, w, b: layer(x) * w + b, ROWS),
    "layer_norm short": (norm("layer_norm"), lambda x, w, b: layer(x) * w + b, SHORT),
    "group_norm": (norm("group_norm", num_groups=3), lambda x, w, b: group(x) * w + b, ROWS),
    "l2norm": (lambda x: theirs("modules.norm.l2norm", "l2norm")(x, EPS), lambda x: x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt(), [random(2, TOKENS, HEADS, 64)]),
    "l2norm long": (lambda x: theirs("modules.norm.l2norm", "l2norm")(x, EPS), lambda x: x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt(), ROWS[:1]),
    "rms_norm_gated": (lambda x, g, w: fused("rms_norm_gated")(x, g, w, None), lambda x, g, w: rms(x) * w * functional.silu(g), [ROWS[0], random(9, 690, seed=3), ROWS[1]]),
    "rms_norm_gated short": (lambda x, g, w: fused("rms_norm_gated")(x, g, w, None), lambda x, g, w: rms(x) * w * functional.silu(g), [SHORT[0], random(130, 64, seed=3), SHORT[1]]),
    "layer_norm_gated": (fused("layer_norm_gated", activation="sigmoid"), lambda x, g, w, b: (layer(x) * w + b) * g.sigmoid(), [ROWS[0], random(9, 690, seed=3), *ROWS[1:]]),
    "rmsnorm_fn of groups": (their_grouped_and_gated, grouped_and_gated, [*ROWS[:2], random(9, 690, seed=3)]),
}  # fmt: skip


# Per operator: the kind of finding, the kernel, and the cause.
SHARED_ROWS = (
    "workgroups_write_after_write",
    "layer_norm_gated_bwd_kernel",
    "the gradients of a gated norm of rows of up to 512 elements: programs that have fewer rows of their own than a tile also store the "
    "gradients of x and of the gate for rows of the next programs, which racecheck reports. All of them store the same values",
)
SHIFTED_STATE = (
    ("global_read_after_write", "global_write_after_read"),  # as the waves come
    "causal_conv1d_update_kernel",
    "a tile of 8 channels of a convolution's state has 32 elements for 128 threads, and Triton gives the others the same elements: they read "
    "the state that the first wave shifts in place, which racecheck reports. They store nothing: no result depends on it",
)


def counted_branch(kind):
    return (
        kind,
        "chunk_gla_bwd_kernel_intra",
        "Triton's compiler leaves one wait state less than it wants itself between a matrix instruction and a VALU instruction that writes the "
        "same register: it counts an s_branch that the s_cbranch_execz before it skips. On that path EXEC is 0 and the VALU writes "
        "nothing: no result depends on it",
    )


OF_THEIRS = {
    **{("rms_norm_gated short", dtype, target): SHARED_ROWS for dtype in BARS for target in TARGETS},
    ("chunk_gla", torch.float32, "gfx950"): counted_branch("f32_overwritten"),
    ("chunk_gla", torch.bfloat16, "gfx950"): counted_branch("f32_overwritten"),
    ("chunk_gla", torch.bfloat16, "gfx942"): counted_branch("xdl_overwritten"),
}


def tensors(found):
    return list(found) if isinstance(found, tuple) else [found]


def relative(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


def with_gradients(function, inputs, steps):
    """The results, and the gradients of the inputs, all of them on the CPU."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    found = tensors(function(*leaves))
    steps = [step.to(each.device, each.dtype) for step, each in zip(steps, found, strict=True)]
    return [each.detach().cpu() for each in (*found, *torch.autograd.grad(found, leaves, steps))]


def run_theirs(name, inputs, steps, target):
    """The same for theirs, and the checkers' findings."""
    with rocm.active(), hipkittens.simulate(target, checks="all") as run:
        found = with_gradients(OPERATORS[name][0], [tensor.to("cuda") for tensor in inputs], steps)
    return found, run.findings


def drawn(name, dtype):
    """The inputs, and an incoming gradient for each result."""
    _, exact, inputs = OPERATORS[name]
    steps = [random(*each.shape, seed=99 + at) for at, each in enumerate(tensors(exact(*inputs)))]
    inputs, steps = ([tensor.to(dtype) for tensor in each] for each in (inputs, steps))
    if "gla" in name:
        inputs[-1] = inputs[-1].float()  # states have no other dtype
    return inputs, steps


def of_float64(name, inputs, steps):
    return with_gradients(OPERATORS[name][1], [each.double() for each in inputs], steps)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(fla, name, dtype, target, record_property):
    inputs, steps = drawn(name, dtype)
    if "conv1d" in name and len(steps) == 2:
        steps[1][..., 0] = 0  # for the entry of a state that no convolution reads: see below
    found, findings = run_theirs(name, inputs, steps, target)
    errors = [relative(*each) for each in zip(found, of_float64(name, inputs, steps), strict=True)]
    assert max(errors) < (BARS_OF_CHUNKS if "gla" in name else BARS)[dtype], errors
    if (name, dtype, target) not in OF_THEIRS:
        assert [str(finding) for finding in findings] == []
        return
    kind, kernel, why = OF_THEIRS[name, dtype, target]
    assert {(finding.kind, finding.kernel) for finding in findings} == {(kind, kernel)}
    record_property("client_fault", why)


@pytest.mark.parametrize("target", TARGETS)
def test_no_rows_are_shared_by_programs_whose_rows_are_whole_tiles(fla, target):
    """One program per compute unit, as many as are reported, and 16 rows per program, which is a tile of the configuration in use."""
    with rocm.active(), hipkittens.simulate(target):
        rows = 16 * theirs("utils", "get_multiprocessor_count")(0)
    inputs = [random(rows, 64), random(rows, 64, seed=3), SHORT[1]]
    inputs, steps = ([tensor.float() for tensor in each] for each in (inputs, [random(rows, 64, seed=99)]))
    found, findings = run_theirs("rms_norm_gated short", inputs, steps, target)
    exact = of_float64("rms_norm_gated short", inputs, steps)
    assert max(relative(*each) for each in zip(found, exact, strict=True)) < BARS[torch.float32]
    assert findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_the_oldest_entry_of_a_convolutions_state(fla, target, record_property):
    """The state has as many inputs as there are weights, and the next token replaces the oldest. Its gradient is lost, and no other."""
    inputs, steps = drawn("causal_conv1d", torch.float32)
    found, findings = run_theirs("causal_conv1d", inputs, steps, target)
    assert findings == []
    exact = of_float64("causal_conv1d", inputs, steps)
    oldest = TOKENS - WIDTH
    exact[2][:, oldest] -= steps[1][..., 0]
    assert max(relative(*each) for each in zip(found, exact, strict=True)) < BARS[torch.float32]
    record_property(
        "client_fault",
        "causal_conv1d gives a state of all inputs that the weights span, and backward leaves out the gradient of the oldest of them. A "
        "convolution that goes on from the state does not read it: a model's gradients are right",
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
def test_a_convolution_token_after_token(fla, dtype, target, record_property):
    """With waves in several orders, none of which affects the result."""
    inputs = [tensor.to(dtype) for tensor in CONVOLUTION]
    exact, _ = convolution(*(tensor.double() for tensor in inputs))
    update, tokens = theirs("modules.causal_conv1d", "causal_conv1d_update"), 9
    found, findings = [], []
    for seed in range(4):
        with (
            torch.no_grad(),
            rocm.active(),
            hipkittens.simulate(target, checks="all", seed=seed) as run,
        ):
            state = torch.zeros(2, CHANNELS, WIDTH, dtype=dtype, device="cuda")
            x, weight, bias = (tensor.to("cuda") for tensor in inputs)
            rows = [update(x[:, t, None], state, None, weight, bias, "silu")[0] for t in range(tokens)]
            found.append(torch.cat(rows, 1).cpu())
        findings += run.findings
    assert relative(found[0], exact[:, :tokens]) < BARS[dtype]
    assert all(torch.equal(each, found[0]) for each in found)
    kinds, kernel, why = SHIFTED_STATE
    assert {(finding.kind, finding.kernel) for finding in findings} == {(kind, kernel) for kind in kinds}
    record_property("client_fault", why)
