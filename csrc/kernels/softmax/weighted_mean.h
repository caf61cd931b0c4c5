// kernels/softmax/weighted_mean.h: the mean of dy with the weights y, which a softmax's gradient subtracts from dy.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"

namespace hipkittens::softmax {

using kittens::eight;

KITTENS_DEVICE float sum_of(eight values) {
    const kittens::vec<float, 4> four = values.lo + values.hi;
    const kittens::vec<float, 2> two = four.lo + four.hi;
    return two[0] + two[1];
}

// The partial sums of one lane; sums() are to be added over the lanes of the row.
template <bool accurate>
class WeightedMean;

// 16-bit elements: the weights add up to one as far as their rounding allows.
template <>
class WeightedMean<false> {
    eight products_;

  public:
    using Value = float;
    static constexpr int count = 1;

    KITTENS_DEVICE WeightedMean(eight y, eight dy) : products_(y * dy) {}
    KITTENS_DEVICE void add(eight y, eight dy) { products_ = __builtin_elementwise_fma(y, dy, products_); }
    KITTENS_DEVICE void sums(Value* to) const { to[0] = sum_of(products_); }

    KITTENS_DEVICE static eight gradient(eight y, eight dy, const Value* sums) { return y * (dy - sums[0]); }
};

// Where one weight is close to 1, the difference of its dy and the mean is as small as the other weights, and roundings of the products'
// sum and of the weights would be most of it: products are added in double precision and divided by the weights' sum.
template <>
class WeightedMean<true> {
    double products_ = 0, weights_ = 0;

  public:
    using Value = double;
    static constexpr int count = 2;

    KITTENS_DEVICE WeightedMean(eight y, eight dy) { add(y, dy); }
    KITTENS_DEVICE void add(eight y, eight dy) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const double weight = y[i];
            products_ = __builtin_fma(weight, static_cast<double>(dy[i]), products_);
            weights_ += weight;
        }
    }
    KITTENS_DEVICE void sums(Value* to) const {
        to[0] = products_;
        to[1] = weights_;
    }

    // The mean is subtracted in two parts: as exactly as in double precision, without another conversion of dy.
    KITTENS_DEVICE static eight gradient(eight y, eight dy, const Value* sums) {
        const double mean = sums[0] / sums[1];
        const float high = static_cast<float>(mean), low = static_cast<float>(mean - high);
        return y * ((dy - high) - low);
    }
};

}  // namespace hipkittens::softmax
