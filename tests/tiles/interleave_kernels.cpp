// tests/tiles/interleave_kernels.cpp: loops' bodies whose works write down the order in which they run.
// SPDX-License-Identifier: MIT
#include "registers.h"

using namespace kittens;

namespace {

// A number of three parts for each item: of the work, of the item, and of what it belongs to.
struct Log {
    int* next;
    KITTENS_DEVICE void add(int work, int item) { *next++ = work * 1000 + item; }
};

struct reversed {
    int items, past;
    bool fenced = true;
    constexpr int size() const { return items; }
    constexpr int slot(int item) const { return past - 1 - item; }
};

constexpr every_slot matrix{0, 12};
constexpr spread early{7, 2, 12};
constexpr spread_late late{5, 0, 12, true};
constexpr in_slot once{4}, never{4, false};
constexpr reversed backwards{3, 12};
constexpr every_slot twice{9, 11, 2};

template <int First, int Past>
KITTENS_DEVICE void body(Log& log) {
    interleave<First, Past>(work<matrix>([&](auto n) KITTENS_INLINE { log.add(0, n.value); }),
                            work<early>([&](auto n) KITTENS_INLINE { log.add(1, n.value); }),
                            work<late>([&](auto n) KITTENS_INLINE { log.add(2, n.value); }),
                            work<once>([&](auto n) KITTENS_INLINE { log.add(3, n.value); }),
                            work<never>([&](auto n) KITTENS_INLINE { log.add(4, n.value); }),
                            work<backwards>([&](auto n) KITTENS_INLINE { log.add(5, n.value); }),
                            work<twice>([&](auto n) KITTENS_INLINE { log.add(6, n.value); }));
}

struct no_loads {
    static constexpr int in_flight_after(int) { return any_vector_memory; }
};

}  // namespace

extern "C" __attribute__((global)) void in_one_piece(Arguments arguments) {
    Log log{static_cast<int*>(arguments.out)};
    body<0, 12>(log);
}
extern "C" __attribute__((global)) void in_three_pieces(Arguments arguments) {
    Log log{static_cast<int*>(arguments.out)};
    body<0, 5>(log);
    body<5, 6>(log);
    body<6, 12>(log);
}
extern "C" __attribute__((global)) void phases(Arguments arguments) {
    Log log{static_cast<int*>(arguments.out)};
    stagger_wave_groups(0, [&] KITTENS_INLINE {
        ping_pong<0, 3, no_loads>(work<spread{8, 0, 3}>([&](auto n) KITTENS_INLINE { log.add(0, n.value); }),
                                  work<every_slot{0, 3}>([&](auto n) KITTENS_INLINE { log.add(1, n.value); }),
                                  work<in_slot{1}>([&](auto n) KITTENS_INLINE { log.add(2, n.value); }));
    });
}
