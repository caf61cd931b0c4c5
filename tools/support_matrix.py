#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/support.md: which calls have a kernel, from the built packs and from hipkittens.supported.

With --check it writes nothing, and fails when the committed page says something else.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch

import hipkittens
from hipkittens import _installation, supported

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "support.md"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
FOLDER = {
    "attention": "attention",
    "attention_varlen": "attention",
    "matmul": "gemm",
    "linear": "gemm",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "rotary": "rotary",
    "rotary_qk": "rotary",
}
# The gradients of these are the operation itself with other operands.
OWN_GRADIENT = ("gemm", "rotary")
BF16, F16, F32 = (DTYPES[name] for name in ("bf16", "f16", "f32"))

OPENING = """# What has a kernel

`python tools/support_matrix.py` writes this page from the kernels in the packs and from the answers of
`hipkittens.supported`, which are those of the operations themselves. A test holds it to them.

**Never run on silicon:** every kernel here. What is said to work works in the simulator.

`hipkittens.supported("attention", q, k, v, causal=True, target="gfx950")` answers for one call; its `reason` is the text of the
error that the call raises. Tensors may be on the meta device. What is refused raises: nothing falls back to PyTorch unless
`HIPKITTENS_BACKEND=torch` asks for it.
"""


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rows(target: str, folder: str) -> list[dict[str, str]]:
    return [
        entry["configuration"] for entry in _installation.pack(target).entries if entry["operation"] == folder
    ]


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def example(op: str, dtype: torch.dtype, size: int = 64):
    """Arguments of the usual shape."""
    x = meta(1, 32, 4, size, dtype=dtype)
    if op == "attention":
        return x, x, x
    if op == "attention_varlen":
        return *[x[0]] * 3, *[meta(2, dtype=torch.int32)] * 2, 32, 32
    if op in ("matmul", "linear"):
        return (meta(32, 32, dtype=dtype),) * 2
    if op in ("layer_norm", "rms_norm"):
        return x, meta(size, dtype=dtype)
    tables = (meta(32, 16, dtype=F32),) * 2
    return (x, x, *tables) if op == "rotary_qk" else (x, *tables)


def operations() -> str:
    body = []
    for op, target in itertools.product(FOLDER, _installation.TARGETS):
        cells = []
        for name, dtype in DTYPES.items():
            kinds = {
                "backward" if row["name"].startswith("backward") else "forward"
                for row in rows(target, FOLDER[op])
                if name in (row.get("input"), row.get("element"))
            }
            if FOLDER[op] in OWN_GRADIENT and kinds:
                kinds.add("backward")
            answer = supported(op, *example(op, dtype), target=target)
            if answer.ok != bool(kinds):
                raise SystemExit(
                    f"{op} {name} {target}: the call says '{answer.reason}', the pack holds {kinds}"
                )
            cells.append(", ".join(sorted(kinds, reverse=True)) or "refused")
        body.append([f"`{op}`", target, *cells])
    return "## Operations, dtypes, targets\n\n" + table(["operation", "target", *DTYPES], body)


def head_sizes() -> str:
    """Own kernels, or those of the next larger size."""
    text = "## Attention: head sizes\n\n"
    columns = [(kind, dropout) for kind in ("forward", "backward") for dropout in ("false", "true")]
    cells: dict[int, list[str]] = {}
    for size in range(1, 265):
        answers = {
            supported("attention", *example("attention", BF16, size), target=t) for t in _installation.TARGETS
        }
        (answer,) = answers
        if not answer.ok:
            cells[size] = ["refused"] * (len(columns) * 2)
            continue
        cells[size] = []
        for (kind, dropout), name in itertools.product(columns, ("bf16", "f16")):
            owns, schedules = set(), {}
            for target in _installation.TARGETS:
                have = [
                    row
                    for row in rows(target, "attention")
                    if row["name"].startswith(kind) and row.get("dropout") == dropout and row["input"] == name
                ]
                larger = [int(row["head_dim"]) for row in have if int(row["head_dim"]) >= size]
                if not larger:
                    raise SystemExit(
                        f"attention {kind} {name} {size} {target}: allowed, and no kernel is in the pack"
                    )
                names = {
                    row["schedule"].replace("_", "-")
                    for row in have
                    if "schedule" in row and int(row["head_dim"]) == min(larger)
                }
                schedules[target] = ", ".join(sorted(names))
                owns.add("own" if min(larger) == size else f"through {min(larger)}")
            (own,) = owns  # the targets have the same sizes; otherwise this page needs a table each
            each = dict.fromkeys(schedules.values())
            if own == "own" and len(each) > 1:
                own += f" ({'; '.join(f'{target}: {names}' for target, names in schedules.items())})"
            elif own == "own" and any(each):
                own += f" ({next(iter(each))})"
            cells[size].append(own)
    multiples = [size for size in cells if size % 8 == 0]
    groups = [
        (list(group), value) for value, group in itertools.groupby(multiples, key=lambda size: cells[size])
    ]
    others = {tuple(cells[size]) for size in cells if size % 8}
    if others != {("refused",) * (len(columns) * 2)}:
        raise SystemExit("a head size that is no multiple of 8 is allowed: this page says they are refused")
    body = [
        [str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}", *value]
        for sizes, value in groups
        if value[0] != "refused"
    ]
    body.append(["all others", *["refused"] * (len(columns) * 2)])
    head = [
        f"{kind}{', dropout' if dropout == 'true' else ''}, {name}"
        for (kind, dropout), name in itertools.product(columns, ("bf16", "f16"))
    ]
    text += table(["head size", *head], body)
    text += (
        f"\nBoth targets: {', '.join(_installation.TARGETS)}. \"through 128\" runs the kernel of size 128 on the tensors as they are, "
        "without a copy. Of\ngfx942 the interleaved schedule is taken where there is a large tile for every compute unit. `hipkittens.flash_attn` fills other sizes up to 256 with "
        "zeros, as flash-attn does.\n"
    )  # fmt: skip
    return text


def sizes() -> str:
    longest = {
        row["element"]: max(
            512 * int(other["waves"]) * int(other["chunks"])
            for other in rows(target, "norm")
            if other["name"].startswith("forward") and other["element"] == row["element"]
        )
        for target in _installation.TARGETS
        for row in rows(target, "norm")
        if row["name"].startswith("forward")
    }
    steps = sorted(
        {
            512 * int(row["waves"]) * int(row["chunks"])
            for row in rows(_installation.TARGETS[0], "norm")
            if row["name"].startswith("forward")
        }
    )
    tiles = sorted(
        {
            tuple(int(row[key]) for key in ("tile_m", "tile_n", "tile_k"))
            for row in rows(_installation.TARGETS[0], "gemm")
            if "tile_m" in row
        },
        reverse=True,
    )
    (limit,) = set(longest.values())
    return (
        "## Sizes\n\n"
        f"* Norms: rows of 1 to {limit} elements. A row is read once; kernels for up to "
        f"{', '.join(str(step) for step in steps)} elements.\n"
        "* Matrix products: any M, N and K. Tiles (M x N x K): "
        f"{', '.join('x'.join(map(str, tile)) for tile in tiles)}.\n"
        "* Rotary: 1 to features / 2 pairs of any number of features.\n"
        "* Any strides, and tensors above 4 GiB. Which strides cost a copy stands with each function.\n"
    )


def call_rows() -> list[tuple[str, str, tuple, dict]]:
    q, k, one = meta(2, 33, 8, 64), meta(2, 47, 2, 64), meta(1, 33, 8, 64)
    packed, ends = meta(33, 8, 64), meta(3, dtype=torch.int32)
    x, w, cos = meta(4, 96), meta(96), meta(64, 32, dtype=F32)
    return [
        ("causal, fewer key heads, other lengths", "attention", (q, k, k), {"causal": True}),
        ("a window, LSE returned", "attention", (q, k, k), {"window_size": (128, 0), "return_lse": True}),
        ("dropout", "attention", (q, k, k), {"dropout_p": 0.1}),
        ("heads before tokens", "attention", [t.transpose(1, 2) for t in (q, k, k)], {"layout": "bhnd"}),
        ("no keys", "attention", (q, k[:, :0], k[:, :0]), {}),
        ("`deterministic=False`", "attention", (q, k, k), {"deterministic": False}),
        ("heads that do not divide", "attention", (q[:, :, :7], k, k), {}),
        ("a head size of its own for v", "attention", (q, k, k[..., :32]), {}),
        ("float32", "attention", (q.float(), k.float(), k.float()), {}),
        ("packed sequences", "attention_varlen", (packed, packed, packed, ends, ends, 20, 20), {"causal": True}),
        ("packed sequences, int64 ends", "attention_varlen", (packed, packed, packed, ends.long(), ends.long(), 20, 20), {}),
        ("softcap", "flash_attn.flash_attn_func", (q, k, k), {"softcap": 30.0}),
        ("ALiBi", "flash_attn.flash_attn_func", (q, k, k), {"alibi_slopes": meta(8, dtype=F32)}),
        ("paged keys", "flash_attn.flash_attn_varlen_func", (packed, packed, packed, ends, ends, 20, 20),
         {"block_table": meta(2, 4, dtype=torch.int32)}),
        ("transposed operands, bias, float32 result", "matmul", (x.mT, x), {"bias": w, "out_dtype": F32}),
        ("batches that broadcast", "matmul", (meta(3, 1, 4, 8), meta(2, 8, 5)), {}),
        ("two input dtypes", "matmul", (x, x.mT.half()), {}),
        ("float32 operands", "matmul", (x.float(), x.mT.float()), {}),
        ("residual, dropout, float32 weight", "layer_norm", (x, w.float()), {"residual": x, "dropout_p": 0.1}),
        ("rows of 65537", "layer_norm", (meta(2, 65537), None), {}),
        ("weight alone, residual returned", "rms_norm", (x, w), {"residual": x, "return_residual": True}),
        ("interleaved, in place, position ids", "rotary", (one, cos, cos),
         {"interleaved": True, "inplace": True, "positions": meta(33, dtype=torch.int64)}),
        ("packed sequences", "rotary", (packed, cos, cos), {"cu_seqlens": ends}),
        ("queries and keys in one launch, partial", "rotary_qk", (q, meta(2, 33, 2, 64), cos[:, :16], cos[:, :16]), {}),
        ("more pairs than features", "rotary", (one[..., :60], cos, cos), {}),
    ]  # fmt: skip


def options() -> str:
    body = []
    for what, op, arguments, keywords in call_rows():
        (answer,) = {supported(op, *arguments, target=target, **keywords) for target in _installation.TARGETS}
        body.append([f"`{op}`", what, "yes" if answer.ok else answer.reason])
    return "## Options\n\n" + table(["operation", "call", "answer"], body)


def page() -> str:
    with hipkittens.simulate():  # the answers do not depend on this machine
        return "\n".join((OPENING, operations(), head_sizes(), sizes(), options()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the committed page is another")
    if parser.parse_args().check:
        if PAGE.read_text() != page():
            raise SystemExit(f"{PAGE.relative_to(ROOT)} is out of date: run tools/support_matrix.py")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
