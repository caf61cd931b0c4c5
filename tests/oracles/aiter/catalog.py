# SPDX-License-Identifier: MIT
"""Which of AITER's code objects run here, on what, and how close to float64 they must come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from tests.oracles.aiter import attention_backward, attention_forward, decode, experts, gemm, rows, wheel
from tests.oracles.aiter.launch import Run

# One rounding to bf16 or f16 of normal values; sums of products that were each rounded once more stay below twice that.
BF16, F16, F32 = 2.5e-3, 4e-4, 2e-7


# Deviations of objects other than experts that nobody can have intended; tests/oracles/test_aiter_doubtful.py proves them.
DEVIATIONS = {
    "gfx942/layer_norm_qnt.co": "leaves an eighth of a row out of its maximum",
    "gfx942/mla/mla_a8w8_qh16_qseqlen2_gqaratio16.co": "overwrites 96 elements of a query in LDS",
    "gfx950/mla/mla_a8w8_qh16_qseqlen2_gqaratio16.co": "overwrites 96 elements of a query in LDS",
    "gfx950/mla/mla_a8w8_qh16_qseqlen4_gqaratio16.co": "leaves half of its partial results unwritten",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of one object: the relative error of each against float64, and the bar each must meet."""

    run: Run
    errors: Mapping[str, float]
    bars: Mapping[str, float]

    @property
    def worst(self) -> float:
        return max(self.errors.values())

    def check(self) -> None:
        assert self.errors.keys() == self.bars.keys()
        missed = {key: error for key, error in self.errors.items() if not error <= self.bars[key]}
        assert not missed, f"errors {missed}, bars {dict(self.bars)}"


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    name: str
    label: str
    action: Callable[[], Outcome] = dataclasses.field(compare=False)
    sample: bool = False  # in the default run

    @property
    def target(self) -> str:
        return self.name.split("/")[0]

    @property
    def deviations(self) -> tuple[str, ...]:
        """How the object differs from what its name promises; it is then checked against what its instructions show."""
        if self.family == "fmoe":
            return experts.variant(self.name).deviations
        return (DEVIATIONS[self.name],) if self.name in DEVIATIONS else ()

    def __str__(self) -> str:
        return (
            f"{self.name.removesuffix('.co')}-{self.label}" if self.label else self.name.removesuffix(".co")
        )


def _names(fragment: str) -> list[str]:
    return sorted(name for name in wheel.objects() if fragment in name)


def forward_cases() -> Iterator[Case]:
    """The twelve files without rtne, rtna or rtz are left over from an older revision; AITER's tables do not use them."""
    sampled = ("MI300/fwd_hd128_bf16_causal_rtne", "MI308/fwd_hd128_bf16_rtna_group", "gfx950/")

    def action(name: str, label: str):
        def run() -> Outcome:
            if "group" in name:
                result = attention_forward.run_group(name, [(100, 130), (256, 256), (37, 300)], 4, 2)
            elif label == "unseen_rows":
                result = attention_forward.run_batch(name, 1, 300, 100, 2, 1)
            else:
                # The old causal file of MI300 masks the values of the last tile by the wrong length unless it is full.
                queries, keys = (256, 320) if name.endswith("MI300/fwd_hd128_bf16_causal.co") else (300, 333)
                result = attention_forward.run_batch(name, 1, queries, keys, 4, 2)
            rounding = name.startswith("gfx950") or "_rtn" in name
            bars = {
                "out": BF16 if rounding else 6e-3,
                "lse": 2e-6,
            }  # truncation is off by 1/2 unit on average
            return Outcome(result.run, {"out": result.error, "lse": result.lse_error}, bars)

        return run

    for name in _names("/fmha_v3_fwd/"):
        yield Case("fmha_v3_fwd", name, "", action(name, ""), any(part in name for part in sampled))
        if "causal_rtne.co" in name or (name.startswith("gfx950") and name.endswith("causal.co")):
            yield Case("fmha_v3_fwd", name, "unseen_rows", action(name, "unseen_rows"))


def backward_cases() -> Iterator[Case]:
    groups = [(100, 130), (200, 256), (37, 300)]

    def action(name: str, size: int = 0):
        def run() -> Outcome:
            kind = attention_backward.variant(name)
            if kind.group:
                result = attention_backward.run_group(name, groups, 2, 1, size)
            elif kind.mask == "swa":
                result = attention_backward.run_batch(
                    name, 1, 200, 333, 2, 1, window=(100, 50), bottom_right="_br" in name, size=size
                )
            elif kind.arguments == 352:
                result = attention_backward.run_batch(name, 1, 256, 256, 2, 1, size=size)
            else:
                result = attention_backward.run_batch(name, 1, 200, 333, 2, 1, size=size)
            exact = (
                BF16 if "_bf16_" in name else 1e-3
            )  # f16: P and dS are rounded before the second product too
            rounded = 2 * exact if "_rtz" in name else exact
            # dQ in 16 bits: one rounding, and for gfx942 one per tile of keys.
            sums = rounded if kind.wide else (3 if "_rtz" in name else 1.5) * exact
            bars = {"dq": sums, "dk": rounded, "dv": rounded}
            return Outcome(result.runs[0], result.errors, bars)

        return run

    sampled = (
        "gfx942/fmha_v3_bwd/bwd_hd64_bf16_causal_a16_rtne.co", "gfx942/fmha_v3_bwd/bwd_hd128_bf16_causal_br_a32_rtna_psskddv_group.co",
        "gfx942/fmha_v3_bwd/bwd_hd192_fp16_a32_psskddv.co", "gfx950/fmha_v3_bwd/bwd_hd128_bf16_causal_a16_psskddv_group.co",
        "gfx950/fmha_v3_bwd/bwd_hd192_hd128_bf16_a16_pssk.co", "gfx950/fmha_v3_bwd/bwd_hd128_fp16_causal_br_a32_psskddv.co",
        "gfx950/fmha_v3_bwd/bwd_hd128_bf16_swa_a32_rtne_psskddv.co",
    )  # fmt: skip
    for name in _names("/fmha_v3_bwd/"):
        if "dq_shuffle" in name:
            continue  # runs after every a16 file of gfx950
        yield Case("fmha_v3_bwd", name, "", action(name), name in sampled)
        if "ddv" in name or "_pddv" in name:
            size = 160 if "hd192" in name else 96
            yield Case(
                "fmha_v3_bwd", name, f"size_{size}", action(name, size), sample="fp16_a16_pddv" in name
            )


def gemm_cases() -> Iterator[Case]:
    def case(family: str, name: str, bar: float, function, *arguments: int, sample: bool = False) -> Case:
        def run() -> Outcome:
            result = function(name, *arguments)
            return Outcome(result.run, {"out": result.error}, {"out": bar})

        return Case(family, name, "x".join(map(str, arguments)), run, sample)

    for name in _names("/bf16gemm/"):
        yield case("bf16gemm", name, F32, gemm.bf16, 100, 128, 256, 1, sample="_48x" in name)
        yield case("bf16gemm", name, F32, gemm.bf16, 100, 128, 640, 3, sample="_96x" in name)
    for name in _names("/i8gemm/"):
        yield case("i8gemm", name, BF16, gemm.int8, 200, 256, 512, 1, sample="192" in name)
        yield case("i8gemm", name, 2 * BF16, gemm.int8, 200, 256, 512, 2, sample="128x128" in name)
        yield case("i8gemm", name, 2 * BF16, gemm.int8, 200, 256, 1024, 4)
    yield case("i8gemm", "gfx942/gemm_a8w8_m128_noSplitK.co", BF16, gemm.int8, 128, 256, 512, 1)
    for name in _names("/f4gemm/"):
        rows, columns = (int(part) for part in name.split("_")[-1].removesuffix(".co").split("x"))
        ragged = rows if rows > 100 else 100
        yield case(
            "f4gemm",
            name,
            BF16,
            gemm.float4,
            ragged,
            columns,
            512,
            sample="_192x256" in name,
        )
        if "noBpre" not in name and (rows, columns) in ((256, 256), (128, 512)):
            yield case("f4gemm", name, 2 * BF16, gemm.float4, rows, columns, 1024, 1, sample=rows == 256)
    for rows in (32, 64, 96, 128):
        name = f"gfx950/f8_block_scale_mi350_x{rows}.co"
        yield case("f8_block_scale", name, BF16, gemm.block_scaled_gfx950, rows, 256, 512)
        yield case("f8_block_scale", name, BF16, gemm.block_scaled_gfx950, 200, 512, 768, sample=rows == 96)
    name = "gfx942/flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co"
    yield case("flatmm", name, F16, gemm.block_scaled_gfx942, 128, 256, 256)
    yield case("flatmm", name, F16, gemm.block_scaled_gfx942, 200, 512, 384, sample=True)


def row_cases() -> Iterator[Case]:
    def norm(name: str):
        def run() -> Outcome:
            result = rows.layer_norm(name)
            # These kernels truncate: to bf16 after the sum and after the result, in int8 too.
            bars = {"residual": 3e-3, "out": 7e-2 if "qnt" in name else 9e-3, "scale": 1e-2}
            return Outcome(result.run, result.errors, {key: bars[key] for key in result.errors})

        return run

    def softmax(name: str, renormalised: bool):
        def run() -> Outcome:
            result = rows.top_k_softmax(name, renormalised)
            return Outcome(result.run, result.errors, {"weights": F32})

        return run

    for name in ("gfx942/layer_norm.co", "gfx942/layer_norm_qnt.co"):
        yield Case("layer_norm", name, "", norm(name), sample=True)
    for name in _names("/topksoftmax/"):
        for renormalised in (False, True):
            label = "renormalised" * renormalised
            yield Case(
                "topksoftmax", name, label, softmax(name, renormalised), "4x128x6" in name and renormalised
            )


def paged_cases() -> Iterator[Case]:
    def action(name: str, arguments: tuple):
        def run() -> Outcome:
            result = decode.paged(name, *arguments)
            bar = BF16 if "noquant" in name or "16w16" in name else 1.2e-2 if "Int8" in name else 3e-2
            bar = 1.6e-2 if name.endswith("_hp.co") else 1.2e-2 if name.endswith("_uhp.co") else bar
            return Outcome(result.run, {"out": result.error}, {"out": bar})

        return run

    sampled = (
        "pa_bf16_noquant_gqa8_1tg_4w.co",
        "Fp8_gqa8_1tg_4w_mtp_msk1",
        "pa_bf16_pertokenInt8_gqa16_2tg_4w.co",
    )
    for name in _names("/pa/"):
        sample = any(part in name for part in sampled)
        tokens = "2_tokens" if "_mtp_" in name else ""
        yield Case("pa", name, tokens, action(name, decode.paged_arguments(name)), sample)
        if not tokens and "gqa10" not in name:
            yield Case("pa", name, "5_of_a_group", action(name, ([130], 2, 5)))


def latent_cases() -> Iterator[Case]:
    """Without the persistent kernels (_ps), whose work lists are made by another kernel."""

    def action(name: str, bar: float, arguments: tuple, options: Mapping[str, object]):
        def run() -> Outcome:
            result = decode.latent(name, *arguments, **options)
            return Outcome(
                result.run, {"out": result.error, "lse": result.lse_error}, {"out": bar, "lse": 1e-4}
            )

        return run

    def prefill(name: str, arguments: tuple):
        def run() -> Outcome:
            result = decode.latent_prefill(name, *arguments)
            return Outcome(result.run, {"out": result.error}, {"out": BF16})

        return run

    for name in _names("/mla/"):
        if "_ps" in name:
            continue
        heads = decode.heads_of(name)
        if "_pfl_" in name:
            yield Case("mla", name, "", prefill(name, decode.prefill_arguments(name)), heads == 16)
            continue
        bar = BF16 if "16w16" in name else 2.5e-2
        seen = {"seen_query": decode.overwritten_query} if "qseqlen2" in name else {}
        for count in decode.tokens_of(name):
            for splits in (1, 2, 3):
                if "qseqlen4" in name and splits > 1 and name.startswith("gfx950"):
                    continue  # see test_aiter_doubtful.py
                label = f"{count}_tokens_{splits}_splits"
                arguments = [300, 333], heads, count
                sample = splits == 2 and ("subQ16" in name or "qh16_qseqlen1" in name)
                yield Case(
                    "mla", name, label, action(name, bar, arguments, {"splits": splits, **seen}), sample
                )


def expert_cases() -> Iterator[Case]:
    def one(name: str):
        def run() -> Outcome:
            kind = experts.variant(name)
            # One rounding of every part of the sum, and intermediate values that f32 rounds to the other side of a tie;
            # int8 activations quantized by the kernel itself are truncated twice.
            bar = (
                3.5e-3 if kind.weights == "none" else 8e-3 if kind.smooth and kind.weights == "int8" else 6e-3
            )
            result = experts.run(name, max(512, kind.least_dim))
            return Outcome(result.run, {"out": result.error}, {"out": bar})

        return run

    def first(name: str, activation: str, splits: int):
        def run() -> Outcome:
            result = experts.run_first_stage(name, activation, splits)
            bar = 2e-7 if splits else 2.6e-2 if "blockscale" in name else BF16
            return Outcome(result.run, {"out": result.error}, {"out": bar})

        return run

    sampled = (
        "gfx942/fmoe_f16.co", "gfx942/fmoe/silu/fmoe_bf16_pertokenInt8_g1u0_vs_silu_1tg_32x256.co",
        "gfx942/fmoe/gelu/fmoe_bf16_pertokenFp8_g1u1_vs_gelu_1tg_ps_32x128.co",
        "gfx942/fmoe/silu/fmoe_bf16_pertokenInt8_g1u1_smf_silu_1tg_32x256.co",
        "gfx942/fmoe/silu/fmoe_fp16_pertokenFp8_g1u1_vs_multix_silu_1tg_32x128.co",
        "gfx950/fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256.co",
        "gfx950/fmoe/silu/fmoe_bf16_pertokenMXfp4_g1u1_vs_silu_1tg_32x512.co",
        "gfx950/fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_vs_tkw1_silu_1tg_32x256.co",
    )  # fmt: skip
    for name in _names("fmoe"):
        if "/fmoe_2stages/" in name or "fmoe_stage1" in name:
            continue
        yield Case("fmoe", name, "", one(name), name in sampled)
    for name in _names("/fmoe_2stages/"):
        yield Case("fmoe_2stages", name, "", first(name, "silu", 0), "_32x128_3tg_pf2" in name)
        if "_32x128_3tg_pf2" in name and "Fp8_g1u1" in name:
            yield Case("fmoe_2stages", name, "gelu", first(name, "gelu", 0))
            yield Case("fmoe_2stages", name, "split", first(name, "silu", 1))


def family(name: str) -> str:
    """The folder that contains an object; objects outside the folders are assigned to the family they compute for."""
    if name.count("/") > 1:
        return name.split("/")[1]
    prefixes = {"all": "all_reduce", "pa_": "pa", "gemm_a8w8": "i8gemm", "fmoe": "fmoe"}
    prefixes |= {"f8_block_scale": "f8_block_scale", "flatmm": "flatmm", "layer_norm": "layer_norm"}
    file = name.split("/")[1]
    return next(value for prefix, value in prefixes.items() if file.startswith(prefix))


def also_run(name: str) -> bool:
    """Whether an object without cases of its own runs after others."""
    return "dq_shuffle" in name  # every a16 file of gfx950 needs one of them to finish its dQ


def cases() -> list[Case]:
    return [
        *forward_cases(),
        *backward_cases(),
        *gemm_cases(),
        *row_cases(),
        *paged_cases(),
        *latent_cases(),
        *expert_cases(),
    ]
