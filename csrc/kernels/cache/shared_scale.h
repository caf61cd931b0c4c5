// kernels/cache/shared_scale.h: writes rows to a cache in which a group of slots shares a scale.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../cache_store.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::cache {

// The tokens of a group of slots, in LDS: for each place, the last token that goes there. If several tokens have slots in a group, the
// workgroup of the first one processes the group, so that no two workgroups change the same scale and values, whatever the order of slots.
class SharedGroup {
    static constexpr uint32_t together = 8;  // slots per thread in flight
    const SharedArguments& arguments_;
    kittens::shared_byte* places_;

    KITTENS_DEVICE kittens::shared_byte* place(uint32_t number) const { return places_ + number * 4; }

    // Calls visit(token, place) for each of the together * threads tokens from `first` on that has a slot in the group; past the
    // last token, that token is visited again. No load waits for a branch.
    template <class Number, class Visit>
    KITTENS_DEVICE void each_token(uint32_t first, const Visit& visit) const {
        auto* numbers = (__attribute__((address_space(1))) const Number*)arguments_.slots.data;
        const uint32_t last = arguments_.tokens - 1;
        uint32_t tokens[together];
        int64_t slots[together];
#pragma unroll
        for (uint32_t i = 0; i < together; ++i) {
            const uint32_t token = first + i * threads + kittens::thread_id();
            tokens[i] = token < last ? token : last;
            slots[i] = numbers[tokens[i] * arguments_.slots.stride];
        }
#pragma unroll
        for (uint32_t i = 0; i < together; ++i) {
            const uint64_t place = static_cast<uint64_t>(slots[i] - begin);
            if (place < arguments_.group.value) visit(tokens[i], static_cast<uint32_t>(place));
        }
    }
    template <class Number, class Reduction>
    KITTENS_DEVICE bool gather_numbers(uint32_t token, Reduction& reduction) const {
        for (uint32_t first = 0; first < arguments_.tokens; first += together * threads) {
            bool is_before = false;
            each_token<Number>(first, [&](uint32_t at, uint32_t number) {
                is_before = is_before || at < token;
                __hip_atomic_fetch_max((kittens::shared_pointer<uint32_t>)place(number), at + 1,
                                       __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            });
            if (first < token && reduction.maximum(is_before ? 1.0f : 0.0f) != 0) return false;
        }
        return true;
    }

  public:
    static constexpr int lds_bytes = most_shared_slots * 4;
    uint32_t number, begin;  // of the group: its index, and its first slot

    KITTENS_DEVICE SharedGroup(const SharedArguments& arguments, kittens::shared_byte* lds, uint32_t slot)
        : arguments_(arguments), places_(lds), number(arguments.group.quotient(slot)) {
        begin = number * arguments.group.value;
    }
    KITTENS_DEVICE bool has(int32_t slot) const {
        return slot >= 0 && arguments_.group.quotient(slot) == number;
    }
    // Whether `token` is the first one in the group; only in that case are all of its tokens gathered.
    template <class Reduction>
    KITTENS_DEVICE bool gather(uint32_t token, Reduction& reduction) const {
        for (uint32_t i = kittens::thread_id(); i < arguments_.group.value; i += threads)
            kittens::lds_write(0u, place(i));
        kittens::barrier();
        const bool is_first = arguments_.slots.bytes == 8 ? gather_numbers<int64_t>(token, reduction)
                                                          : gather_numbers<int32_t>(token, reduction);
        kittens::barrier();
        return is_first;
    }
    // The token of a place, plus one; 0: none.
    KITTENS_DEVICE uint32_t token_after(uint32_t number) const {
        return kittens::lds_read<uint32_t>(place(number));
    }
    // The first place that has a token.
    template <class Reduction>
    KITTENS_DEVICE uint32_t first_place(Reduction& reduction) const {
        const uint32_t size = arguments_.group.value;
        uint32_t behind = 0;  // places from it to the end
        for (uint32_t i = kittens::thread_id(); i < size; i += threads)
            if (token_after(i) && size - i > behind) behind = size - i;
        return size - static_cast<uint32_t>(reduction.maximum(static_cast<float>(behind)));
    }
};

// One workgroup per token and part. Those of a group's first token have work, some of the heads each; a wave processes one head.
template <ElementConfig config>
struct SharedScaleKernel {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    using Reduction = kittens::RowReduction<shared_waves>;
    static constexpr int threads = cache::threads, waves_per_simd = 4,
                         lds_bytes = SharedGroup::lds_bytes + Reduction::lds_bytes;

    KITTENS_DEVICE static void run(const SharedArguments& arguments, kittens::shared_byte* lds) {
        const SharedPart& part = arguments.parts[kittens::workgroup_id_z()];
        const uint32_t workgroup = kittens::workgroup_id_x();
        const uint32_t token = workgroup % shared_runs * arguments.token_run + workgroup / shared_runs;
        if (token >= arguments.tokens) return;
        const int32_t slot = slot_of(arguments.slots, token);
        const int32_t before = slot_of(arguments.slots, token > 0 ? token - 1 : 0);
        if (slot < 0) return;
        const SharedGroup group(arguments, lds, slot);
        if (token > 0 && group.has(before)) return;  // true for most tokens of a prompt
        Reduction reduction(lds + SharedGroup::lds_bytes);
        if (!group.gather(token, reduction)) return;
        const uint32_t held =
            group.first_place(reduction);  // number of preceding places, which keep their values

        for (uint32_t head = kittens::workgroup_id_y() * shared_waves + kittens::wave_id(); head < part.heads;
             head += arguments.head_step * shared_waves)
            Head(arguments, part, group, head).write(held);
    }

  private:
    // Eight features of a place. after: its token plus one, 0 if nothing is written.
    struct Unit {
        uint32_t place, first, after;
        kittens::raw_eight<T> raw;
    };
    static constexpr uint32_t together = 4;  // units per lane in flight
    static constexpr uint32_t step = together * 64;

    class Head {
        const SharedArguments& arguments_;
        const SharedPart& part_;
        const SharedGroup& group_;
        const uint32_t head_, units_;
        const CacheCode code_;
        global<float> scale_;

        KITTENS_DEVICE Unit unit(uint32_t number) const {
            const bool is_there = number < units_;
            if (!is_there) number = 0;
            const Divisor& inner = part_.by_place ? arguments_.group : part_.chunks;
            const uint32_t outer = inner.quotient(number), rest = number - outer * inner.value;
            const uint32_t place = part_.by_place ? rest : outer;
            const uint32_t after = group_.token_after(place);
            return {place, (part_.by_place ? outer : rest) * thread_features, is_there ? after : 0, T()};
        }
        // A place without a token loads the first token's row, so that no load waits for a branch.
        KITTENS_DEVICE global<const T> row(const Unit& unit) const {
            return (global<const T>)part_.from + (unit.after ? unit.after - 1 : 0) * part_.token +
                   head_ * part_.head + unit.first;
        }
        KITTENS_DEVICE void load(uint32_t first, Unit (&units)[together]) const {
#pragma unroll
            for (uint32_t i = 0; i < together; ++i) units[i] = unit(first + i * 64 + kittens::lane_id());
            if (part_.aligned && part_.features % thread_features == 0) {
#pragma unroll
                for (Unit& unit : units) unit.raw = *(global<const vector>)row(unit);
                return;
            }
#pragma unroll
            for (Unit& unit : units)
#pragma unroll
                for (uint32_t i = 0; i < thread_features; ++i)
                    if (unit.first + i < part_.features) unit.raw[i] = row(unit)[i];
        }
        // NaN is ignored, so that it does not affect other values with the same scale.
        KITTENS_DEVICE static float magnitude(float largest, const Unit (&units)[together]) {
#pragma unroll
            for (const Unit& unit : units) {
                const kittens::eight values = kittens::widened(unit.raw);
                float of_unit = 0;
#pragma unroll
                for (int i = 0; i < thread_features; ++i)
                    of_unit = kittens::larger(of_unit, kittens::absolute_value(values[i]));
                largest = kittens::larger(largest, unit.after ? of_unit : 0.0f);
            }
            return largest;
        }
        KITTENS_DEVICE CachedFeatures<uint8_t> features(uint32_t place, uint32_t first) const {
            return CachedFeatures<uint8_t>(arguments_.slots, part_.to, group_.begin + place, head_, first, 1,
                                           part_.features - first);
        }
        KITTENS_DEVICE void store(const Unit (&units)[together], float inverse) const {
#pragma unroll
            for (const Unit& unit : units)
                if (unit.after)
                    features(unit.place, unit.first)
                        .store(codes_of(kittens::widened(unit.raw) * inverse, code_));
        }
        // Converts the values of places before `held`, which have another scale.
        KITTENS_DEVICE void convert(uint32_t held, float old, float scale) const {
            for (uint32_t number = kittens::lane_id(); number < units_; number += 64) {
                const Unit at = unit(number);
                if (at.place >= held) continue;
                const auto to = features(at.place, at.first);
                to.store(codes_of(values_of(to.load(), code_) * old / scale, code_));
            }
        }

      public:
        KITTENS_DEVICE Head(const SharedArguments& arguments, const SharedPart& part,
                            const SharedGroup& group, uint32_t head)
            : arguments_(arguments),
              part_(part),
              group_(group),
              head_(head),
              units_(arguments.group.value * part.chunks.value),
              code_(arguments.slots.code),
              scale_((global<float>)part.scales + group.number * part.scale_group + head * part.scale_head) {}

        KITTENS_DEVICE void write(uint32_t held) const {
            Unit kept[together], units[together];
            load(0, kept);
            const float old = held ? *scale_ : 0.0f;
            float largest = magnitude(arguments_.floor, kept);
            for (uint32_t first = step; first < units_; first += step) {
                load(first, units);
                largest = magnitude(largest, units);
            }
            const float needed = kittens::Maximum::of_lanes(largest) / largest_of(code_);
            const bool grows = !held || old < needed;
            const float scale = grows ? needed : old;
            if (grows) {
                if (kittens::lane_id() == 0) *scale_ = scale;
                convert(held, old, scale);
            }
            const float inverse = 1 / scale;
            store(kept, inverse);
            for (uint32_t first = step; first < units_; first += step) {
                load(first, units);
                store(units, inverse);
            }
        }
    };
};

}  // namespace hipkittens::cache
