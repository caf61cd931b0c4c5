// simulator/tile_unit/tile_unit.cpp: bf16 matrix products on the host's own tile unit (Intel AMX), if it has
// one.
// SPDX-License-Identifier: MIT
//
// TDPBF16PS multiplies a 16-row tile of A by a tile of B whose rows are pairs of k, adding to a 16x16 f32
// tile (Intel SDM, "TDPBF16PS": even and odd k summed separately, then added to C; denormals flushed; nearest
// even). The layout of an MFMA's registers fits it well: in memory D is rows of sixteen columns at a constant
// distance, though not in row order, and B is rows of pairs at the same distance. Only A, which AMD stores by
// columns, has to be transposed, with its rows in D's order. Operands of fewer bits are widened to bf16 first.
#include "simulator/tile_unit/tile_unit.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simulator/execute/matrix_scaled.h"
#include "simulator/execute/matrix_widened.h"

namespace hipkittens::simulator::tile_unit {

namespace {

using isa::Opcode;

// Tile registers: the accumulator, then A and B for 16, 8 and 4 pairs of k. Macros, since the intrinsics
// paste them into register names.
#define ACCUMULATOR 0
#define A16 2
#define B16 3
#define A8 4
#define B8 5
#define A4 6
#define B4 7

struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 64, 16, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 16, 4};
};

// Transposes `rows` rows of sixteen dwords into sixteen rows of `rows` dwords. Row 4b + c of the result is
// stored at 4c + b for 16x16 shapes, and at 8 (b / 2) + 2c + b % 2 for 32x32 ones: D's order, see
// matrix_layout.h.
struct Quads {
    __m512i column[4];  // element b of column[c]: rows 0..3 of column 4b + c, as 128 bits
};

inline __attribute__((always_inline)) Quads transpose_quads(const uint8_t* rows, int distance) {
    const __m512i r0 = _mm512_load_si512(rows), r1 = _mm512_load_si512(rows + distance);
    const __m512i r2 = _mm512_load_si512(rows + 2 * distance), r3 = _mm512_load_si512(rows + 3 * distance);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    return {{_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
             _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)}};
}

struct alignas(64) RearrangedA {
    uint32_t offset = UINT32_MAX;
    uint8_t tile[2][1024];  // 32x32 shapes have two halves
};

template <int size, int pairs>
inline __attribute__((always_inline)) void rearrange(const uint8_t* a, RearrangedA* out) {
    constexpr int distance =
        size * 4;  // between the rows of one register's lane groups, and to the next register
    const auto pair_of_quads = [](__m512i first, __m512i second, __m512i* even, __m512i* odd) {
        *even = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second);
        *odd = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), second);
    };
    if constexpr (pairs == 16) {
        for (int half = 0; half < size / 16; ++half) {
            const uint8_t* rows = a + half * 64;
            const Quads q0 = transpose_quads(rows, distance),
                        q1 = transpose_quads(rows + 4 * distance, distance);
            const Quads q2 = transpose_quads(rows + 8 * distance, distance),
                        q3 = transpose_quads(rows + 12 * distance, distance);
            constexpr int second = 64, third = size == 16 ? 128 : 512, fourth = third + 64;
            for (int c = 0; c < 4; ++c) {
                const __m512i low01 = _mm512_shuffle_i32x4(q0.column[c], q1.column[c], 0x44),
                              high01 = _mm512_shuffle_i32x4(q0.column[c], q1.column[c], 0xee);
                const __m512i low23 = _mm512_shuffle_i32x4(q2.column[c], q3.column[c], 0x44),
                              high23 = _mm512_shuffle_i32x4(q2.column[c], q3.column[c], 0xee);
                uint8_t* place = out->tile[half] + (size == 16 ? 4 * c : 2 * c) * 64;
                _mm512_store_si512(place, _mm512_shuffle_i32x4(low01, low23, 0x88));
                _mm512_store_si512(place + second, _mm512_shuffle_i32x4(low01, low23, 0xdd));
                _mm512_store_si512(place + third, _mm512_shuffle_i32x4(high01, high23, 0x88));
                _mm512_store_si512(place + fourth, _mm512_shuffle_i32x4(high01, high23, 0xdd));
            }
        }
    } else {
        constexpr int halves = size / 16;
        for (int half = 0; half < halves; ++half) {
            const uint8_t* rows = a + half * 64;
            const Quads first = transpose_quads(rows, distance);
            if constexpr (pairs == 8) {
                const Quads second = transpose_quads(rows + 4 * distance, distance);
                for (int c = 0; c < 4; ++c) {
                    __m512i even, odd;
                    pair_of_quads(first.column[c], second.column[c], &even, &odd);
                    _mm512_storeu_si512(out->tile[half] + (size == 16 ? 4 * c : 2 * c) * 32, even);
                    _mm512_storeu_si512(out->tile[half] + (size == 16 ? 4 * c + 2 : 8 + 2 * c) * 32, odd);
                }
            } else {
                static_assert(size == 32 && pairs == 4);
                for (int c = 0; c < 4; ++c) {
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->tile[half] + 2 * c * 16),
                                        _mm512_castsi512_si256(first.column[c]));
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->tile[half] + (8 + 2 * c) * 16),
                                        _mm512_extracti64x4_epi64(first.column[c], 1));
                }
            }
        }
    }
}

template <int pairs>
inline __attribute__((always_inline)) void load_a(const uint8_t* tile) {
    if constexpr (pairs == 16) _tile_loadd(A16, tile, 64);
    if constexpr (pairs == 8) _tile_loadd(A8, tile, 32);
    if constexpr (pairs == 4) _tile_loadd(A4, tile, 16);
}
template <int pairs>
inline __attribute__((always_inline)) void load_b(const uint8_t* rows, int distance) {
    if constexpr (pairs == 16) _tile_loadd(B16, rows, distance);
    if constexpr (pairs == 8) _tile_loadd(B8, rows, distance);
    if constexpr (pairs == 4) _tile_loadd(B4, rows, distance);
}
template <int pairs>
inline __attribute__((always_inline)) void multiply_add() {
    if constexpr (pairs == 16) _tile_dpbf16ps(ACCUMULATOR, A16, B16);
    if constexpr (pairs == 8) _tile_dpbf16ps(ACCUMULATOR, A8, B8);
    if constexpr (pairs == 4) _tile_dpbf16ps(ACCUMULATOR, A4, B4);
}

template <int size, int pairs>
inline __attribute__((always_inline)) void multiply(Wave* wave, const Step* step, const RearrangedA& a) {
    constexpr int distance = size * 4, halves = size / 16;
    uint8_t* d = at(wave, step->destination);
    const uint8_t* b = at(wave, step->source[1]);
    const uint8_t* c = at(wave, step->source[2]);
    const bool c_is_constant = step->stride[2] == 0;  // one row, read sixteen times
    for (int row_half = 0; row_half < halves; ++row_half) {
        load_a<pairs>(a.tile[row_half]);
        for (int column_half = 0; column_half < halves; ++column_half) {
            const int place = row_half * 2048 + column_half * 64;
            _tile_loadd(ACCUMULATOR, c_is_constant ? c : c + place, c_is_constant ? 0 : distance);
            load_b<pairs>(b + column_half * 64, distance);
            multiply_add<pairs>();
            _tile_stored(ACCUMULATOR, d + place, distance);
        }
    }
}

template <int size, int pairs>
const Step* product(Wave* wave, const Step* step) {
    RearrangedA a;
    rearrange<size, pairs>(at(wave, step->source[0]), &a);
    multiply<size, pairs>(wave, step, a);
    return step + 1;
}

// Whether `next` accumulates into the sum that `step` leaves in D. Compilers often give it another D.
inline __attribute__((always_inline)) bool is_continued(const Step* step, const Step* next) {
    return next->source[2] == step->destination && next->stride[2] != 0;
}

// Step::extra[2] consecutive products. None writes a register that a later one reads as A (ensured by
// adopt_products).
template <int size, int pairs>
const Step* products(Wave* wave, const Step* step) {
    constexpr uint32_t remembered = 8;
    RearrangedA cache[remembered];
    const Step* end = step + step->extra[2];
    bool sum_is_in_tile = false;
    for (; step != end; ++step) {
        RearrangedA& a = cache[step->source[0] / (size * pairs / 64 * 256) % remembered];
        if (a.offset != step->source[0]) {
            rearrange<size, pairs>(at(wave, step->source[0]), &a);
            a.offset = step->source[0];
        }
        if constexpr (size == 16) {
            // The accumulator stays in its tile from one product to the next that adds to it.
            const uint8_t* c = at(wave, step->source[2]);
            if (!sum_is_in_tile) _tile_loadd(ACCUMULATOR, c, step->stride[2]);
            load_a<pairs>(a.tile[0]);
            load_b<pairs>(at(wave, step->source[1]), size * 4);
            multiply_add<pairs>();
            sum_is_in_tile = step + 1 != end && is_continued(step, step + 1);
            if (!sum_is_in_tile || step[1].destination != step->destination)
                _tile_stored(ACCUMULATOR, at(wave, step->destination), size * 4);
        } else {
            multiply<size, pairs>(wave, step, a);
        }
    }
    return end;
}

// `parts` runs of k, each of `pairs` pairs, of widened operands.
template <int size, int pairs, int parts>
inline __attribute__((always_inline)) void multiply_parts(Wave* wave, const Step* step, const uint8_t* wide_a,
                                                          const uint8_t* wide_b) {
    constexpr int distance = size * 4, halves = size / 16, part_bytes = pairs * distance;
    RearrangedA a[parts];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) rearrange<size, pairs>(wide_a + part * part_bytes, &a[part]);
    uint8_t* d = at(wave, step->destination);
    const uint8_t* c = at(wave, step->source[2]);
    const bool c_is_constant = step->stride[2] == 0;
    for (int row_half = 0; row_half < halves; ++row_half) {
        for (int column_half = 0; column_half < halves; ++column_half) {
            const int place = row_half * 2048 + column_half * 64;
            _tile_loadd(ACCUMULATOR, c_is_constant ? c : c + place, c_is_constant ? 0 : distance);
#pragma GCC unroll 4
            for (int part = 0; part < parts; ++part) {
                load_a<pairs>(a[part].tile[row_half]);
                load_b<pairs>(wide_b + part * part_bytes + column_half * 64, distance);
                multiply_add<pairs>();
            }
            _tile_stored(ACCUMULATOR, d + place, distance);
        }
    }
}

// 8-bit floats without scales: eight elements per lane.
template <int size, widened::Format format_of_a, widened::Format format_of_b>
const Step* product_of_bytes(Wave* wave, const Step* step) {
    alignas(64) uint8_t a[4 * 256], b[4 * 256];
    widened::widen<format_of_a, 4>(at(wave, step->source[0]), a);
    widened::widen<format_of_b, 4>(at(wave, step->source[1]), b);
    multiply_parts<size, 256 / size, 1>(wave, step, a, b);
    return step + 1;
}

// 32 elements per lane. Step::data is the handler for scales outside bf16's exponent range.
template <int size>
const Step* scaled_product(Wave* wave, const Step* step) {
    ScaledControl control;
    memcpy(&control, &step->immediate, sizeof(control));
    alignas(64) uint8_t a[16 * 256], b[16 * 256];
    if (!widened::widen_operands<size>(wave, step, control, a, b))
        return reinterpret_cast<Handler>(const_cast<void*>(step->data))(wave, step);
    multiply_parts<size, 16, 64 / size>(wave, step, a, b);
    return step + 1;
}

Handler bytes_handler(Opcode opcode, isa::Target target) {
    using enum widened::Format;
    const bool fnuz = target == isa::Target::gfx942;
    switch (opcode) {
        case Opcode::v_mfma_f32_16x16x32_fp8_fp8:
            return fnuz ? product_of_bytes<16, fnuz_fp8, fnuz_fp8> : product_of_bytes<16, fp8, fp8>;
        case Opcode::v_mfma_f32_16x16x32_fp8_bf8:
            return fnuz ? product_of_bytes<16, fnuz_fp8, fnuz_bf8> : product_of_bytes<16, fp8, bf8>;
        case Opcode::v_mfma_f32_16x16x32_bf8_fp8:
            return fnuz ? product_of_bytes<16, fnuz_bf8, fnuz_fp8> : product_of_bytes<16, bf8, fp8>;
        case Opcode::v_mfma_f32_16x16x32_bf8_bf8:
            return fnuz ? product_of_bytes<16, fnuz_bf8, fnuz_bf8> : product_of_bytes<16, bf8, bf8>;
        case Opcode::v_mfma_f32_32x32x16_fp8_fp8:
            return fnuz ? product_of_bytes<32, fnuz_fp8, fnuz_fp8> : product_of_bytes<32, fp8, fp8>;
        case Opcode::v_mfma_f32_32x32x16_fp8_bf8:
            return fnuz ? product_of_bytes<32, fnuz_fp8, fnuz_bf8> : product_of_bytes<32, fp8, bf8>;
        case Opcode::v_mfma_f32_32x32x16_bf8_fp8:
            return fnuz ? product_of_bytes<32, fnuz_bf8, fnuz_fp8> : product_of_bytes<32, bf8, fp8>;
        case Opcode::v_mfma_f32_32x32x16_bf8_bf8:
            return fnuz ? product_of_bytes<32, fnuz_bf8, fnuz_bf8> : product_of_bytes<32, bf8, bf8>;
        default:
            return nullptr;
    }
}

Handler scaled_handler(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_mfma_f32_16x16x128_f8f6f4:
        case Opcode::v_mfma_scale_f32_16x16x128_f8f6f4:
            return scaled_product<16>;
        case Opcode::v_mfma_f32_32x32x64_f8f6f4:
        case Opcode::v_mfma_scale_f32_32x32x64_f8f6f4:
            return scaled_product<32>;
        default:
            return nullptr;
    }
}

// Products of widened operands are not grouped: what AITER's kernels place between them ends any run.
void adopt_widened(Step& step, const isa::Instruction& instruction) {
    if (step.data != nullptr || step.destination == 0) return;
    if (const Handler handler = bytes_handler(instruction.opcode, instruction.target)) {
        if (step.dwords == 0) step.handler = handler;
        return;
    }
    const Handler handler = scaled_handler(instruction.opcode);
    if (!handler) return;
    ScaledControl control;
    memcpy(&control, &step.immediate, sizeof(control));
    if (control.copies_c) return;
    step.data = reinterpret_cast<const void*>(step.handler);
    step.handler = handler;
}

struct Meaning {
    Handler one, several;
    uint32_t a_bytes, d_bytes;
};

template <int size, int pairs>
constexpr Meaning meaning = {product<size, pairs>, products<size, pairs>, size * pairs * 4, size * size * 4};

const Meaning* meaning_of(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_mfma_f32_16x16x32_bf16:
            return &meaning<16, 16>;
        case Opcode::v_mfma_f32_16x16x16_bf16:
            return &meaning<16, 8>;
        case Opcode::v_mfma_f32_32x32x16_bf16:
            return &meaning<32, 8>;
        case Opcode::v_mfma_f32_32x32x8_bf16:
            return &meaning<32, 4>;
        default:
            return nullptr;
    }
}

bool overlap(uint32_t a, uint32_t a_bytes, uint32_t b, uint32_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

// Moves products with the same D next to each other. They are independent of the others unless some D is
// another one's A or B, or a product's C is not its D; in that case nothing moves.
void group_by_destination(Step* first, Step* end, const Meaning& meaning) {
    for (const Step* step = first; step != end; ++step) {
        if (step->stride[2] != 0 && step->source[2] != step->destination) return;
        for (const Step* other = first; other != end; ++other) {
            for (int source = 0; source < 2; ++source) {
                if (overlap(other->source[source], meaning.a_bytes, step->destination, meaning.d_bytes))
                    return;
            }
            if (other->destination != step->destination &&
                overlap(other->destination, meaning.d_bytes, step->destination, meaning.d_bytes)) {
                return;
            }
        }
    }
    for (Step* group = first; group != end;) {
        Step* group_end = group + 1;
        for (Step* step = group_end; step != end; ++step) {
            if (step->destination != group->destination) continue;
            const Step moved = *step;
            for (Step* place = step; place != group_end; --place) *place = place[-1];
            *group_end++ = moved;
        }
        group = group_end;
    }
}

}  // namespace

void shape_thread_tiles() {
    // Static: GCC 12 assumes that the instruction reads 8 bytes, and would not write the rest of a local.
    static const TileConfiguration configuration;
    _tile_loadconfig(&configuration);
}

void release_thread_tiles() { _tile_release(); }

void adopt_products(Step* steps, size_t count, const isa::Instruction* instructions, bool together) {
    const auto meaning_at = [&](size_t index) -> const Meaning* {
        const Step& step = steps[index];
        const isa::Instruction& instruction = instructions[step.instruction];
        // Step::data is set when the operands have to be copied first (matrix.cpp). Among the steps of an
        // instruction, the one that counts its block has no destination.
        return instruction.encoding == isa::Encoding::mai && step.data == nullptr && step.dwords == 0 &&
                       step.destination != 0
                   ? meaning_of(instruction.opcode)
                   : nullptr;
    };
    for (size_t first = 0; first < count;) {
        const Meaning* meaning = meaning_at(first);
        if (!meaning) {
            adopt_widened(steps[first], instructions[steps[first].instruction]);
            ++first;
            continue;
        }
        size_t end = first + 1;
        const auto writes_an_a_of_the_run = [&](const Step& writer) {
            for (size_t index = first; index <= end && index < count; ++index) {
                if (overlap(steps[index].source[0], meaning->a_bytes, writer.destination, meaning->d_bytes))
                    return true;
            }
            return false;
        };
        while (end < count && meaning_at(end) == meaning && !writes_an_a_of_the_run(steps[end - 1])) ++end;
        for (size_t index = first; index < end; ++index) steps[index].handler = meaning->one;
        if (together && end - first > 1) {
            group_by_destination(steps + first, steps + end, *meaning);
            steps[first].handler = meaning->several;
            steps[first].extra[2] = static_cast<uint32_t>(end - first);
        }
        first = end;
    }
}

#undef ACCUMULATOR
#undef A16
#undef B16
#undef A8
#undef B8
#undef A4
#undef B4

}  // namespace hipkittens::simulator::tile_unit
