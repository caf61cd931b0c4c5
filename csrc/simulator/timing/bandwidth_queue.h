// simulator/timing/bandwidth_queue.h: a resource that moves a fixed number of bytes per clock.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hipkittens::simulator::timing {

// Requests may arrive out of time order: a late one does not deprive an early one of unused capacity. Time is
// divided into slices, each of which serves what its length allows and passes the rest on.
class BandwidthQueue {
  public:
    // `slices`: how far past the present its backlog may extend, in units of 64 clocks.
    explicit BandwidthQueue(double bytes_per_clock = 1, size_t slices = 4096)
        : rate_(bytes_per_clock), slices_(slices) {}

    // The time at which the last of `bytes` has passed, if they enter at `time`.
    double serve(double time, double bytes) {
        bytes_ += bytes;
        int64_t index = find(static_cast<int64_t>(time / width));
        Slice* slice = &at(index);
        const double begin = static_cast<double>(index) * width;
        const double start = std::max(time, begin + slice->used / rate_);
        // The slice's capacity before `time` is lost only if no earlier request uses it.
        slice->used += bytes;
        const double capacity = width * rate_;
        while (slice->used >= capacity) {
            const double rest = slice->used - capacity;
            slice->used = capacity;
            slice->next = ++index;
            if (rest <= 0) break;
            slice = &at(index);
            slice->used += rest;
        }
        return start + bytes / rate_;
    }
    double bytes() const { return bytes_; }

  private:
    static constexpr double width = 64;  // clk
    struct Slice {
        int64_t index = -1;
        int64_t next = 0;  // a later slice, if this one is full
        double used = 0;
    };

    Slice& at(int64_t index) {
        Slice& slice = slices_[static_cast<size_t>(index) % slices_.size()];
        if (slice.index != index) slice = {index, index, 0};
        return slice;
    }
    int64_t find(int64_t index) {
        int64_t end = index;
        for (;;) {
            const Slice& slice = slices_[static_cast<size_t>(end) % slices_.size()];
            if (slice.index != end || slice.next == end) break;
            end = slice.next;
        }
        while (index < end) {  // shortens the search for the next request
            Slice& slice = at(index);
            const int64_t next = slice.next;
            slice.next = end;
            if (next <= index) break;
            index = next;
        }
        return end;
    }

    double rate_, bytes_ = 0;
    std::vector<Slice> slices_;
};

}  // namespace hipkittens::simulator::timing
