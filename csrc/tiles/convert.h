// tiles/convert.h: other element types and other layouts of the same matrix.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"
#include "unroll.h"

namespace kittens {

// Element types: to nearest, ties to even.
template <class To, class From>
KITTENS_DEVICE void copy(To& destination, const From& source) {
    using T = typename To::element;
    using operation::wide;
    if constexpr (is_register_tile<To>) {
        static_assert(same_type<typename To::layout, typename From::layout> &&
                          same_type<typename To::shape, typename From::shape> && To::rows == From::rows &&
                          To::cols == From::cols,
                      "copy changes the element type only; relayout changes the layout");
        for_each_register<To>([&](int i, int j, int e) {
            destination.tiles[i][j][e] = static_cast<T>(wide(source.tiles[i][j][e]));
        });
    } else {
        static_assert(same_type<typename To::layout, typename From::layout> &&
                          same_type<typename To::shape, typename From::shape> && To::length == From::length,
                      "copy changes the element type only");
        for_each_vector_register<To>(
            [&](int i, int e) { destination.tiles[i][e] = static_cast<T>(wide(source.tiles[i][e])); });
    }
}

// Results of arithmetic on their way to a matrix instruction: to nearest, ties to even. gfx942 rounds to bf16 in integers, and
// the compiler asks besides of every number whether it is a NaN, which is half of the work. Adding what rounds leaves a NaN
// one unless its low half is nearly all ones; arithmetic makes none of these, nor does widening a bf16.
template <class T, int count>
KITTENS_DEVICE vec<T, count> narrowed(vec<float, count> values) {
    if constexpr (same_type<T, bf16> && !target.converts_to_bf16) {
        static_assert(count % 2 == 0, "two share a register");
        vec<uint32_t, count / 2> pairs;
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            uint32_t rounded[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const float value = values[2 * i + side];
                const uint32_t bits = __builtin_bit_cast(uint32_t, value);
                rounded[side] = bits + (bits >> 16 & 1) + 0x7fff;
            }
            pairs[i] = permute_bytes(rounded[1], rounded[0], 0x07060302);
        }
        return __builtin_bit_cast(vec<T, count>, pairs);
    } else {
        return __builtin_convertvector(values, vec<T, count>);
    }
}

// The transposed matrix in the other layout: the same registers.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE auto transpose(const rt<T, R, C, Layout, Shape>& source) {
    using Other = choose<Layout::is_row, col_l, row_l>;
    rt<T, C, R, Other, transposed_shape<Shape>> destination;
#pragma unroll
    for (int i = 0; i < destination.height; ++i)
#pragma unroll
        for (int j = 0; j < destination.width; ++j) destination.tiles[i][j] = source.tiles[j][i];
    return destination;
}

// Where an element lies in a tile: lane, base tile and register, from its row and column.
struct RegisterPlace {
    int lane, i, j, e;
};
template <class Tile>
constexpr RegisterPlace place_of(int row, int col) {
    constexpr int rows = Tile::shape::rows, cols = Tile::shape::cols, run = Tile::shape::run;
    const int across = Tile::layout::is_row ? row % rows : col % cols;
    const int along = Tile::layout::is_row ? col % cols : row % rows;
    constexpr int width = Tile::layout::is_row ? rows : cols;
    constexpr int stride = run * (wave_lanes / width);
    return {across + width * (along / run % (wave_lanes / width)), row / rows, col / cols,
            along % run + along / stride * run};
}

// Which registers of a From any lane needs for each register of a To.
template <class To, class From>
struct RegisterSources {
    static constexpr int to_count = To::height * To::width * To::per_lane;
    static constexpr int from_count = From::height * From::width * From::per_lane;
    bool needed[to_count][from_count] = {};

    constexpr RegisterSources() {
        for (int to = 0; to < to_count; ++to)
            for (int lane = 0; lane < wave_lanes; ++lane) {
                const int e = to % To::per_lane, tile = to / To::per_lane;
                const Coordinate at = To::at(lane, tile / To::width, tile % To::width, e);
                const RegisterPlace place = place_of<From>(at.row, at.col);
                needed[to][(place.i * From::width + place.j) * From::per_lane + place.e] = true;
            }
    }
};

template <class To, class From>
inline constexpr RegisterSources<To, From> register_sources{};

// The same matrix in any other layout and base shape, lane by lane through ds_bpermute. Each destination
// register draws from the few source registers that any lane needs; which of them, each lane knows from its
// number.
template <class To, class From>
KITTENS_DEVICE void relayout(To& destination, const From& source) {
    static_assert(To::rows == From::rows && To::cols == From::cols, "the same matrix");
    static_assert(same_type<typename To::element, typename From::element>, "relayout does not convert");
    using Sources = RegisterSources<To, From>;
    const int lane = lane_id();
    for_each_index<Sources::to_count>([&](auto to) {
        constexpr int e = to.value % To::per_lane, tile = to.value / To::per_lane;
        const Coordinate here = To::at(lane, tile / To::width, tile % To::width, e);
        const RegisterPlace place = place_of<From>(here.row, here.col);
        const int there = (place.i * From::width + place.j) * From::per_lane + place.e;
        typename To::element value{};
        for_each_index<Sources::from_count>([&](auto from) {
            if constexpr (register_sources<To, From>.needed[to.value][from.value]) {
                constexpr int from_e = from.value % From::per_lane, from_tile = from.value / From::per_lane;
                const auto drawn = read_lane(
                    source.tiles[from_tile / From::width][from_tile % From::width][from_e], place.lane);
                if (there == from.value) value = drawn;
            }
        });
        destination.tiles[tile / To::width][tile % To::width][e] = value;
    });
}

// Row layout to column layout or back, same base shape.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE auto swap_layout(const rt<T, R, C, Layout, Shape>& source) {
    using Other = choose<Layout::is_row, col_l, row_l>;
    rt<T, R, C, Other, Shape> destination;
    relayout(destination, source);
    return destination;
}

}  // namespace kittens
