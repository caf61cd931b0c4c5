// kernels/delta_rule/scan_shared.h: the data that the waves of a scan exchange through LDS.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_operands.h"

namespace hipkittens::delta_rule {

template <ScanConfig config, class Operands>
struct ScanShared {
    using T = typename element_of<config.element>::value;
    using State = StatePairs<config.key, config.columns>;
    using OfKeys = SharedSums<T, config.columns, config.key>;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using Parts = SharedParts<State::waves, State::column_tiles>;
    static constexpr int bytes =
        Parts::bytes + OfKeys::bytes + 3 * OfTokens::bytes + SharedFactors::bytes +
        scan_waves * (Operands::staging_bytes_of_keys + Operands::staging_bytes_of_queries);

    Parts from_keys;
    OfKeys state;
    OfTokens residual, kept, changes;  // V' for states, and for outputs, which read it one chunk later
    using Tokens = Sum<T, 8>[State::column_tiles][token_steps];  // for a lane's columns, as operands
    SharedFactors factors;
    kittens::shared_byte *keys, *queries;

    KITTENS_DEVICE explicit ScanShared(kittens::shared_byte* lds)
        : from_keys{lds},
          state{lds + Parts::bytes},
          residual{state.base + OfKeys::bytes},
          kept{residual.base + OfTokens::bytes},
          changes{kept.base + OfTokens::bytes},
          factors{changes.base + OfTokens::bytes},
          keys(factors.base + SharedFactors::bytes),
          queries(keys + scan_waves * Operands::staging_bytes_of_keys) {}
    KITTENS_DEVICE static void read(const OfTokens& from, const StateColumns& at, Tokens& to) {
#pragma unroll
        for (int j = 0; j < State::column_tiles; ++j)
#pragma unroll
            for (int s = 0; s < token_steps; ++s)
                to[j][s] = from.read(16 * j + at.column, 32 * s + 8 * at.quarter);
    }
};

}  // namespace hipkittens::delta_rule
