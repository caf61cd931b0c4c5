// kernels/gemm/product_tiles.h: the tile of a workgroup if the whole grid is one product.
// SPDX-License-Identifier: MIT
#pragma once
#include "config.h"
#include "epilogue.h"

namespace hipkittens::gemm {

// Tiles along x of the grid, splits of K along y, batches along z. A column of C is computed from `columns_of_each` columns of the product.
//
//   with_tile<config>(arguments, use)   use(arguments of the tile's product, tile), if there is a tile for this workgroup
//   reload(tile)                        the same arguments again, where they were not kept in registers
template <int columns_of_each>
struct TilesOfColumns {
    template <GemmConfig config, class Arguments, class Use>
    KITTENS_DEVICE static void with_tile(const Arguments& arguments, const Use& use) {
        const TilePosition position = tile_of_workgroup(workgroup_id_x(), arguments.order);
        use(arguments,
            TileCoordinate{static_cast<int>(position.m) * config.tile_m,
                           static_cast<int>(position.n) * (config.tile_n / columns_of_each),
                           static_cast<int>(workgroup_id_y()), static_cast<int64_t>(workgroup_id_z())});
    }
    template <class Arguments>
    KITTENS_DEVICE static Arguments reload(TileCoordinate) {
        return reload_arguments<Arguments>();
    }
};
using TilesOfProduct = TilesOfColumns<1>;

}  // namespace hipkittens::gemm
