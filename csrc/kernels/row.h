// kernels/row.h: a row of variants.def, one prebuilt kernel; and all rows of one kind.
// SPDX-License-Identifier: MIT
#pragma once
#include "targets.h"

namespace hipkittens {

// An operation declares each kind of its rows once, in kinds.h, which device and host builds include, as a struct derived from
// this. C is the compile-time configuration: its fields are the columns after `targets`. A is passed by the host, by value. K
// is the device code, defined in kernels.h, which only device.cpp includes.
template <class C, class A, template <C> class K>
struct Kind {
    using Config = C;
    using Arguments = A;
    template <C config>
    using Kernel = K<config>;
};

template <class Kind>
struct Row {
    const char* name;
    Targets targets;
    typename Kind::Config config;
};

// For kinds whose rows differ only in their name.
struct NoConfig {};

template <class Kind, int count>
struct RowList {
    Row<Kind> rows[count];
    constexpr const Row<Kind>* begin() const { return rows; }
    constexpr const Row<Kind>* end() const { return rows + count; }
};

template <class Kind, class Argument>
inline constexpr bool is_row_of = false;
template <class Kind>
inline constexpr bool is_row_of<Kind, const Row<Kind>&> = true;

// A line of variants.def, where a family visits its rows: kinds.h.
#define ROW(kind, name, targets, ...) visit(Row<kinds::kind>{#name, Targets::targets, {__VA_ARGS__}});

// In the order of variants.def. `each_row` calls its argument with every row of every kind.
template <class Kind, auto each_row>
inline constexpr auto rows_of = [] {
    constexpr auto each = [](const auto& visit) {
        each_row([&](const auto& row) {
            if constexpr (is_row_of<Kind, decltype(row)>) visit(row);
        });
    };
    constexpr int count = [each] {
        int rows = 0;
        each([&](const Row<Kind>&) { ++rows; });
        return rows;
    }();
    RowList<Kind, count> list{};
    int next = 0;
    each([&](const Row<Kind>& row) { list.rows[next++] = row; });
    return list;
}();

}  // namespace hipkittens
