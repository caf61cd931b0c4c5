# SPDX-License-Identifier: MIT
"""torch.export and AOTInductor of a decoder block made of our functions: the same bits as eager."""

import pytest
import torch

import hipkittens

HIDDEN, HEADS, KEY_HEADS, INNER, LONGEST = 64, 4, 2, 96, 64


class Block(torch.nn.Module):
    """Llama's block: attention over rotated heads, then a gated feed-forward block, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.size = HIDDEN // HEADS
        generator = torch.Generator().manual_seed(0)

        def weight(outside: int, inside: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(
                torch.randn(outside, inside, generator=generator).bfloat16() * inside**-0.5
            )

        self.norms = torch.nn.ParameterList(torch.ones(HIDDEN, dtype=torch.bfloat16) for _ in range(2))
        self.queries, self.out = weight(HIDDEN, HIDDEN), weight(HIDDEN, HIDDEN)
        self.keys, self.values = (weight(KEY_HEADS * self.size, HIDDEN) for _ in range(2))
        self.gate_up, self.down = weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER)
        angles = torch.outer(torch.arange(LONGEST), 0.1 ** torch.arange(self.size // 2))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lead = x.shape[:2]
        normal = hipkittens.rms_norm(x, self.norms[0])
        q, k, v = (
            hipkittens.linear(normal, weight).view(*lead, -1, self.size)
            for weight in (self.queries, self.keys, self.values)
        )
        q, k = hipkittens.rotary_qk(q, k, self.cos, self.sin)
        mixed = hipkittens.attention(q, k, v, causal=True).reshape(*lead, HIDDEN)
        x = x + hipkittens.linear(mixed, self.out)
        normal = hipkittens.rms_norm(x, self.norms[1])
        gated = hipkittens.gated_activation(hipkittens.linear(normal, self.gate_up), "silu")
        return x + hipkittens.linear(gated, self.down)


@pytest.fixture
def block():
    with torch.no_grad():
        yield Block()


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, count, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()


OPERATORS = {"attention_forward", "gated_activation", "gemm", "rms_norm", "rotary_qk"}


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_block_holds_our_operators_and_gives_eagers_bits(block, strict, tmp_path):
    length = torch.export.Dim("length", min=2, max=LONGEST)
    program = torch.export.export(block, (tokens(9),), dynamic_shapes={"x": {1: length}}, strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if str(node.target).startswith("hipkittens.")]
    assert {target.split(".")[1] for target in targets} == OPERATORS
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2")
    for count in (9, 2, 17):
        x = tokens(count, seed=count)
        expected = block(x)
        assert torch.equal(program.module()(x), expected)
        assert torch.equal(loaded.module()(x), expected)


@pytest.mark.slow  # a C++ compiler takes half a minute
def test_a_compiled_package_gives_eagers_bits(block, tmp_path):
    length = torch.export.Dim("length", min=2, max=LONGEST)
    program = torch.export.export(block, (tokens(9),), dynamic_shapes={"x": {1: length}})
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    for count in (9, 2, 17):
        x = tokens(count, seed=count)
        assert torch.equal(compiled(x), block(x))


def infinite(value: object) -> bool:
    return isinstance(value, float) and value in (float("inf"), -float("inf"))


def test_no_operator_takes_an_infinite_number():
    """AOTInductor writes an infinite number as text and cannot read it back."""

    class Rows(torch.nn.Module):
        def forward(self, x):
            spec = hipkittens.QuantSpec("int8", "row")
            codes = [hipkittens.gated_activation(x, kind) for kind in ("silu", "swiglu")]
            codes.append(hipkittens.gated_activation(x, "silu", limit=float("inf")))
            codes += hipkittens.gated_activation_quantize(x, spec)[:2] + hipkittens.quantize(x, spec)[:2]
            codes += hipkittens.norm_quantize(x, None, 1e-6, spec)[:2]
            return tuple(codes)

    graph = torch.export.export(Rows(), (tokens(3),)).graph
    calls = [node for node in graph.nodes if str(node.target).startswith("hipkittens.")]
    assert len(calls) == 6
    assert not [node for node in calls if any(map(infinite, (*node.args, *node.kwargs.values())))]
