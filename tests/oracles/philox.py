# SPDX-License-Identifier: MIT
"""Philox 4x32-10, and the dropout masks derived from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LOW = 0xFFFFFFFF


def philox(counter, key):
    """Philox 4x32-10 of arrays of counters, from the description in its paper, in Python integers."""
    c, k = [np.asarray(word, np.uint64) for word in counter], list(key)
    low = np.uint64(LOW)
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        shift = np.uint64(32)
        c = [(q >> shift) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> shift) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


def dropped_fraction(dropout_p: float) -> float:
    """A dropout probability as attention uses it: a multiple of 2^-16 below 1."""
    return min(round(dropout_p * 65536), 65535) / 65536


def kept_weights(seed: Sequence[int], dropout_p: float, heads: int, n_q: int, n_k: int) -> np.ndarray:
    """The attention weights that are kept, [heads, n_q, n_k]; heads are numbered over all batches.

    A block of 2 queries and 4 keys uses the 128 bits of counter (key // 4, query // 2, head, second seed): 16 bits each,
    row by row, the low half of a word first.
    """
    head, query, key = np.meshgrid(np.arange(heads), np.arange(n_q), np.arange(n_k), indexing="ij")
    first, second = (int(value) & (1 << 64) - 1 for value in seed)
    words = philox((key // 4, query // 2, head, np.full_like(head, second & LOW)), (first & LOW, first >> 32))
    word = np.choose(query % 2 * 2 + key % 4 // 2, words)
    bits = np.where(key % 2, word >> np.uint64(16), word & np.uint64(0xFFFF))
    return bits >= dropped_fraction(dropout_p) * 65536
