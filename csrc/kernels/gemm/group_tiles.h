// kernels/gemm/group_tiles.h: finds the group and the tile of a workgroup from the group ends in memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/scan_intrinsics.h"
#include "product_tiles.h"

namespace hipkittens::gemm {

// The ends of the groups' ranges of `extent` rows. The rows past the last end form an additional range with index `groups`. Ends past
// the extent are clamped to it, and a range whose end is not past its beginning is empty, so that no value leads outside a matrix.
struct GroupRanges {
    buffer ends;
    int groups, extent;

    KITTENS_DEVICE explicit GroupRanges(const GroupArguments& arguments, int extent)
        : ends{reinterpret_cast<const char*>(arguments.ends), static_cast<uint32_t>(arguments.groups) * 4},
          groups(arguments.groups),
          extent(extent) {}
    // 0 for group -1, whose range precedes the first one: reads outside the buffer return zero.
    KITTENS_DEVICE int end(int group) const {
        const int value = buffer_load<int>(ends, group < 0 ? out_of_range : static_cast<uint32_t>(group) * 4);
        const int inside = value < 0 ? 0 : value;
        return group < groups && inside < extent ? inside : extent;
    }
};

// Tiles of ranges of rows, in the order of the ranges: each lane counts those of some ranges, and how many precede them.
template <int tile_m>
struct TilesOfRanges {
    int begin, end;  // rows; of one range, or from the beginning of the first to the end of the last
    uint32_t tiles, before;

    // Lane l has `each` ranges from `first` + l * each on. Those from `past` on have no tiles.
    KITTENS_DEVICE TilesOfRanges(const GroupRanges& ranges, int first, int each, int past) {
        constexpr int at_once = 8;
        const int own = first + lane_id() * each;
        const auto end_of = [&](int range) { return ranges.end(range < past ? range : past - 1); };
        end = begin = end_of(own - 1);
        tiles = 0;
        for (int i = 0; i < each; i += at_once) {
            int ends[at_once];
#pragma unroll
            for (int j = 0; j < at_once; ++j) ends[j] = end_of(own + (i + j < each ? i + j : each - 1));
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                const int rows = ends[j] - end;
                tiles += rows > 0 ? (static_cast<uint32_t>(rows) + tile_m - 1) / tile_m : 0;
                end = ends[j];
            }
        }
        before = inclusive_sum(tiles) - tiles;
    }
    // The lane that has the tile; and the number of tiles before that lane's.
    KITTENS_DEVICE int lane_of(uint32_t tile) const {
        return __builtin_ctzll(lanes_where(before + tiles > tile));
    }
    KITTENS_DEVICE uint32_t before_lane(int lane) const { return value_of_lane(before, lane); }
};

// All tiles are along x: tiles of a group are adjacent. The grid has the largest possible number of tiles for any group sizes;
// workgroups past the last tile have nothing to do. Rows past the last group are set to zero, like those of a group with K = 0. Groups
// with K = 0 have one K tile in which nothing is valid, so that a loop needs no special case for them. A column of C is computed from
// `columns_of_each` columns of the product.
template <int columns_of_each>
struct TilesOfGroupedColumns {
    // Chosen like in the plan of a single product, for the actual number of tiles.
    KITTENS_DEVICE static uint32_t window_rows(uint32_t tiles, uint32_t tiles_m) {
        const uint32_t rows = tiles >= 1024 ? 8 : 4;
        return tiles_m < rows ? tiles_m : rows;
    }
    KITTENS_DEVICE static uint32_t place_of_workgroup(uint32_t tiles, const TileOrder& order) {
        const uint32_t share = tiles / order.xcds, most = tiles >= 1024 ? 64 : 16,
                       chunk = share < most ? share : most;
        return chunked_workgroup(workgroup_id_x(), tiles, order.xcds, chunk ? chunk : 1);
    }
    // A tile of a group, whose index is its batch, and the group's range of rows or of K.
    struct Found {
        TileCoordinate tile;
        int begin, end;
    };
    template <GemmConfig config, class Arguments>
    KITTENS_DEVICE static bool find_among_rows(const Arguments& arguments, Found& found) {
        const GroupRanges ranges(arguments, arguments.m);
        const uint32_t tiles_n = arguments.order.tiles_n;
        const int past = ranges.groups + 1, each = ranges.groups / wave_lanes + 1;
        TilesOfRanges<config.tile_m> lanes(ranges, 0, each, past);
        const uint32_t tiles = value_of_lane<63>(lanes.before + lanes.tiles) * tiles_n;
        if (workgroup_id_x() >= tiles) return false;

        const uint32_t place = place_of_workgroup(tiles, arguments.order), row_of_tiles = place / tiles_n;
        int lane = lanes.lane_of(row_of_tiles), group = lane * each;
        uint32_t first = lanes.before_lane(lane);
        if (each > 1) {
            lanes = {ranges, group, 1, group + each < past ? group + each : past};
            lane = lanes.lane_of(row_of_tiles - first);
            group += lane;
            first += lanes.before_lane(lane);
        }
        found.begin = static_cast<int>(value_of_lane(lanes.begin, lane));
        found.end = static_cast<int>(value_of_lane(lanes.end, lane));
        const uint32_t tiles_m = value_of_lane(lanes.tiles, lane);
        const TilePosition position =
            tile_in_windows(place - first * tiles_n, tiles_m, tiles_n, window_rows(tiles, tiles_m));
        const int columns = (config.takes_neighbours() ? arguments.tiles_of_workgroup : 1) *
                            (config.tile_n / columns_of_each);
        found.tile = {found.begin + static_cast<int>(position.m) * config.tile_m,
                      static_cast<int>(position.n) * columns,
                      0,
                      group,
                      found.begin,
                      found.end};
        return true;
    }
    // Every group has the same number of tiles.
    template <GemmConfig config, class Arguments>
    KITTENS_DEVICE static void find_among_matrices(const Arguments& arguments, Found& found) {
        const TileOrder& order = arguments.order;
        const uint32_t of_group = order.tiles_m * order.tiles_n, tiles = of_group * arguments.groups,
                       place = place_of_workgroup(tiles, order), group = place / of_group;
        const TilePosition position = tile_in_windows(place % of_group, order.tiles_m, order.tiles_n,
                                                      window_rows(tiles, order.tiles_m));
        found.tile = {static_cast<int>(position.m) * config.tile_m,
                      static_cast<int>(position.n) * (config.tile_n / columns_of_each), 0, group};
        if (arguments.grouping != Grouping::inner) return;
        const GroupRanges ranges(arguments, arguments.k);
        found.begin = uniform(ranges.end(static_cast<int>(group) - 1));
        found.end = uniform(ranges.end(static_cast<int>(group)));
    }

    // Divisions and scans leave the values in vector registers, and the compiler would keep everything derived from them there as well.
    KITTENS_DEVICE static Found in_scalar_registers(const Found& found) {
        const auto scalar = [](int64_t value) {
            return static_cast<int>(uniform(static_cast<uint32_t>(value)));
        };
        // Group indices are not negative; and a sign extension would read a register that was never written.
        const int64_t group = uniform(static_cast<uint32_t>(found.tile.batch));
        return {{scalar(found.tile.m), scalar(found.tile.n), 0, group, scalar(found.tile.first_row),
                 scalar(found.tile.past_row)},
                scalar(found.begin),
                scalar(found.end)};
    }

    // For rows past the last group: sums over nothing.
    template <class Arguments>
    KITTENS_DEVICE static void leave_zeros(Arguments& arguments) {
        arguments.k = 0;
        arguments.bias = nullptr;
        if constexpr (requires { arguments.a_scale; })
            arguments.a_scale.data = arguments.b_scale.data = nullptr;
    }

    // The arguments of the group's product.
    template <GemmConfig config, class Arguments>
    KITTENS_DEVICE static Arguments of_group(const Found& found) {
        Arguments arguments = reload_arguments<Arguments>();
        if (arguments.grouping == Grouping::rows) {
            arguments.m = found.tile.past_row;
            if (found.tile.batch == arguments.groups) {
                leave_zeros(arguments);
                // For scales consumed by matrix steps, windows are as long as bands.
                if constexpr (config.scales == Scales::in_matrix || config.scales == Scales::of_b)
                    arguments.a_scale.stride = arguments.b_scale.stride = 0;
            }
        }
        if (arguments.grouping == Grouping::inner) {
            const auto advance = [&](MatrixArgument& matrix, bool k_is_contiguous, int size) {
                matrix.data = static_cast<const char*>(matrix.data) +
                              found.begin * (k_is_contiguous ? 1 : matrix.leading_stride) * size;
            };
            advance(arguments.a, !config.a_is_transposed(), size_of(config.a));
            advance(arguments.b, config.b_is_transposed(), size_of(config.b));
            arguments.k = found.end > found.begin ? found.end - found.begin : 0;
        }
        const int k_tiles = (arguments.k + config.tile_k - 1) / config.tile_k;
        arguments.k_tiles = arguments.k_tiles_per_split = k_tiles ? k_tiles : 1;
        return arguments;
    }
    template <GemmConfig config, class Arguments, class Use>
    KITTENS_DEVICE static void with_tile(const Arguments& of_all, const Use& use) {
        Found found{};
        if (of_all.grouping == Grouping::rows) {
            if (!find_among_rows<config>(of_all, found)) return;
        } else {
            find_among_matrices<config>(of_all, found);
        }
        found = in_scalar_registers(found);
        if constexpr (!config.takes_neighbours()) {
            use(of_group<config, Arguments>(found), found.tile);
        } else {
            int left = of_all.tiles_of_workgroup;
#pragma unroll 1
            while (true) {
                const Arguments arguments = of_group<config, Arguments>(found);
                use(arguments, found.tile);
                found.tile.n += config.tile_n / columns_of_each;
                if (--left == 0 || found.tile.n >= arguments.n) return;
                // The product of this tile is staged through the LDS that the next tile's operands are loaded to.
                barrier();
            }
        }
    }
    // The arguments as an epilogue needs them.
    template <class Arguments>
    KITTENS_DEVICE static Arguments reload(TileCoordinate tile) {
        Arguments arguments = reload_arguments<Arguments>();
        const int group = static_cast<int>(tile.batch);
        if (arguments.grouping == Grouping::rows) {
            if (group == arguments.groups) leave_zeros(arguments);
            arguments.m = tile.past_row;
        }
        if (arguments.bias)
            arguments.bias = static_cast<const char*>(arguments.bias) +
                             group * arguments.bias_group_stride * element_bytes(arguments.bias_type);
        return arguments;
    }
};
using TilesOfGroups = TilesOfGroupedColumns<1>;

}  // namespace hipkittens::gemm
