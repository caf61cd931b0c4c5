// kernels/cache/shared_scale.h: rows into a cache whose codes share the scale of a group of slots.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../cache_store.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::cache {

// The tokens of a group of slots: of each place the last one that goes there, in LDS. Where several tokens have slots of a group, the
// workgroup of the first one has the group, so that no two change the same scale and codes, whatever the order of slots.
class SharedGroup {
    static constexpr uint32_t held = 4;  // slots of a thread in flight
    const SharedArguments& arguments_;
    kittens::shared_byte* places_;

    KITTENS_DEVICE kittens::shared_byte* place(uint32_t number) const { return places_ + number * 4; }
    KITTENS_DEVICE int32_t slot(uint32_t token) const {
        const int32_t slot = token < arguments_.tokens ? slot_of(arguments_.slots, token) : -1;
        return slot >= 0 && arguments_.group.quotient(slot) == number ? slot : -1;
    }

  public:
    static constexpr int lds_bytes = most_shared_slots * 4;
    uint32_t number, begin;  // of the group, and its first slot

    KITTENS_DEVICE SharedGroup(const SharedArguments& arguments, kittens::shared_byte* lds, uint32_t slot)
        : arguments_(arguments), places_(lds), number(arguments.group.quotient(slot)) {
        begin = number * arguments.group.value;
    }
    // What most tokens of a prompt have.
    KITTENS_DEVICE bool has_neighbour_before(uint32_t token) const {
        return token > 0 && slot(token - 1) >= 0;
    }
    template <class Reduction>
    KITTENS_DEVICE bool has_token_before(uint32_t token, Reduction& reduction) const {
        for (uint32_t behind = 1; behind <= token; behind += held * threads) {
            bool found = false;
#pragma unroll
            for (uint32_t i = 0; i < held; ++i) {
                const uint32_t distance = behind + i * threads + kittens::thread_id();
                found = found || (distance <= token && slot(token - distance) >= 0);
            }
            if (reduction.maximum(found ? 1.0f : 0.0f) != 0) return true;
        }
        return false;
    }
    // From the first of them on.
    KITTENS_DEVICE void gather(uint32_t token) const {
        for (uint32_t i = kittens::thread_id(); i < arguments_.group.value; i += threads)
            kittens::lds_write(0u, place(i));
        kittens::barrier();
        for (uint32_t first = token; first < arguments_.tokens; first += held * threads) {
#pragma unroll
            for (uint32_t i = 0; i < held; ++i) {
                const uint32_t at = first + i * threads + kittens::thread_id();
                const int32_t found = slot(at);
                if (found >= 0)
                    __hip_atomic_fetch_max((kittens::shared_pointer<uint32_t>)place(found - begin), at + 1,
                                           __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            }
        }
        kittens::barrier();
    }
    // One more than the token of a place; 0: none.
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

// Workgroups for each token and part, of which those of a group's first token have work, each some of the heads.
template <ElementConfig config>
struct SharedScaleKernel {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = cache::threads, waves_per_simd = 4,
                         lds_bytes = SharedGroup::lds_bytes + Reduction::lds_bytes;

    // Calls visit(place, first feature, count) for eight features of each place before `places`.
    template <class Visit>
    KITTENS_DEVICE static void each(const SharedPart& part, const Divisor& group, uint32_t places,
                                    const Visit& visit) {
        const uint32_t units = group.value * part.chunks.value;
        for (uint32_t unit = kittens::thread_id(); unit < units; unit += threads) {
            const Divisor& inner = part.by_place ? group : part.chunks;
            const uint32_t outer = inner.quotient(unit), rest = unit - outer * inner.value;
            const uint32_t place = part.by_place ? rest : outer,
                           first = (part.by_place ? outer : rest) * thread_features;
            if (place < places) visit(place, first, part.features - first);
        }
    }
    KITTENS_DEVICE static kittens::eight row(const SharedPart& part, uint32_t token, uint32_t head,
                                             uint32_t first, uint32_t count) {
        auto* from = (global<const T>)part.from + token * part.token + head * part.head + first;
        if (part.aligned && count >= thread_features) return kittens::widened(*(global<const vector>)from);
        kittens::raw_eight<T> values = T();
#pragma unroll
        for (uint32_t i = 0; i < thread_features; ++i)
            if (i < count) values[i] = from[i];
        return kittens::widened(values);
    }

    KITTENS_DEVICE static void run(const SharedArguments& arguments, kittens::shared_byte* lds) {
        const SharedPart& part = arguments.parts[kittens::workgroup_id_z()];
        const uint32_t token = kittens::workgroup_id_x();
        const int32_t slot = slot_of(arguments.slots, token);
        if (slot < 0) return;
        Reduction reduction(lds + SharedGroup::lds_bytes);
        const SharedGroup group(arguments, lds, slot);
        if (group.has_neighbour_before(token) || group.has_token_before(token, reduction)) return;
        group.gather(token);
        const uint32_t held = group.first_place(reduction);  // places before, which keep what they have

        for (uint32_t head = kittens::workgroup_id_y(); head < part.heads; head += arguments.head_step)
            write_head(arguments, part, group, head, held, reduction);
    }

  private:
    KITTENS_DEVICE static void write_head(const SharedArguments& arguments, const SharedPart& part,
                                          const SharedGroup& group, uint32_t head, uint32_t held,
                                          Reduction& reduction) {
        const uint32_t size = arguments.group.value;
        const CacheCode code = arguments.slots.code;
        // NaN does not count, so that it does not reach what else has the scale.
        float magnitudes[2] = {arguments.floor, 0};
        each(part, arguments.group, size, [&](uint32_t place, uint32_t first, uint32_t count) {
            const uint32_t after = group.token_after(place);
            if (!after) return;
            const kittens::eight values = row(part, after - 1, head, first, count);
#pragma unroll
            for (int i = 0; i < thread_features; ++i)
                magnitudes[0] = kittens::larger(magnitudes[0], kittens::absolute_value(values[i]));
        });
        auto* scale_at =
            (global<float>)part.scales + group.number * part.scale_group + head * part.scale_head;
        // One thread reads the scale, and later writes it.
        if (held && kittens::thread_id() == 0) magnitudes[1] = *scale_at;
        reduction.template reduce<kittens::Maximum>(magnitudes);
        const float old = magnitudes[1], needed = magnitudes[0] / largest_of(code);
        const bool grows = !held || old < needed;
        const float scale = grows ? needed : old;
        const auto features = [&](uint32_t place, uint32_t first, uint32_t count) {
            return CachedFeatures<uint8_t>(arguments.slots, part.to, group.begin + place, head, first, 1,
                                           count);
        };
        if (grows) {
            if (kittens::thread_id() == 0) *scale_at = scale;
            each(part, arguments.group, held, [&](uint32_t place, uint32_t first, uint32_t count) {
                const auto at = features(place, first, count);
                at.store(codes_of(values_of(at.load(), code) * old / scale, code));
            });
        }
        const float inverse = 1 / scale;
        each(part, arguments.group, size, [&](uint32_t place, uint32_t first, uint32_t count) {
            const uint32_t after = group.token_after(place);
            if (!after) return;
            features(place, first, count)
                .store(codes_of(row(part, after - 1, head, first, count) * inverse, code));
        });
    }
};

}  // namespace hipkittens::cache
