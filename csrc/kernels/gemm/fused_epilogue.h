// kernels/gemm/fused_epilogue.h: what follows a product in the same launch: a multiplication and addition, and heads that are stored apart.
// SPDX-License-Identifier: MIT
#pragma once
#include "scaled_epilogue.h"

namespace hipkittens::gemm {

// A stage: multiplies by one term and adds the other, in f32. The sums go through LDS, so that one loop can process them: in registers, each
// would have a copy of the loads of every type.
struct MultiplyAdd {
    // The largest divisor of `whole` that is not above `most`.
    static constexpr int part_of(int whole, int most) {
        int part = most < whole ? most : whole;
        while (whole % part) --part;
        return part;
    }

    struct Term {
        buffer view;
        uint32_t row_stride, column_stride;
        ElementType type;
        bool whole;
        float number;

        // The window begins at the tile's first row.
        KITTENS_DEVICE Term(const TermArgument& term, TileCoordinate tile, int m, int n)
            : row_stride(static_cast<uint32_t>(term.row_stride)),
              column_stride(static_cast<uint32_t>(term.column_stride)),
              type(term.type),
              whole(term.whole),
              number(term.number) {
            const int size = element_bytes(term.type);
            const int64_t begin = tile.m * term.row_stride * size,
                          end = ((m - 1) * term.row_stride + (n - 1) * term.column_stride + 1) * size;
            view = global_window{static_cast<const char*>(term.data) + begin, term.data ? end - begin : 0}
                       .view();
        }
        // Four neighbouring columns. Those past the last one are not stored: they may be anything that the buffer holds.
        template <class T, bool four>
        KITTENS_DEVICE vec<float, 4> at(Coordinate place) const {
            const uint32_t size = sizeof(T),
                           first = (place.row * row_stride + place.col * column_stride) * size;
            if constexpr (four)
                return __builtin_convertvector(buffer_load<vec<T, 4>>(view, first), vec<float, 4>);
            vec<float, 4> values;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                values[e] = static_cast<float>(buffer_load<T>(view, first + e * column_stride * size));
            return values;
        }
        template <int count, class Place>
        KITTENS_DEVICE void load(vec<float, 4> (&values)[count], const Place& place) const {
            if (view.bytes == 0) {
#pragma unroll
                for (int n = 0; n < count; ++n) values[n] = number;
                return;
            }
            with_element(type, [&](auto zero) {
                const auto load_all = [&](auto of_four) KITTENS_INLINE {
#pragma unroll
                    for (int n = 0; n < count; ++n) values[n] = at<decltype(zero), of_four.value>(place(n));
                };
                if (whole)
                    load_all(index<1>());
                else
                    load_all(index<0>());
            });
        }
    };

    template <class Accumulator, int down, int across, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const FusedGemmArguments& arguments,
                                     EpiloguePlace place, Memory memory) {
        if (arguments.multiplies == Multiplies::nothing) return;
        using Shape = typename Accumulator::shape;
        using four = vec<float, 4>;
        constexpr int height = Accumulator::height, width = Accumulator::width;
        static_assert(Accumulator::per_lane == 4 && Shape::run == 4,
                      "a lane has four neighbouring columns of a base tile");
        constexpr int pass_bytes = wave_lanes * static_cast<int>(sizeof(four));
        // Base tiles that are in LDS together, and those whose terms are loaded together.
        constexpr int all = down * across * height * width,
                      at_once = part_of(all, Memory::bytes / pass_bytes), step = part_of(at_once, 8);
        shared_byte* own = memory.lds + own_lane() * static_cast<int>(sizeof(four));
        const Coordinate lane = row_layout(Shape::value(), own_lane(), 0);
        const Term factor(arguments.factor, place.tile, arguments.m, arguments.n),
            addend(arguments.addend, place.tile, arguments.m, arguments.n);
        const bool of_result = arguments.multiplies == Multiplies::result;
        const auto sums = [&](int n) KITTENS_INLINE -> auto& {
            const int band = n / (height * width);
            return bands[band / across][band % across].tiles[n / width % height][n % width];
        };
        const auto position = [&](int n) KITTENS_INLINE -> Coordinate {
            const int band = n / (height * width);
            return {place.row + band / across * place.row_step + n / width % height * Shape::rows + lane.row,
                    place.tile.n + place.col + band % across * place.col_step + n % width * Shape::cols +
                        lane.col};
        };
#pragma unroll
        for (int first = 0; first < all; first += at_once) {
#pragma unroll
            for (int n = 0; n < at_once; ++n) lds_write(sums(first + n), own + n * pass_bytes);
            compiler_fence();
#pragma unroll 1
            for (int n = 0; n < at_once; n += step) {
                four factors[step], addends[step];
                const auto of_step = [&](int i) KITTENS_INLINE { return position(first + n + i); };
                factor.load(factors, of_step);
                addend.load(addends, of_step);
#pragma unroll
                for (int i = 0; i < step; ++i) {
                    shared_byte* at = own + (n + i) * pass_bytes;
                    const four result = lds_read<four>(at);
                    lds_write(of_result ? result * factors[i] + addends[i] : factors[i] * addends[i] + result,
                              at);
                }
            }
            compiler_fence();
#pragma unroll
            for (int n = 0; n < at_once; ++n) sums(first + n) = lds_read<four>(own + n * pass_bytes);
            compiler_fence();
        }
    }
};

// Where a part of each head is stored: the columns begin .. begin + count - 1 of the head, which are head_stride apart in a row.
struct HeadColumns {
    Divisor head;
    int first, past;  // the tile's first column and the end of the product's
    int begin, count, head_stride;

    struct Place {
        uint32_t column;
        bool stored;
    };
    KITTENS_DEVICE Place of(int column) const {
        const int own = first + column, index = static_cast<int>(head.quotient(own)),
                  in_part = own - index * static_cast<int>(head.value) - begin;
        return {static_cast<uint32_t>(index * head_stride + in_part),
                own < past && static_cast<uint32_t>(in_part) < static_cast<uint32_t>(count)};
    }
};

// ProductStores for such columns.
template <class T, class Accumulator>
struct HeadStores : ProductStores<T, Accumulator> {
    using Base = ProductStores<T, Accumulator>;
    using typename Base::Stager, typename Base::Rows;
    HeadColumns columns;

    template <int count, bool whole>
    KITTENS_DEVICE void store(int band_row, int band_col, int written) const {
        constexpr bool is_part = count < Stager::rows_per_pass;
        constexpr int vectors = Stager::vectors_per_row, elements = b128_bytes / static_cast<int>(sizeof(T));
        const int of_pass = this->lane / vectors, own_row = is_part ? of_pass % count : of_pass,
                  own_byte = this->lane % vectors * b128_bytes;
        const int column = this->col + band_col + own_byte / static_cast<int>(sizeof(T));
        const bool inside =
            own_byte < Accumulator::cols * static_cast<int>(sizeof(T)) && (!is_part || of_pass < count);
        const int read_byte = inside || is_part ? own_byte : own_byte - Rows::row_bytes / 2;
        const auto pass = [&](int first) KITTENS_INLINE {
            const b128 values = Stager::read(this->lds, own_row, first, read_byte);
            const uint32_t row = (this->row + band_row + written + first + own_row) * this->row_bytes;
            // Computed for each pass anew: registers are full.
            const int own = opaque(column);
            const auto offset = [&](int i) KITTENS_INLINE {
                const HeadColumns::Place place = columns.of(own + i);
                return (inside & place.stored) ? row + place.column * static_cast<uint32_t>(sizeof(T))
                                               : out_of_range;
            };
            if constexpr (whole) {
                buffer_store(values, this->destination, offset(0));
            } else {
                const auto each = __builtin_bit_cast(vec<T, elements>, values);
#pragma unroll
                for (int i = 0; i < elements; ++i) {
                    const T element = each[i];
                    buffer_store(element, this->destination, offset(i));
                }
            }
        };
        if constexpr (whole) {
#pragma unroll
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        } else {
#pragma unroll 1
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        }
    }
};

template <class... Stages>
struct FusedEpilogue {
    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const FusedGemmArguments& arguments,
                                     EpiloguePlace place, shared_byte* lds) {
        (Stages::apply(bands, arguments, place, WaveMemory<lds_bytes>{lds}), ...);
        const int first = arguments.first_columns, head = static_cast<int>(arguments.head_columns.value);
        with_element(arguments.output, [&](auto zero) {
            using T = decltype(zero);
            using Stores = HeadStores<T, Accumulator>;
            const auto convert = [](vec<float, 4> values) {
                return __builtin_convertvector(values, vec<T, 4>);
            };
#pragma unroll 1
            for (int part = 0; part < (arguments.rest.data ? 2 : 1); ++part) {
                const MatrixArgument& to = part ? arguments.rest : arguments.c;
                const int64_t size = sizeof(T), begin = place.tile.m * to.leading_stride * size;
                const Stores stores{
                    {lds,
                     global_window{static_cast<const char*>(to.data) + begin,
                                   arguments.m * to.leading_stride * size - begin}
                         .view(),
                     static_cast<uint32_t>(to.leading_stride * size), 0, own_lane(), place.row, place.col},
                    {arguments.head_columns, place.tile.n, arguments.n, part ? first : 0,
                     part ? head - first : first, part ? head - first : first + arguments.joined_columns}};
                if (arguments.vector_stores) [[likely]]
                    move_bands<Stores, true, lds_bytes>(stores, bands, place.row_step, place.col_step,
                                                        convert);
                else
                    move_bands<Stores, false, lds_bytes>(stores, bands, place.row_step, place.col_step,
                                                         convert);
            }
        });
    }
};

// Copies the columns that are joined to the heads that begin in the tile, with all threads of the workgroup.
template <GemmConfig config>
KITTENS_DEVICE void copy_joined_columns(const FusedGemmArguments& arguments, TileCoordinate tile) {
    const int columns = arguments.joined_columns;
    if (!columns) return;
    const Divisor& head = arguments.head_columns;
    const auto heads_before = [&](int column) {
        return static_cast<int>(
            head.quotient((column < arguments.n ? column : arguments.n) + head.value - 1));
    };
    const int begin = heads_before(tile.n), heads = heads_before(tile.n + config.tile_n) - begin;
    const int left = arguments.m - tile.m, rows = left < config.tile_m ? left : config.tile_m;
    const int head_stride = arguments.first_columns + columns;
    with_element(arguments.output, [&](auto zero) {
        using T = decltype(zero);
        const int64_t size = sizeof(T);
        const auto copy = [&](auto of_vector) KITTENS_INLINE {
            using Vector = decltype(of_vector);
            constexpr int elements = sizeof(Vector) / sizeof(T);
            const int vectors = static_cast<int>(arguments.joined_vectors.value);
#pragma unroll 1
            for (int n = 0; n < heads; ++n) {
                const char* from =
                    static_cast<const char*>(arguments.joined.data) +
                    (tile.m * arguments.joined.leading_stride + (begin + n) * arguments.joined.batch_stride) *
                        size;
                const char* to = static_cast<const char*>(arguments.c.data) +
                                 (tile.m * arguments.c.leading_stride + (begin + n) * head_stride +
                                  arguments.first_columns) *
                                     size;
                const auto last = [&](int64_t stride) {
                    return static_cast<uint32_t>(((rows - 1) * stride + columns) * size);
                };
                const buffer source{from, last(arguments.joined.leading_stride)},
                    destination{to, last(arguments.c.leading_stride)};
                // Vector `index` of all rows; those past the last one are past both buffers.
                const auto offset = [&](int index, int64_t stride) KITTENS_INLINE {
                    const int row = static_cast<int>(arguments.joined_vectors.quotient(index)),
                              column = (index - row * vectors) * elements;
                    const uint32_t at = (row * static_cast<uint32_t>(stride) + column) * sizeof(T);
                    return index < rows * vectors ? at : out_of_range;
                };
                constexpr int in_flight = 4;
#pragma unroll 1
                for (int i = thread_id(); i < rows * vectors; i += in_flight * config.threads()) {
                    Vector values[in_flight];
#pragma unroll
                    for (int j = 0; j < in_flight; ++j)
                        values[j] = buffer_load<Vector>(
                            source, offset(i + j * config.threads(), arguments.joined.leading_stride));
#pragma unroll
                    for (int j = 0; j < in_flight; ++j)
                        buffer_store(values[j], destination,
                                     offset(i + j * config.threads(), arguments.c.leading_stride));
                }
            }
        };
        if (arguments.joined_whole)
            copy(b128{});
        else
            copy(T{});
    });
}

}  // namespace hipkittens::gemm
