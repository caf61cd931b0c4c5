// tiles/interleave.h: places the work of a loop body between its matrix steps.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "unroll.h"

namespace kittens {

// A wave that has its SIMD to itself, or shares it with a wave that runs the same loop, can hide latency only behind its own
// matrix instructions. The body of a main loop is therefore a sequence of slots, one matrix step each, and everything else
// (loads, LDS accesses, softmax, conversions) is divided into items that are assigned to slots at compile time. A kernel states
// each kind of work once: what one item does and, by a placement, the number of items and the slot of each.

// A placement is a constant with `size()` items, `slot(item)`, and `fenced`: if set, the compiler's scheduler moves no instruction
// across its items. The usual placements are below; a kernel defines its own where the slot depends on something else.

// Spread evenly over slots first .. past-1, each item as early as its share allows.
struct spread {
    int items, first, past;
    bool fenced = false;
    constexpr int size() const { return items; }
    constexpr int slot(int item) const { return first + item * (past - first) / items; }
};
// The same, but each item as late as its share allows.
struct spread_late {
    int items, first, past;
    bool fenced = false;
    constexpr int size() const { return items; }
    constexpr int slot(int item) const { return first + ((item + 1) * (past - first) - 1) / items; }
};
// `each` items in every slot of first .. past-1.
struct every_slot {
    int first, past, each = 1;
    bool fenced = false;
    constexpr int size() const { return (past - first) * each; }
    constexpr int slot(int item) const { return first + item / each; }
};
// One item, or none if `present` is false.
struct in_slot {
    int where;
    bool present = true, fenced = false;
    constexpr int size() const { return present; }
    constexpr int slot(int) const { return where; }
};

// The action of an item: step(index<item>). Holds a reference, valid for the duration of the call that it is created for.
template <auto Placement, class Step>
struct placed_work {
    static constexpr auto placement = Placement;
    const Step& step;
};
template <auto Placement, class Step>
KITTENS_DEVICE placed_work<Placement, Step> work(const Step& step) {
    return {step};
}

struct scheduled_item {
    int work, item;
};

// The items of slots First .. Past-1 in program order: by slot, then by the order of the works, then by item number.
template <int First, int Past, auto... Placements>
struct item_schedule {
    static constexpr bool holds(int slot) { return slot >= First && slot < Past; }
    template <class Placement>
    static constexpr int items_of(Placement placement) {
        int count = 0;
        for (int item = 0; item < placement.size(); ++item) count += holds(placement.slot(item));
        return count;
    }
    static constexpr int count = (items_of(Placements) + ... + 0);

    scheduled_item items[count > 0 ? count : 1] = {};

    constexpr item_schedule() {
        const auto for_each_item = [](const auto& use) {
            int work = 0;
            (
                [&](auto placement) {
                    for (int item = 0; item < placement.size(); ++item)
                        if (holds(placement.slot(item))) use(placement.slot(item) - First, work, item);
                    ++work;
                }(Placements),
                ...);
        };
        int next[Past - First + 1] = {};  // per slot, index into `items`
        for_each_item([&](int slot, int, int) { ++next[slot + 1]; });
        for (int slot = 0; slot < Past - First; ++slot) next[slot + 1] += next[slot];
        for_each_item([&](int slot, int work, int item) { items[next[slot]++] = {work, item}; });
    }
};
template <class Schedule>
inline constexpr Schedule schedule_of{};

template <int Index, class Work>
struct numbered_work {
    const Work& work;
};
template <class Indices, class... Works>
struct numbered_works;
template <int... Index, class... Works>
struct numbered_works<constants<int, Index...>, Works...> : numbered_work<Index, Works>... {};

template <int Item, int Index, class Work>
KITTENS_DEVICE void run_item(const numbered_work<Index, Work>& numbered) {
    numbered.work.step(index<Item>{});
    if constexpr (Work::placement.fenced) schedule_fence();
}

// Runs the items of slots First .. Past-1. The placements of a body that runs in several pieces refer to the slots of the whole body.
template <int First, int Past, class... Works>
KITTENS_DEVICE void interleave(const Works&... works) {
    using Schedule = item_schedule<First, Past, Works::placement...>;
    const numbered_works<indices_below<sizeof...(Works)>, Works...> all{{works}...};
    for_each_index<Schedule::count>([&](auto at) KITTENS_INLINE {
        constexpr scheduled_item next = schedule_of<Schedule>.items[at.value];
        run_item<next.item, next.work>(all);
    });
}
template <int Slots, class... Works>
KITTENS_DEVICE void interleave(const Works&... works) {
    static_assert(item_schedule<0, Slots, Works::placement...>::count == (Works::placement.size() + ... + 0),
                  "every item has a slot");
    interleave<0, Slots>(works...);
}

}  // namespace kittens
