# SPDX-License-Identifier: MIT
"""hipkittens.supported gives the same answer as the call itself."""

import importlib
import inspect
import itertools
import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hipkittens
from hipkittens import QuantSpec, _installation, operations, supported

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
TARGETS = _installation.TARGETS


class Draw:
    """Draws arguments that are mostly valid: each property is wrong once in a while."""

    def __init__(self, seed):
        self.choose = random.Random(seed)

    def mostly(self, right, *wrong, odds=0.06):
        return self.choose.choice(wrong) if self.choose.random() < odds else right

    def one_of(self, *values):
        return self.choose.choice(values)

    def tensor(self, shape, dtype):
        """A tensor of the shape, or of a wrong one; with unusual strides, layouts, devices and dtypes."""
        shape = list(shape)
        if shape and self.choose.random() < 0.06:
            axis = self.choose.randrange(len(shape))
            shape = self.one_of(shape[:-1], [1, *shape], [*shape[:axis], shape[axis] + 1, *shape[axis + 1 :]])
        dtype = self.mostly(dtype, F16, BF16, F32, F64, torch.int32)
        value = torch.ones(shape).to(dtype)
        if len(shape) > 1 and self.choose.random() < 0.2:
            value = value.mT.contiguous().mT
        if self.choose.random() < 0.02:
            return self.one_of(None, [1.0], 2, value.to("meta"), value.to_sparse())
        return value

    def of_record(self, name):
        """For a function whose arguments need no rules of their own: the usual ones, and every option's default, or in half of
        the draws at least one that is not."""
        (function,) = (
            each for operation in operations.every() for each in operation.functions if each.name == name
        )
        dtype = self.one_of(BF16, F16, F32)
        arguments = [
            self.tensor(value.shape, value.dtype) if isinstance(value, torch.Tensor) else value
            for value in function.arguments(lambda *shape, dtype=dtype: torch.ones(shape, dtype=dtype), dtype)
        ]
        parameters = list(inspect.signature(function.function).parameters.values())[len(arguments) :]
        wrong = (None, "other", -1, [1], ("a", 1), float("nan"), True)
        odds = 1 - 0.5 ** (1 / max(len(parameters), 1))
        return arguments, {
            each.name: self.mostly(function.options.get(each.name, each.default), *wrong, odds=odds)
            for each in parameters
        }

    def activation(self):
        kinds = ("silu", "gelu_tanh", "gelu", "relu", "tanh")
        wrong = ("swiglu", "mish", 1, None, "SiLU", "", "sigmoid", 0.5)
        x = self.tensor((4, self.choose.randint(1, 9)), self.one_of(BF16, F16, F32))
        return [x, self.mostly(self.one_of(*kinds), *wrong, odds=0.2)], {}

    def softmax(self):
        x = self.tensor((4, self.choose.randint(1, 9)), self.one_of(BF16, F16, F32))
        return [x], {
            "dim": self.mostly(self.one_of(-1, 0, 1), 2, -3, None, 0.5, True, "last", (0,), odds=0.3)
        }

    def mul_add(self):
        shape, dtype = (4, self.choose.randint(1, 9)), self.one_of(BF16, F16, F32)
        a, b = (
            self.mostly(
                self.one_of(2.0, self.tensor((1,), dtype), self.tensor(shape, dtype)), None, "2", odds=0.15
            )
            for _ in range(2)
        )
        out = self.mostly(None, torch.ones(shape, dtype=dtype), torch.ones(3), True, odds=0.3)
        return [self.tensor(shape, dtype), a, b], {"out": out}

    def scaled_operands(self, n):
        """a, b and their scales, for a gfx942, and options; K of 96."""
        fp8, wrong = torch.float8_e4m3fnuz, (torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.int8, F32)
        a, w = (torch.ones(rows, 96).to(self.mostly(fp8, *wrong, odds=0.15)) for rows in (5, n))
        scales = [self.tensor(shape, F32) for shape in self.mostly(((5, 1), (1, n)), ((5,), (n,)), ((), ()))]
        return [self.mostly(a, a[:, :95], a[0], None), self.mostly(w.t(), w), *scales], {
            "recipe": self.mostly(None, "row", "1x32", ("1x128", "128x128"), "rows", 3, odds=0.2),
            "swizzle": self.mostly(None, "shuffled", 1, odds=0.1),
            "bias": self.mostly(None, self.tensor((n,), F32), torch.ones(3), 1.0, odds=0.3),
        }

    def scaled_matmul_multiply_add(self):
        operands, options = self.scaled_operands(7)
        terms = [
            self.mostly(
                self.one_of(2.0, *(self.tensor(shape, BF16) for shape in ((5, 7), (7,), (5, 1)))), None, "2"
            )
            for _ in range(2)
        ]
        return [*operands, *terms], options | {
            "activation": self.mostly(None, "silu", "relu", "tanh", 1, odds=0.2),
            "out_dtype": self.mostly(BF16, F16, F32, F64, torch.float8_e4m3fnuz, None, odds=0.2),
        }

    def scaled_matmul_concat_heads(self):
        operands, options = self.scaled_operands(24)
        joined = self.tensor((5, self.mostly(3, 2, 5), 4), self.one_of(BF16, F16, F32))
        return [
            *operands,
            joined,
            self.mostly(self.choose.randint(0, 8), 13, -1, 2.0, None, odds=0.15),
        ], options

    def split_heads(self):
        q, kv = self.choose.randint(1, 9), self.choose.randint(1, 9)
        x = self.tensor((4, q + 2 * kv), self.one_of(BF16, F16, F32))
        sizes = [self.mostly(size, size + 1, -1, 2.0, None, odds=0.15) for size in (q, kv)]
        return [x, *sizes], {}

    def attention(self):
        dtype, size = (
            self.one_of(BF16, F16),
            self.one_of(8, 64, 40, 72, self.mostly(128, 4, 12, 264, 0, odds=0.5)),
        )
        batch, n_q, n_k, key_heads = (self.choose.randint(1, 3) for _ in range(4))
        heads, layout = key_heads * self.choose.randint(1, 2), self.mostly("bnhd", "bhnd", "sbhd", odds=0.3)
        shapes = [(batch, n_q, heads, size), *[(batch, self.mostly(n_k, 0), key_heads, size)] * 2]
        if layout == "bhnd":
            shapes = [(b, h, n, d) for b, n, h, d in shapes]
        return [self.tensor(shape, dtype) for shape in shapes], {
            "causal": self.one_of(True, False),
            "scale": self.mostly(None, 0.5, 0, -1.0, "large", float("inf"), float("nan"), odds=0.3),
            "window_size": self.mostly((-1, -1), (2, 0), (0, 1), 3, (1, 2, 3), ("a", 1), odds=0.3),
            "dropout_p": self.mostly(0.0, 0.5, 1.0, -0.1, float("nan"), odds=0.3),
            "softcap": self.mostly(0.0, 5, -1.0, float("nan"), "no", odds=0.1),
            "alibi_slopes": self.mostly(None, torch.ones(heads), torch.ones(batch, heads), torch.ones(9), odds=0.1),
            "sinks": self.mostly(None, torch.ones(heads), torch.ones(heads + 1), 0.0, odds=0.1),
            "layout": layout,
            "deterministic": self.mostly(None, True, False, "yes", odds=0.3),
            "return_lse": self.one_of(True, False),
        }  # fmt: skip

    def mqa_logits(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(64, 128, 96)
        tokens, keys, heads = (self.choose.randint(1, 5) for _ in range(3))
        tensors = [
            torch.ones(shape, dtype=dtype) if self.choose.random() < 0.9 else self.tensor(shape, dtype)
            for shape in ((tokens, heads, size), self.mostly((keys, size), (keys, size + 8), odds=0.1))
        ]
        weights, rows = torch.ones(tokens, heads), torch.ones(tokens, dtype=torch.int32)
        scale = self.mostly(None, torch.ones(keys), torch.ones(keys + 1), [1], odds=0.2)
        weights = self.mostly(weights, weights.half(), weights[..., None], odds=0.15)
        start = self.mostly(rows, rows.long(), rows[None], odds=0.15)
        return [*tensors, scale, weights, start, self.mostly(rows, rows[:0], None, odds=0.15)], {
            "clean": self.mostly(True, False, "no", odds=0.2)
        }

    def mqa_logits_paged(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(64, 128, 96)
        tokens, page, heads, sequences = (self.choose.randint(1, 4) for _ in range(4))
        cache = self.mostly((5, page, size), (5, page, 1, size), (5, page, 2, size), odds=0.15)
        tensors = [
            torch.ones(shape, dtype=dtype) if self.choose.random() < 0.9 else self.tensor(shape, dtype)
            for shape in ((sequences, tokens, heads, size), cache)
        ]
        weights, rows = (
            torch.ones(sequences * tokens, heads),
            torch.ones(sequences, tokens, dtype=torch.int32),
        )
        table = torch.ones(sequences, 3, dtype=torch.int32)
        weights = self.mostly(weights, weights.half(), weights[..., None], odds=0.15)
        lengths = self.mostly(rows[:, 0], rows, rows.long(), rows + 99, rows[..., None], odds=0.15)
        table = self.mostly(table, table + 9, table.long(), table[0], odds=0.15)
        return [*tensors, weights, lengths, table, self.mostly(9, 0, 1.5, -1, odds=0.15)], {
            "clean": self.mostly(True, False, "no", odds=0.2)
        }

    def attention_mla_sparse(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(576, 512)
        page, heads, tokens = (self.choose.randint(1, 3) for _ in range(3))
        cache = self.mostly((4, page, size), (4, page, 1, size), (4, page, 2, size))
        tensors = [
            torch.ones(shape, dtype=dtype) if self.choose.random() < 0.9 else self.tensor(shape, dtype)
            for shape in ((tokens, heads, size), cache)
        ]
        lists = torch.ones(tokens, 5, dtype=torch.int32)
        return [*tensors, self.mostly(lists, lists - 2, lists.long(), lists[0], [1])], {
            "topk_length": self.mostly(None, lists[:, 0], lists[:, 0].long(), lists),
            "scale": self.mostly(0.5, None, "large", float("inf")),
            "head_dim_v": self.mostly(512, 128),
            "sinks": self.mostly(None, torch.ones(heads), torch.ones(heads + 1)),
            "kv_scale": self.mostly(None, 0.5, torch.ones(1), "no"),
            "num_splits": self.mostly(0, 3, -1, 257),
        }  # fmt: skip

    def attention_mla(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(576, 512)
        page, heads, queries = (self.choose.randint(1, 3) for _ in range(3))
        cache = self.one_of((4, page, size), (4, page, 1, size), (4, page, 2, size))
        rows = torch.ones(2, 3, dtype=torch.int32)
        tensors = [
            torch.ones(shape, dtype=dtype) if self.choose.random() < 0.8 else self.tensor(shape, dtype)
            for shape in ((2 * queries, heads, size), cache)
        ]
        table = self.mostly(rows, rows.long(), rows[0], rows + 9, rows[:1], [1])
        lengths = self.mostly(rows[:, 0], rows[:, :1], rows[:, 0] + 20, rows[:1, 0], None)
        return [*tensors, table, lengths], {
            "max_seqlen_q": self.mostly(queries, queries + 1, -1, 1.5, True),
            "scale": self.mostly(0.5, None, "large", float("inf")),
            "head_dim_v": self.mostly(512, 128),
            "causal": self.mostly(True, False, "no"),
            "table_starts": self.mostly(None, rows[0], rows[:, 0].long()),
            "sinks": self.mostly(None, torch.ones(heads), torch.ones(heads + 1)),
            "kv_scale": self.mostly(None, 0.5, torch.ones(1), "no"),
            "num_splits": self.mostly(0, 2, 300, -1, 1.0),
            "return_lse": self.mostly(True, False, "yes"),
        }

    def attention_paged(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(self.one_of(64, 128, 256), 40, odds=0.1)
        layout = self.mostly(self.one_of("nhd", "hnd"), "paged")
        page, key_heads, queries = (self.choose.randint(1, 3) for _ in range(3))
        heads = self.mostly(key_heads * self.choose.randint(1, 2), key_heads + 1)
        cache = (4, key_heads, page, size) if layout == "hnd" else (4, page, key_heads, size)
        rows = torch.ones(2, 3, dtype=torch.int32)
        tensors = [
            torch.ones(shape, dtype=dtype) if self.choose.random() < 0.7 else self.tensor(shape, dtype)
            for shape in ((2 * queries, heads, size), cache, cache)
        ]
        table = self.mostly(rows, rows.long(), rows[0], rows + 9, rows - 2, rows[:1], [1])
        lengths = self.mostly(rows[:, 0], rows[:, :1], rows[:, 0] + 20, rows[:1, 0], None)
        ends = torch.tensor([0, queries, 2 * queries], dtype=torch.int32)
        return [*tensors, table, lengths, self.mostly(None, ends, ends + 1, ends[:2], odds=0.3)], {
            "max_seqlen_q": self.mostly(queries, queries + 1, -1, 1.5, True, odds=0.15),
            "causal": self.one_of(True, False),
            "scale": self.mostly(None, 0.5, 0, "large", float("inf"), odds=0.2),
            "window_size": self.mostly((-1, -1), (2, 0), (0, 1), 3, ("a", 1), odds=0.3),
            "softcap": self.mostly(0.0, 5, -1.0, float("nan"), "no", odds=0.2),
            "alibi_slopes": self.mostly(None, torch.ones(heads), torch.ones(2, heads), torch.ones(1), odds=0.3),
            "sinks": self.mostly(None, torch.ones(heads), torch.ones(heads + 1), 0.0, odds=0.3),
            "cache_layout": layout,
            "num_splits": self.mostly(0, 1, 300, 2.0, None, odds=0.2),
            "out": self.mostly(None, torch.ones(2 * queries, heads, size, dtype=dtype), torch.ones(2), odds=0.2),
            "return_lse": self.mostly(True, False, 3),
        }  # fmt: skip

    def attention_varlen(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(self.one_of(8, 64, 40), 4)
        lengths = [[self.choose.randint(0, 3) for _ in range(2)] for _ in range(2)]
        tensors = [
            self.tensor((sum(rows), heads, size), dtype)
            for rows, heads in ((lengths[0], 4), (lengths[1], 2), (lengths[1], self.mostly(2, 3)))
        ]
        ends = []
        for rows in lengths:
            right = torch.tensor([0, rows[0], sum(rows)], dtype=torch.int32)
            wrong = (
                right.long(),
                right + 1,
                right[:2],
                right.float(),
                right[None],
                right.to("meta"),
                [0, 1],
                right.flip(0),
            )
            ends.append(self.mostly(right, *wrong, odds=0.15))
        largest = [self.mostly(max(rows), 99, 0, 2.0, None, -1, odds=0.2) for rows in lengths]
        return [*tensors, *ends, *largest], {
            "causal": self.one_of(True, False),
            "window_size": self.mostly((-1, -1), (2, 0), 3, odds=0.3),
            "dropout_p": self.mostly(0.0, 0.5, 1.0, odds=0.3),
            "deterministic": self.mostly(None, True, "yes"),
            "return_lse": self.one_of(True, False),
        }  # fmt: skip

    def attention_quantized(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(self.one_of(16, 64, 48), 8)
        rows, keys = (self.choose.randint(0, 3) for _ in range(2))
        tensors = [
            self.tensor((2, count, heads, size), dtype)
            for count, heads in ((rows, 4), (keys, 2), (self.mostly(keys, keys + 1), 2))
        ]
        return tensors, {
            "causal": self.mostly(True, False, "no"),
            "scale": self.mostly(None, 0.5, "large", float("inf"), odds=0.2),
            "window_size": self.mostly((-1, -1), (2, 0), 3, odds=0.3),
            "smooth_k": self.mostly(True, False, "yes"),
            "query_block": self.mostly(self.one_of(32, 128), 16, 96, 64.0, odds=0.2),
            "key_block": self.mostly(self.one_of(64, 128), 32, -64, None, odds=0.2),
            "return_lse": self.one_of(True, False),
        }

    def attention_of_codes(self):
        size, (rows, keys) = (
            self.mostly(self.one_of(16, 64), 8),
            (self.choose.randint(0, 3) for _ in range(2)),
        )
        codes = [torch.zeros(1, rows, 4, size, dtype=torch.int8)]
        codes += [torch.zeros(1, keys, 2, size, dtype=self.mostly(torch.int8, BF16))]
        # The target's own, or another target's.
        codes += [torch.zeros(1, keys, 2, size).to(self.one_of(torch.float8_e4m3fn, torch.float8_e4m3fnuz))]
        scales = [torch.ones(1, 4, min(rows, 1)), torch.ones(1, 2, min(keys, 1)), torch.ones(1, 2, size)]
        wrong = self.choose.randint(0, 2)
        scales[wrong] = self.mostly(scales[wrong], scales[wrong].double(), scales[wrong][:, :1], [1.0])
        return [*codes, *scales, self.mostly(BF16, F16, torch.float32)], {
            "causal": self.mostly(True, False, "no"),
            "window_size": self.mostly((-1, -1), (2, 0), 3, odds=0.3),
            "layout": self.mostly("bnhd", "nbhd", odds=0.1),
            "query_block": self.mostly(128, 16, odds=0.2),
            "key_block": self.mostly(64, 96, None, odds=0.2),
            "return_lse": self.one_of(True, False),
        }

    def hstu_attention(self):
        dtype, size = self.one_of(BF16, F16), self.mostly(self.one_of(8, 64, 40), 4)
        lengths = [self.choose.randint(0, 3) for _ in range(2)]
        rows = sum(lengths)
        tensors = [
            self.tensor((self.mostly(rows, rows + 1), heads, size), dtype)
            for heads in (4, 2, self.mostly(2, 3))
        ]
        ends = torch.tensor([0, lengths[0], rows], dtype=torch.int32)
        targets = torch.tensor([0, lengths[1]], dtype=torch.int32)
        wrong = (targets.long(), targets + 9, targets - 1, targets[:1], targets.to("meta"), [0, 1])
        return [
            *tensors,
            self.mostly(ends, ends.long(), ends + 1, ends[:2], ends[None], [0, 1], odds=0.15),
            self.mostly(max(lengths), 99, 0, 2.0, None, odds=0.2),
        ], {
            "causal": self.mostly(True, False, "no"),
            "scale": self.mostly(None, 0.5, "large", float("inf"), odds=0.2),
            "num_targets": self.mostly(self.one_of(None, targets), *wrong, odds=0.2),
            "max_attn_len": self.mostly(0, 2, -1, 1.5, odds=0.2),
            "contextual_seq_len": self.mostly(0, 1, -1, None, odds=0.2),
        }

    def matmul(self):
        dtype, (m, n, k) = self.one_of(BF16, F16), (self.choose.randint(0, 9) for _ in range(3))
        batch = self.one_of((), (2,), (3, 2))
        a, b = self.tensor((*batch, m, k), dtype), self.tensor((*self.one_of((), batch), k, n), dtype)
        return [a, b], {
            "bias": self.one_of(None, self.tensor((n,), self.one_of(dtype, F32))),
            "out_dtype": self.mostly(None, F32, BF16, F64, "bf16", odds=0.4),
        }

    def linear(self):
        dtype, (m, n, k) = self.one_of(BF16, F16), (self.choose.randint(1, 9) for _ in range(3))
        x = self.tensor(self.one_of((m, k), (k,), (2, m, k)), dtype)
        return [x, self.tensor((n, k), dtype)], {"bias": self.one_of(None, self.tensor((n,), dtype))}

    def norm(self):
        dtype, columns = self.one_of(BF16, F16, F32), self.mostly(self.choose.randint(1, 40), 0, 65537)
        shape, kind = (*self.one_of((), (3,), (2, 0), (2, 2)), columns), self.one_of(dtype, F32)
        weight = self.one_of(None, self.tensor((columns,), kind))
        options = {
            "residual": self.one_of(None, self.tensor(shape, dtype)),
            "return_residual": self.one_of(True, False),
            "eps": self.mostly(1e-5, 1e-3, "small"),
            "gate": self.one_of(None, None, self.tensor(shape, dtype)),
            "gemma": self.mostly(self.one_of(False, isinstance(weight, torch.Tensor)), True, "yes"),
            "round_before_weight": self.mostly(self.one_of(True, False), "yes"),
            "round_residual": self.mostly(self.one_of(True, False), None),
            "pad_to": self.mostly(self.one_of(1, 8), 0, 2.5, True),
        }
        return [self.tensor(shape, dtype), weight], options

    rms_norm = norm

    def norm_quantize(self):
        (x, weight), options = self.norm()
        del options["pad_to"]
        rows, columns = (x.shape[:-1], x.shape[-1]) if isinstance(x, torch.Tensor) and x.dim() else ((3,), 8)
        spec = self.mostly(self.one_of(QuantSpec("fp8"), QuantSpec("int8", 32), QuantSpec("mxfp4")), "fp8")
        second = self.one_of(None, self.tensor((*rows, 5), self.one_of(BF16, F16, F32)))
        return [x, weight, options.pop("eps"), spec], {
            **options,
            "scale": self.mostly(None, torch.ones(1)),
            "norm": self.mostly(self.one_of("rms", "layer"), "group"),
            "smooth": self.mostly(None, torch.ones(columns), 2.0),
            "second": second,
            "second_eps": self.mostly(None, 1e-3),
            "return_norm": self.mostly(self.one_of(True, False), "yes"),
        }

    def layer_norm(self):
        arguments, options = self.norm()
        weight = arguments[1]
        bias = None
        if isinstance(weight, torch.Tensor) or self.choose.random() < 0.1:
            bias = self.one_of(
                None, self.tensor(arguments[0].shape[-1:] if arguments[0] is weight else (3,), F32)
            )
            if (
                isinstance(weight, torch.Tensor)
                and self.choose.random() < 0.7
                and weight.layout == torch.strided
            ):
                bias = torch.ones_like(weight)
        return arguments, {
            **options,
            "bias": bias,
            "dropout_p": self.mostly(0.0, 0.5, 1.0, -0.5, 2, odds=0.3),
        }

    def rotary(self, tensors=1):
        dtype, tokens = self.one_of(BF16, F16, F32), self.choose.randint(1, 5)
        features = self.one_of(8, 32, 33)
        packed, first = self.one_of(True, False), self.one_of(True, False)
        batch = () if packed else (self.one_of(1, 2),)
        places = self.one_of("offset", "positions", "cu_seqlens")
        form = (3, tokens) if first else (tokens, 3)
        values = [self.tensor((*batch, *form, features), dtype) for _ in range(tensors)]
        kind = self.one_of(F32, BF16)
        cos = self.tensor((8, self.mostly(features // 2, 3, 17, 0, odds=0.3)), kind)
        sin = (
            cos if not isinstance(cos, torch.Tensor) else self.one_of(cos, cos, self.tensor(cos.shape, kind))
        )
        options = {
            "interleaved": self.one_of(True, False),
            "layout": self.mostly("bhnd" if first else "bnhd", "thd"),
            "inplace": self.one_of(True, False, False),
            "offset": self.mostly(0, 2, 7, -1, odds=0.3),
            "nope_first": self.mostly(self.one_of(True, False), "yes", odds=0.05),
            "full_tables": self.mostly(False, True, None, odds=0.1),
        }
        if self.choose.random() < 0.15:
            of_columns = [self.tensor((self.mostly(8, 1), self.mostly(3, 2)), kind) for _ in range(2)]
            options["column_tables"] = self.mostly(tuple(of_columns), of_columns[0])
            options["offset"] = self.mostly(0, 1)
        whole = torch.int32 if self.choose.random() < 0.9 else F32
        if places == "positions" or self.choose.random() < 0.05:
            shape = self.one_of((tokens,), (*(batch or (1,)), tokens), self.mostly((tokens,), (tokens + 1,)))
            options["positions"] = self.mostly(torch.zeros(shape, dtype=whole), [0] * tokens)
        if places == "cu_seqlens" or self.choose.random() < 0.05:
            options["offset"] = min(
                options["offset"], 2
            )  # the last row that is requested shows in the values only
            options["cu_seqlens"] = self.mostly(
                torch.tensor([0, tokens], dtype=whole), torch.zeros(1, 2), [0, tokens]
            )
        return [*values, cos, sin], options  # fmt: skip

    def qkv_rotary(self):
        dtype, tokens, features = self.one_of(BF16, F16, F32), self.choose.randint(0, 4), self.one_of(16, 9)
        qkv, kind = self.tensor((*self.one_of((), (2,)), tokens, 4 * features), dtype), self.one_of(F32, F16)
        options = {
            name: self.mostly(self.one_of(None, self.tensor((features,), kind)), odds=0.0)
            for name in ("q_weight", "k_weight")
        }
        options["eps"] = self.mostly(1e-6, "small", None)
        options["offset"] = self.mostly(0, 3, 8, -1, odds=0.2)
        options["nope_first"] = self.mostly(self.one_of(True, False), "yes")
        if self.choose.random() < 0.4:
            cache = [self.tensor((2, 4, 1, features), self.mostly(dtype, torch.uint8)) for _ in range(2)]
            slots = torch.zeros(self.mostly(tokens, tokens + 1), dtype=self.mostly(torch.int64, F32))
            options |= {"key_cache": cache[0], "value_cache": cache[1], "slots": self.mostly(slots, None)}
        options["layout"] = self.mostly("nhd", "hnd", "thd")
        table = self.tensor((8, self.mostly(4, 9, 0)), self.one_of(F32, BF16))
        return [qkv, table, table, self.mostly(2, 0, 3, 2.0), 1], options

    def losses(self, rows, dtype, *before):
        """Classes, and the options of both losses."""
        classes = self.tensor(rows, torch.int64)
        return [*before, classes], {
            "ignore_index": self.mostly(-100, 0.5, None, "no"),
            "label_smoothing": self.mostly(0.0, 0.1, 1.0, -0.1, "much", odds=0.2),
            "z_loss": self.mostly(0.0, 1e-3, -1.0, float("nan"), "much", odds=0.2),
            "softcap": self.mostly(None, 30.0, 0.0, -1.0, "much", odds=0.2),
            "reduction": self.mostly("mean", "sum", "none", "max", None, odds=0.3),
        }

    def cross_entropy(self):
        dtype, rows = self.one_of(BF16, F16, F32), self.one_of((), (3,), (2, 3))
        return self.losses(rows, dtype, self.tensor((*rows, self.choose.randint(2, 9)), dtype))

    def linear_cross_entropy(self):
        dtype, rows = self.one_of(BF16, F16), self.one_of((), (3,), (2, 3))
        x, weight = self.tensor((*rows, 8), dtype), self.tensor((self.choose.randint(2, 9), 8), dtype)
        arguments, options = self.losses(rows, dtype, x, weight)
        return arguments, {**options, "recompute": self.mostly(None, True, "yes", odds=0.2)}

    def router(self):
        experts, groups = self.one_of((8, 1), (8, 2), (6, 3))
        logits = self.tensor((3, experts), self.one_of(BF16, F16, F32))
        return [logits, self.mostly(self.choose.randint(1, 2), 0, 9, "two", odds=0.15)], {
            "score": self.mostly(self.one_of("softmax", "sigmoid", "sqrtsoftplus"), "relu", None, odds=0.15),
            "groups": self.mostly(groups, 5, 0, -1, "two", odds=0.1),
            "renormalize": self.mostly(self.one_of(True, False), "yes", None),
            "scale": self.mostly(2.5, "much", float("nan")),
            "shared": self.mostly(self.one_of(0, 1), -1, "one"),
        }

    def causal_conv1d(self):
        dtype, channels, width = self.one_of(BF16, F16, F32), self.one_of(1, 6), self.one_of(2, 3, 4)
        packed = self.one_of(True, False)
        x = self.tensor((channels, 7) if packed else (2, channels, 7), dtype)
        weight = self.tensor((channels, self.mostly(width, 1, 5)), dtype)
        options = {"activation": self.mostly(self.one_of(None, "silu"), "gelu", 1)}
        if packed:
            options["query_start_loc"] = self.mostly(torch.tensor([0, 3, 7]), torch.zeros(3), [0, 7], None)
        if self.choose.random() < 0.5:
            options["conv_states"] = self.tensor((3, channels, width - 1), dtype)
            options["cache_indices"] = self.mostly(
                torch.tensor([2, 0]), torch.tensor([1]), torch.ones(2), [0, 1]
            )
        if self.choose.random() < 0.3:
            options["has_initial_state"] = self.mostly(
                torch.tensor([True, False]), torch.tensor([1, 0]), [True, False]
            )
        if self.choose.random() < 0.2:
            options["split"] = self.mostly((1, 0, channels - 1), (channels, 0), (1, 1, channels), "no")
        return [x, weight, *([self.tensor((channels,), dtype)] if self.one_of(True, False) else [])], options

    def causal_conv1d_update(self):
        dtype, channels, width = self.one_of(BF16, F16, F32), self.one_of(1, 6), self.one_of(2, 3, 4)
        x = self.tensor((2, channels) if self.one_of(True, False) else (2, channels, 3), dtype)
        state = self.tensor((3, channels, self.mostly(6, width - 1, 1)), dtype)
        numbers = torch.tensor([2, 0])
        wrong = (torch.tensor([1]), numbers.float(), [0, 1])
        options = {"activation": self.mostly(self.one_of(None, "silu"), "gelu", 1)}
        for name in ("cache_seqlens", "conv_state_indices", "num_accepted_tokens"):
            if self.choose.random() < 0.3:
                options[name] = self.mostly(numbers, *wrong)
        options["pad_slot_id"] = self.mostly(self.one_of(-1, 0), None, "none")
        return [x, state, self.tensor((channels, self.mostly(width, 1, 5)), dtype)], options

    def rotary_cache_write(self):
        dtype, tokens, features = (
            self.mostly(self.one_of(BF16, F16), F32),
            self.choose.randint(0, 4),
            self.one_of(16, 32),
        )
        q = self.tensor((tokens, 3, features), dtype)
        k, v = (self.tensor((tokens, 2, self.mostly(features, 8, odds=0.05)), dtype) for _ in range(2))
        table = self.tensor((8, self.mostly(8, 17, 0)), self.one_of(F32, BF16))
        cache_dtype = self.mostly(dtype, torch.uint8, F32)
        caches = [self.tensor((2, 4, 2, features), cache_dtype) for _ in range(2)]
        slots = torch.zeros(self.mostly(tokens, tokens + 1), dtype=self.mostly(torch.int64, F32))
        options = {
            "layout": self.mostly("nhd", "hnd", "thd"),
            "offset": self.mostly(0, 3, 8, -1, odds=0.2),
            "nope_first": self.mostly(self.one_of(True, False), "yes", odds=0.05),
        }
        if self.choose.random() < 0.1:
            options["k_scale"] = self.mostly(torch.ones(1), torch.ones(2), 1.0)
        return [q, k, v, table, table, *caches, self.mostly(slots, None, odds=0.05)], options

    def rotary_qk(self):
        return self.rotary(tensors=2)


def outcome(op, arguments, options):
    try:
        getattr(hipkittens, op)(*arguments, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        return False, str(error)
    return True, ""


OPERATIONS = hipkittens._supported.OPERATIONS


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_answer_is_what_the_call_says(op, count=250):
    assert op in hipkittens.__all__
    reasons = set()
    works = 0
    with hipkittens.simulate("gfx942"):
        for seed in range(count):
            draw = Draw(f"{op} {seed}")
            arguments, options = getattr(draw, op)() if hasattr(draw, op) else draw.of_record(op)
            answer = supported(op, *arguments, **options)
            assert (answer.ok, answer.reason) == outcome(op, arguments, options), (seed, arguments, options)
            assert bool(answer) is answer.ok
            works += answer.ok
            reasons.add(answer.reason)
    assert works > count // 6 and len(reasons) > 12, "the draw has too few of either kind"


def test_nothing_is_computed_or_written():
    x, cos = torch.ones(1, 4, 2, 32), torch.full((4, 16), 0.5)
    state = torch.get_rng_state()
    with hipkittens.simulate("gfx942"):
        assert supported("rotary", x, cos, cos, inplace=True)
        assert supported("layer_norm", x, None, dropout_p=0.5)
    assert x.eq(1).all() and x._version == 0 and torch.equal(torch.get_rng_state(), state)


def test_tensors_without_data():
    q, k = (
        torch.empty(1, 7, 4, 64, dtype=BF16, device="meta"),
        torch.empty(1, 9, 2, 64, dtype=BF16, device="meta"),
    )
    assert supported("attention", q, k, k, causal=True)
    refused = supported("attention", q, k, k[..., :60])
    with pytest.raises(ValueError) as raised:
        hipkittens.attention(q, k, k[..., :60])
    assert not refused and refused.reason == str(raised.value)
    huge = torch.empty(64, 1 << 20, 32, 128, dtype=BF16, device="meta")
    assert supported("attention", huge, huge, huge)
    with FakeTensorMode():
        fake = torch.empty(1, 7, 4, 64, dtype=BF16)
        with hipkittens.simulate("gfx942"):
            assert supported("attention", fake, fake, fake)
            assert not supported("attention", fake, fake, fake.float())
    assert supported("attention", fake, fake.to(BF16), fake)


def test_autocast_and_gradients_count():
    x, weight = torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
    cos = torch.ones(4, 4, requires_grad=True)
    with hipkittens.simulate("gfx942"):
        assert not supported("linear", x, weight)
        with torch.autocast("cpu", BF16):
            assert supported("linear", x, weight)
        assert "requires a gradient" in supported("rotary", torch.ones(1, 4, 2, 8), cos, cos.detach()).reason
        with torch.no_grad():
            assert supported("rotary", torch.ones(1, 4, 2, 8), cos, cos.detach())
        with torch.inference_mode():
            assert supported("rotary", torch.ones(1, 4, 2, 8), cos, torch.ones(4, 4))


def test_targets():
    q = torch.empty(1, 7, 4, 64, dtype=BF16, device="meta")
    for target in TARGETS:
        assert supported("attention", q, q, q, target=target)
    answer = supported("attention", q, q, q, target="gfx90a")
    assert not answer and answer.reason == "hipkittens: no kernels for 'gfx90a'; allowed: gfx942, gfx950"


def test_flash_attn_is_asked_by_its_own_names():
    q = torch.empty(1, 7, 4, 64, dtype=BF16, device="meta")
    assert supported("flash_attn.flash_attn_func", q, q, q, 0.0, None, True)
    assert supported("flash_attn.flash_attn_func", q, q, q, softcap=30.0)
    answer = supported("flash_attn.flash_attn_func", q, q, q, 0.1, softcap=30.0)
    assert answer.reason == (
        "hipkittens.attention: dropout_p is 0.1 with softcap; no kernel has both, pass dropout_p=0.0 or no softcap"
    )


@pytest.mark.parametrize("op", ["attn", "info", "supported", "flash_attn.pad_input", None])
def test_an_unknown_operation_is_an_error(op):
    with pytest.raises(ValueError, match="no operation"):
        supported(op)


@pytest.mark.parametrize("target", TARGETS)
def test_the_checks_allow_what_the_packs_hold(target):
    """Largest sizes and dtypes in the Python checks are those of the variants that were built."""
    attention_rules, norm_rules, rotary_rules, gemm_rules = (
        importlib.import_module(f"hipkittens.{name}") for name in ("attention", "norm", "rotary", "gemm")
    )
    rows = {}
    for entry in _installation.pack(target).entries:
        rows.setdefault(entry["operation"], []).append(entry["configuration"])
    dtypes = {"bf16": BF16, "f16": F16, "f32": F32}
    attention = {(row["input"], int(row["head_dim"])) for row in rows["attention"] if "schedule" in row}
    for dtype, size in itertools.product(attention_rules.DTYPES, range(8, 257, 8)):
        assert any(dtypes[name] == dtype and largest >= size for name, largest in attention)
    assert max(size for _, size in attention) == attention_rules.LARGEST_HEAD
    norms = [row for row in rows["norm"] if row["name"].startswith("forward")]
    assert {dtypes[row["element"]] for row in norms} == set(norm_rules.DTYPES)
    longest = max(512 * int(row["waves"]) * int(row["chunks"]) for row in norms)
    assert longest == norm_rules.LARGEST_ROW
    assert {dtypes[row["element"]] for row in rows["rotary"]} == set(rotary_rules.DTYPES)
    assert {dtypes[row["a"]] for row in rows["gemm"] if row["kind"] == "gemm"} == set(gemm_rules.INPUT_DTYPES)
