# SPDX-License-Identifier: MIT
"""The cases of attention: the output, the LSE and the gradients of q, k and v."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from parity_operation import DTYPES, Operation, Result, dense_leaf, leaf, simulated, with_gaps

import hipkittens
from hipkittens._accuracy import FLOAT32_UNIT_ROUNDOFF

QUERIES = (17, 1, 2, 64, 255, 257)
KEYS = (130, 1, 2, 17, 255, 257)
HEADS = ((4, 2), (1, 1), (3, 1), (4, 4), (5, 1), (4, 1), (8, 1))  # heads of q, heads of k and v
HEAD_SIZES = (64, 8, 40, 80, 104, 128, 192, 256)
# normal; large: scores of some hundreds; growing: every tile's scores exceed those of the previous one; late: the scores of the last
# quarter far exceed all earlier ones; mean: values far from zero.
VALUES = ("normal", "large", "growing", "late", "mean")
STORAGE = ("dense", "swapped", "gap", "odd", "packed", "loose", "expanded")
WINDOWS = ((-1, -1), (20, -1), (40, 9), (0, 0), (-1, 3))
SCALES = (None, -0.3, 0.0, 2.0, 1e-3)
TERMS = ("none", "sinks", "softcap", "alibi", "all")
BASELINE = (
    "PyTorch with float32 scores and softmax; unnormalized P, dS and results rounded to the inputs' dtype"
)


def hidden(n_q: int, n_k: int, causal: bool, window: tuple[int, int]) -> torch.Tensor:
    """The keys that are hidden from each query: flash-attention's rule, aligned to the bottom right."""
    place, key = torch.arange(n_q)[:, None] + n_k - n_q, torch.arange(n_k)[None, :]
    mask = torch.zeros(n_q, n_k, dtype=torch.bool)
    if causal:
        mask |= key > place
    if window[0] >= 0:
        mask |= key < place - window[0]
    if window[1] >= 0:
        mask |= key > place + window[1]
    return mask


class Terms(NamedTuple):
    """The transformation of scaled scores before the softmax; sinks and slopes are float32 (heads,)."""

    sinks: torch.Tensor | None = None
    softcap: float = 0.0
    slopes: torch.Tensor | None = None

    @classmethod
    def of_case(cls, name: str, heads: int) -> Terms:
        place = torch.arange(1, heads + 1).float()
        slopes = 2 ** (-8 * place / heads) if "alibi" in name or name == "all" else None
        sinks = 3 * torch.sin(5 * place) if "sinks" in name or name == "all" else None
        return cls(sinks, 3.0 if "softcap" in name or name == "all" else 0.0, slopes)

    def options(self) -> dict[str, Any]:
        return {"softcap": self.softcap, "alibi_slopes": self.slopes}

    def scores(self, scaled: torch.Tensor) -> torch.Tensor:
        """Scores from scaled products (B, H, n_q, n_k)."""
        if self.softcap:
            scaled = self.softcap * torch.tanh(scaled / self.softcap)
        if self.slopes is not None:
            n_q, n_k = scaled.shape[-2:]
            away = (torch.arange(n_q)[:, None] + n_k - n_q - torch.arange(n_k)).abs()
            scaled = scaled - self.slopes.to(scaled.dtype)[:, None, None] * away
        return scaled

    def derivative(self, scaled: torch.Tensor) -> torch.Tensor | float:
        return 1 - torch.tanh(scaled / self.softcap) ** 2 if self.softcap else 1.0

    def with_sinks(self, lse: torch.Tensor) -> torch.Tensor:
        """The logarithm of the sum of a query's weights including sinks, (B, H, n_q)."""
        return lse if self.sinks is None else torch.logaddexp(lse, self.sinks.to(lse.dtype)[:, None])

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """exp(score - LSE) of scores that are -inf where a key is hidden; 0 for a query that sees nothing."""
        lse = scores.logsumexp(-1)
        start = self.with_sinks(lse).masked_fill(lse.isneginf(), 0)
        return (scores - start[..., None]).exp()


NONE = Terms()


def steps(q, k, v, scale, mask, terms=NONE):
    """Attention written out in the dtype of its inputs; and the LSE, which is -inf for queries that see nothing."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(t.repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v))
    scores = terms.scores((q @ k.mT) * scale)
    dead = mask.all(-1, keepdim=True)
    scores = scores.masked_fill(mask & ~dead, float("-inf"))
    if terms.sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        weights = (scores - terms.with_sinks(scores.logsumexp(-1))[..., None]).exp()
    weights = weights.masked_fill(dead, 0)
    lse = scores.logsumexp(-1).masked_fill(dead.squeeze(-1), float("-inf"))
    return (weights @ v).transpose(1, 2), lse


def exact_operands(q, k, v, grad_out) -> tuple[torch.Tensor, ...]:
    """The operands in float64 and (batch, heads, rows, size), with a key head for every query head."""
    group = q.shape[2] // k.shape[2]
    q, k, v, grad_out = (t.double().transpose(1, 2) for t in (q, k, v, grad_out))
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), grad_out


def exact_weights(q, k, scale, mask, terms=NONE) -> torch.Tensor:
    """The weights of such operands; zero for a query that sees nothing."""
    return terms.weights(terms.scores(q @ k.mT * scale).masked_fill(mask, float("-inf")))


def in_mixed_precision(q, k, v, grad_out, grad_lse, scale, mask, terms=NONE) -> tuple[torch.Tensor, ...]:
    """out, dq, dk, dv, the LSE and the gradient of sinks (None without) as PyTorch computes them with float32 scores and softmax,
    whose operands have the inputs' dtype.

    P = softmax(S), dS, the output and the gradients are rounded to that dtype, and delta = rowsum(dO O) uses the rounded output:
    FlashAttention-2's formulas (Dao 2023), as in PyTorch's fused attention on GPUs. Sums are float32. The output's P is rounded
    before its normalization, relative to the maximum of the first keys that a query sees, as where rescaling is skipped
    (FlashAttention-4): a weight near 1 then has the same error as any other, which matters where one key has nearly all the weight. With
    sinks the output and the LSE have one P each, and separate gradients that are rounded before they are added.
    """
    dtype, group = q.dtype, q.shape[2] // k.shape[2]
    if not mask.numel():  # no key, or no query
        nothing = q.new_full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"), dtype=torch.float32)
        no_sinks = None if terms.sinks is None else torch.zeros_like(terms.sinks)
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), *map(torch.zeros_like, (q, k, v)), nothing, no_sinks
    q, k, v, grad_out = (t.float().transpose(1, 2) for t in (q, k, v, grad_out))
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))

    def rounded(value):
        return value.to(dtype).float()

    # Scores in the order of matrix cores, which sum 16 features at a time.
    scaled = sum(one @ other.mT for one, other in zip(q.split(16, -1), k.split(16, -1), strict=True)) * scale
    scores = terms.scores(scaled).masked_fill(mask, float("-inf"))
    lse = scores.logsumexp(-1)
    p = terms.weights(scores)
    unnormalised = _power_of_2_apart(lse, scores)
    out = rounded(rounded(p * unnormalised) @ v / unnormalised)
    of_out = (grad_out * out).sum(-1, keepdim=True)
    of_scores = [p * (grad_out @ v.mT - of_out)]
    if grad_lse is not None:
        of_scores.append(NONE.weights(scores) * grad_lse[..., None])
    if terms.sinks is None:  # one P serves both
        of_scores = [sum(of_scores)]
    ds = [rounded(part * terms.derivative(scaled)) for part in of_scores]
    of_queries = sum(rounded(part @ k * scale) for part in ds)
    of_keys = sum(rounded(_over_group(part.mT @ q * scale, group)) for part in ds)
    found = (out, of_queries, of_keys, _over_group(rounded(p).mT @ grad_out, group))
    of_sinks = None
    if terms.sinks is not None:
        of_sinks = -(sink_weights(lse, terms) * of_out.squeeze(-1)).sum((0, 2))
    return *(value.transpose(1, 2).to(dtype) for value in found), lse, of_sinks


def _power_of_2_apart(lse: torch.Tensor, scores: torch.Tensor, first: int = 64) -> torch.Tensor:
    """Between 1 and 2: exp(LSE - reference) times a power of 2. The reference is the largest of the `first` scores that a query
    (B, H, n_q, 1) sees."""
    seen = ~scores.isneginf()
    reference = scores.masked_fill(seen.cumsum(-1) > first, float("-inf")).amax(-1)
    logarithm = ((lse - reference) / math.log(2)).nan_to_num()
    return torch.exp2(logarithm - logarithm.floor())[..., None]


def _over_group(gradient: torch.Tensor, group: int) -> torch.Tensor:
    """The sums over the query heads that share a key head, for (B, H, ...)."""
    return gradient.unflatten(1, (-1, group)).sum(2)


def sink_weights(lse: torch.Tensor, terms: Terms) -> torch.Tensor:
    """The weight of the sink for each query (B, H, n_q); 0 where the query sees nothing, since it has no output then."""
    share = (terms.sinks.to(lse.dtype)[:, None] - terms.with_sinks(lse)).exp()
    return share.masked_fill(lse.isneginf(), 0)


def largest_of(values: torch.Tensor) -> float:
    """The largest absolute value; 0 without any, as of a batch that has no queries."""
    return values.abs().max().item() if values.numel() else 0.0


def gradient_magnitudes(q, k, v, grad_out, scale, mask, grad_lse=None, terms=NONE) -> tuple[float, ...]:
    """The sums of absolute values to which the allowances for the gradients of q, k, v and, if there are some, sinks are proportional.

    Those of q and k contain differences of two float32 sums, which may cancel, as with a single key: 4 roundings. A gradient of
    the LSE is one more term of that difference; it does not affect that of v. The gradients of sinks, of which there are few,
    come from the rounded output: 3 standard deviations of a sum of such roundings.
    """
    dtype, group = q.dtype, q.shape[2] // k.shape[2]
    q, k, v, grad_out = exact_operands(q, k, v, grad_out)
    p = exact_weights(q, k, scale, mask, terms)
    of_values = grad_out.abs() @ v.abs().mT
    of_out = (p * of_values).sum(-1, keepdim=True)
    ds = p * (of_values + of_out)
    if grad_lse is not None:
        ds = (
            ds
            + exact_weights(q, k, scale, mask, terms._replace(sinks=None))
            * grad_lse.double().abs()[..., None]
        )
    ds = ds * abs(scale)
    sums = (ds @ k.abs(), ds.mT @ q.abs(), p.mT @ grad_out.abs())
    found = tuple(count * largest_of(value) for count, value in zip((4, 4 * group, group), sums, strict=True))
    if terms.sinks is None:
        return found
    lse = terms.scores(q @ k.mT * scale).masked_fill(mask, float("-inf")).logsumexp(-1)
    products = sink_weights(lse, terms)[..., None] * grad_out * (p @ v)
    deviation = torch.finfo(dtype).eps / 2 / 3**0.5 * products.square().sum((0, 2, 3)).sqrt().max().item()
    return *found, 3 * deviation / FLOAT32_UNIT_ROUNDOFF


def draw(case: dict, seed: int, n_q: int, n_k: int, batch: int) -> list[torch.Tensor]:
    """q, k, v and the gradient of the output, (batch, rows, heads, size) with the values the case names."""
    generator = torch.Generator().manual_seed(seed)
    (heads, key_heads), size, dtype = case["heads"], case["size"], DTYPES[case["dtype"]]
    value_size = case["value_size"] or size
    q, k, v, grad = (
        torch.randn(batch, rows, count, width, generator=generator)
        for rows, count, width in (
            (n_q, heads, size), (n_k, key_heads, size), (n_k, key_heads, value_size), (n_q, heads, value_size),
        )
    )  # fmt: skip
    kind, place = case["values"], torch.arange(n_k)[None, :, None, None]
    if kind == "large":
        q, k = q * 8, k * 4
    elif kind == "growing":  # q k^T of about 0.7 place
        q, k = q + 1, k + place * 0.7 / size
    elif kind == "late":
        q, k = q.abs(), torch.where(place >= n_k * 3 // 4, k.abs() * 2, k - 0.5)
    elif kind == "mean":
        v = v + 10
    return [value.to(dtype) for value in (q, k, v, grad)]


def store(values: list[torch.Tensor], storage: str) -> list[torch.Tensor]:
    """The same values with other strides. expanded and packed change them: heads repeat, or share one tensor."""
    q, k, v, *rest = values
    if storage == "swapped":  # (B, H, N, D) in memory
        return [value.transpose(1, 2).contiguous().transpose(1, 2) for value in values]
    if storage == "gap":
        return [with_gaps(value, 2, 4) for value in values]
    if storage == "odd":
        return [with_gaps(value, 1, 2) for value in values]
    if storage == "loose":  # no unit stride along D
        return [value.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0) for value in values]
    if storage == "packed":  # (B, N, 2, H, D), and a gradient with strides of zero
        if k.shape == v.shape:
            k, v = torch.stack([k, v], dim=2).unbind(2)
        return [q, k, v, *(value[:, :, :1, :1].expand_as(value) for value in rest)]
    if storage == "expanded":
        return [
            q,
            k[:1, :, :1].expand_as(k),
            v[:1].expand_as(v),
            *(value[..., :1].expand_as(value) for value in rest),
        ]
    return values


def _run(target: str, case: dict, seed: int) -> list[Result]:
    n_q, n_k = case["n_q"], case["n_k"]
    q, k, v, grad = store(draw(case, seed, n_q, n_k, case["batch"]), case["storage"])
    grad_lse = None
    if case["lse_gradient"]:
        grad_lse = torch.randn(
            case["batch"], case["heads"][0], n_q, generator=torch.Generator().manual_seed(seed)
        )
    heads_first, causal, window = case["layout"] == "bhnd", case["causal"], tuple(case["window"])
    scale = case["size"] ** -0.5 if case["scale"] is None else case["scale"]
    mask, terms = hidden(n_q, n_k, causal, window), Terms.of_case(case["terms"], case["heads"][0])

    def ours(q, k, v, sinks=None):
        if heads_first:
            q, k, v = (value.transpose(1, 2) for value in (q, k, v))
        out, lse = hipkittens.attention(
            q,
            k,
            v,
            causal=causal,
            window_size=window,
            scale=case["scale"],
            layout=case["layout"],
            return_lse=True,
            sinks=sinks,
            **terms.options(),
        )
        return (out.transpose(1, 2) if heads_first else out), lse

    def results(function, make_leaf, dtype):
        leaves = [make_leaf(value, dtype) for value in (q, k, v, terms.sinks) if value is not None]
        out, lse = function(*leaves)
        outputs, gradients = [out], [grad.to(out.dtype)]
        if grad_lse is not None:
            outputs, gradients = [out, lse], [*gradients, grad_lse.to(lse.dtype)]
        found = torch.autograd.grad(outputs, leaves, gradients)
        return [out.detach(), *found, None if lse is None else lse.detach()]

    with simulated(target):
        mine = results(ours, leaf, None)
    exact = results(
        lambda q, k, v, sinks=None: steps(q, k, v, scale, mask, terms._replace(sinks=sinks)),
        dense_leaf,
        torch.float64,
    )
    *baselines, lse, of_sinks = in_mixed_precision(q, k, v, grad, grad_lse, scale, mask, terms)
    magnitudes = (
        largest_of(v.double()),
        *gradient_magnitudes(q, k, v, grad, scale, mask, grad_lse, terms),
    )
    found = named_results(mine, [*baselines, of_sinks], exact, magnitudes)
    found.append(lse_result(mine[-1], exact[-1], lse, score_magnitude(q, k, scale, terms)))
    if case["copies"] > 1:
        with simulated(target), torch.no_grad():
            many = ours(
                *(value.expand(case["copies"], *value.shape[1:]) for value in (q, k, v)), terms.sinks
            )[0]
        many = (
            many[:1] if torch.equal(many, many[:1].expand_as(many)) else torch.full_like(many[:1], torch.nan)
        )
        found.append(Result("out_of_many", many, baselines[0][:1], exact[0][:1], magnitudes[0], BASELINE))
    return found


def named_results(mine, baselines, exact, magnitudes) -> list[Result]:
    """The results for the output and the gradients of q, k, v and, if it has one, sinks."""
    names = ("out", "dq", "dk", "dv", "dsinks")[: len(magnitudes)]
    return [
        Result(name, mine[i], baselines[i], exact[i], magnitudes[i], BASELINE) for i, name in enumerate(names)
    ]


def score_magnitude(q: torch.Tensor, k: torch.Tensor, scale: float, terms: Terms = NONE) -> float:
    """An upper bound of the largest sum of absolute values that a score consists of."""
    largest = abs(scale) * largest_of(q.double().norm(dim=-1)) * largest_of(k.double().norm(dim=-1))
    farthest = 0.0 if terms.slopes is None else terms.slopes.max().item() * (q.shape[1] + k.shape[1])
    # A tanh as 1 - 2 / (1 + e): three roundings of numbers up to twice the cap.
    return largest + 6 * terms.softcap + farthest


def lse_result(mine: torch.Tensor, exact: torch.Tensor, other: torch.Tensor, scores: float) -> Result:
    """The LSE: ours is float32, so the baseline is too. Rounded are the score, the logarithm of the sum, and the total. Ours is also in
    base 2, for which the scale, the score and the conversion back are rounded, while the baseline's scale may be a power of 2."""
    seen = ~exact.isneginf()
    if not torch.equal(mine.isneginf(), ~seen):
        mine = torch.full_like(mine, float("nan"))
    largest = largest_of(exact[seen])
    mine, exact, other = (value.masked_fill(~seen, 0) for value in (mine, exact, other))
    return Result("lse", mine, other, exact, scores + 5 * (1 + largest), BASELINE)


def _many_workgroups():
    """Problems that fill the device with large tiles, which other kernels process; and long keys, which are split."""
    for number, (size, dtype) in enumerate((s, d) for s in (64, 128) for d in ("bf16", "f16")):
        for n_q, n_k, causal, window in (
            (130, 130, True, (-1, -1)), (150, 470, False, (-1, -1)), (257, 300, False, (40, 9)),
        ):  # fmt: skip
            yield {"batch": 1, "heads": (8, (2, 8)[number % 2]), "size": size, "dtype": dtype, "n_q": n_q, "n_k": n_k,
                   "causal": causal, "window": window, "values": VALUES[(number + n_q) % 5], "copies": 39}  # fmt: skip
    for size, dtype in ((64, "bf16"), (128, "f16"), (256, "bf16")):
        for terms in ("none", "sinks", "all"):
            yield {
                "n_q": 3,
                "n_k": 1500,
                "heads": (4, 2),
                "size": size,
                "dtype": dtype,
                "values": "growing",
                "terms": terms,
            }
    for dtype in ("bf16", "f16"):  # DeepSeek's head sizes
        yield {
            "n_q": 130,
            "n_k": 130,
            "heads": (3, 3),
            "size": 192,
            "value_size": 128,
            "dtype": dtype,
            "causal": True,
        }


ATTENTION = Operation(
    "attention",
    {
        "n_q": QUERIES,
        "n_k": KEYS,
        "heads": HEADS,
        "size": HEAD_SIZES,
        "batch": (1, 2),
        "dtype": ("bf16", "f16"),
        "causal": (False, True),
        "window": WINDOWS,
        "scale": SCALES,
        "values": VALUES,
        "layout": ("bnhd", "bhnd"),
        "storage": STORAGE,
        "lse_gradient": (False, True),
        "terms": TERMS,
        "value_size": (None, 128, 64, 8),
        "copies": (1,),  # of the batch, by strides of zero; each must give the same bits
    },
    _run,
    {
        "n_q": lambda choose: int(2 ** choose.uniform(0, 9)),
        "n_k": lambda choose: int(2 ** choose.uniform(0, 9.5)),
        "heads": lambda choose: (choose.randint(1, 4) * (key_heads := choose.randint(1, 4)), key_heads),
        "size": lambda choose: 8 * choose.randint(1, 32),
        "window": lambda choose: choose.choice(((-1, -1), (choose.randint(0, 300), choose.randint(-1, 99)))),
        "scale": lambda choose: choose.choice((None, choose.uniform(-0.5, 0.5))),
    },
    tuple(_many_workgroups()),
)


# Lengths of the sequences, for q and k.
PACKS = (
    ((5, 17, 1), (5, 17, 1)), ((1,), (1,)), ((130,), (257,)), ((0, 9, 0, 4), (3, 0, 20, 4)), ((64, 64), (64, 128)),
    ((1, 1, 1, 1, 1), (33, 2, 257, 64, 1)), ((255, 2), (257, 17)),
)  # fmt: skip


def _run_packed(target: str, case: dict, seed: int) -> list[Result]:
    lengths_q, lengths_k = case["lengths"]
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    q, k, v, grad = (value[0] for value in store(draw(case, seed, total_q, total_k, 1), case["storage"]))
    causal, window = case["causal"], tuple(case["window"])
    scale = case["size"] ** -0.5 if case["scale"] is None else case["scale"]
    ends_q, ends_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k))
    masks = [hidden(*pair, causal, window) for pair in zip(lengths_q, lengths_k, strict=True)]
    terms = Terms.of_case(case["terms"], case["heads"][0])

    def ours(q, k, v, sinks=None):
        return hipkittens.attention_varlen(
            q, k, v, ends_q, ends_k, max(lengths_q) + case["slack"], max(lengths_k) + case["slack"], causal=causal,
            window_size=window, scale=case["scale"], return_lse=True, sinks=sinks, **terms.options(),
        )  # fmt: skip

    def sequences(q, k, v):
        """(1, rows, heads, size) of each sequence, with its mask."""
        parts = (
            value.unsqueeze(0).split(tuple(n), 1)
            for value, n in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
        )
        return zip(*parts, masks, strict=True)

    def one_by_one(q, k, v, sinks=None):
        found = []
        for one_q, one_k, one_v, mask in sequences(q, k, v):
            if mask.numel():
                found.append(steps(one_q, one_k, one_v, scale, mask, terms._replace(sinks=sinks)))
            else:  # no key: zero; no query: nothing
                nothing = one_q[..., :1] * 0
                found.append(
                    (
                        nothing.expand(*one_q.shape[:-1], v.shape[-1]),
                        nothing.detach()[..., 0].transpose(1, 2) - torch.inf,
                    )
                )
        out, lse = (list(part) for part in zip(*found, strict=True))
        return torch.cat(out, 1)[0], torch.cat(lse, 2)[0]

    def results(function, make_leaf, dtype):
        leaves = [make_leaf(value, dtype) for value in (q, k, v, terms.sinks) if value is not None]
        out, lse = function(*leaves)
        gradients = torch.autograd.grad(out, leaves, grad.to(out.dtype), materialize_grads=True)
        return [out.detach(), *gradients, lse.detach()]

    with simulated(target):
        mine = results(ours, leaf, None)
    exact = results(one_by_one, dense_leaf, torch.float64)
    parts = [
        (*part[:3], part_grad, None, scale, part[3])
        for part, part_grad in zip(
            sequences(q, k, v), grad.unsqueeze(0).split(tuple(lengths_q), 1), strict=True
        )
    ]
    by_sequence = [in_mixed_precision(*part, terms) for part in parts]
    *baselines, lses, of_sinks = zip(*by_sequence, strict=True)
    baselines = [torch.cat(each, 1)[0] for each in baselines]
    each = [gradient_magnitudes(*part[:4], scale, part[6], None, terms) for part in parts]
    *magnitudes, last = (list(values) for values in zip(*each, strict=True))
    magnitudes = [max(values) for values in magnitudes]
    magnitudes.append(
        max(last) if terms.sinks is None else math.hypot(*last)
    )  # all sequences share the sinks
    baselines.append(None if terms.sinks is None else sum(of_sinks))
    found = named_results(mine, baselines, exact, (largest_of(v.double()), *magnitudes))
    of_scores = score_magnitude(q.unsqueeze(0), k.unsqueeze(0), scale, terms)
    return [*found, lse_result(mine[-1], exact[-1], torch.cat(lses, 2)[0], of_scores)]


ATTENTION_VARLEN = Operation(
    "attention_varlen",
    {
        "lengths": PACKS,
        "heads": HEADS,
        "size": (64, 8, 40, 80, 128, 136, 256),
        "dtype": ("bf16", "f16"),
        "causal": (False, True),
        "window": WINDOWS,
        "scale": SCALES,
        "values": VALUES,
        "storage": ("dense", "gap", "swapped", "packed"),
        "terms": TERMS,
        "value_size": (None, 128, 64),
        "slack": (0, 70),  # how far the length that the caller states exceeds the longest sequence
    },
    _run_packed,
    {
        "lengths": lambda choose: tuple(
            zip(
                *((choose.randint(0, 150), choose.randint(1, 300)) for _ in range(choose.randint(1, 5))),
                strict=True,
            )
        ),
        "size": lambda choose: 8 * choose.randint(1, 32),
        "slack": lambda choose: choose.randint(0, 200),
    },
)
