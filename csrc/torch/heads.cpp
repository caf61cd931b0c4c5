// torch/heads.cpp: validates tensors whose heads are concatenated or split, plans the copy and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/heads/plan.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// Concatenates along the last dimension: q from q1 and q2, k from k1 and k2.
constexpr const char* concat_heads_schema =
    "concat_heads(Tensor q1, Tensor q2, Tensor k1, Tensor k2) -> (Tensor q, Tensor k)";
// The first q_size columns, the next kv_size, and the last kv_size.
constexpr const char* split_heads_schema =
    "split_heads(Tensor qkv, int q_size, int kv_size) -> (Tensor q, Tensor k, Tensor v)";

// The copies of one launch.
class Copies {
    Dtype dtype_;
    std::vector<heads::Part> parts_;
    std::vector<runtime::Region> regions_;

  public:
    explicit Copies(Dtype dtype) : dtype_(dtype) {}

    // Copies `columns` of `from`, starting at column `first_from`, to `to`, which is dense, starting at
    // column `first_to`.
    void add(Tensor& from, int64_t first_from, const Tensor& to, int64_t first_to, int64_t columns,
             const char* from_name, const char* to_name) {
        if (columns == 0 || to.element_count() == 0) return;
        const int64_t units = bytes_of(dtype_) / heads::unit_bytes, size = bytes_of(dtype_);
        const int64_t step = to.sizes().back();
        heads::check(to.element_count() / step, columns * units);
        const std::vector<Tensor*> tensors = {&from};
        const RowView view(tensors, dtype_);
        heads::Part part{};
        part.from = view.rows(from, 0);
        part.from.data = static_cast<const char*>(part.from.data) + first_from * size;
        part.from.outer *= units;
        part.from.middle *= units;
        part.from.inner *= units;
        part.to = static_cast<char*>(to.data()) + first_to * size;
        part.step = step * units;
        part.rows = view.counts();
        part.units = static_cast<uint32_t>(columns * units);
        const auto on_4_bytes = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 4 == 0; };
        part.aligned = view.aligned(tensors) && on_4_bytes(part.from.data) && on_4_bytes(part.to) &&
                       step * size % 4 == 0;
        parts_.push_back(part);
        add_region({from.data(), from.extent_bytes(dtype_), from_name, false});
        add_region({to.data(), to.extent_bytes(dtype_), to_name, true});
    }
    void launch(const Placement& placement) const {
        if (!parts_.empty()) placement.launch(heads::plan(placement.target(), parts_), regions_);
    }

  private:
    void add_region(const runtime::Region& region) {
        const auto known = [&](const runtime::Region& other) {
            return other.pointer == region.pointer && other.writable == region.writable;
        };
        if (std::none_of(regions_.begin(), regions_.end(), known)) regions_.push_back(region);
    }
};

void concat_heads(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 4 || result_count != 2) fail("concat_heads is registered with another schema");
    const std::string where = "concat_heads: ";
    Arguments given(stack, argument_count);
    Tensor q1 = given.tensor(), q2 = given.tensor(), k1 = given.tensor(), k2 = given.tensor();
    const Dtype dtype = q1.dtype(where + "q1");
    const Placement placement(q1.device());
    Copies copies(dtype);
    const auto join = [&](Tensor& first, Tensor& second, const char* first_name, const char* second_name,
                          const char* name) {
        for (const auto& [tensor, of] : {std::pair(&first, first_name), std::pair(&second, second_name)})
            if (tensor->dtype(where + of) != dtype || !(tensor->device() == q1.device()))
                fail(where + of + " needs the dtype and the device of q1");
        const auto sizes = first.sizes(), others = second.sizes();
        if (sizes.empty() || sizes.size() != others.size() ||
            !std::equal(sizes.begin(), sizes.end() - 1, others.begin()))
            fail(where + second_name + " needs the shape of " + first_name + " but for the last dimension");
        std::vector<int64_t> joined(sizes.begin(), sizes.end());
        joined.back() += others.back();
        Tensor result = placement.empty(joined, dtype);
        const int64_t columns = sizes.back(), rest = others.back();
        copies.add(first, 0, result, 0, columns, first_name, name);
        copies.add(second, 0, result, columns, rest, second_name, name);
        return result;
    };
    Tensor q = join(q1, q2, "q1", "q2", "q"), k = join(k1, k2, "k1", "k2", "k");
    copies.launch(placement);
    stack[0] = to_result(std::move(q));
    stack[1] = to_result(std::move(k));
}

void split_heads(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 || result_count != 3) fail("split_heads is registered with another schema");
    const std::string where = "split_heads: ";
    Arguments given(stack, argument_count);
    Tensor qkv = given.tensor();
    const int64_t q_size = given.integer(), kv_size = given.integer();
    const Dtype dtype = qkv.dtype(where + "qkv");
    const std::vector<int64_t> whole(qkv.sizes().begin(), qkv.sizes().end());
    if (whole.empty() || q_size < 0 || kv_size < 0 || kv_size > whole.back() ||
        q_size + 2 * kv_size != whole.back())
        fail(where + "rows of qkv need q_size + 2 kv_size elements");
    const Placement placement(qkv.device());
    Copies copies(dtype);
    const auto part = [&](int64_t first, int64_t columns, const char* name) {
        std::vector<int64_t> sizes = whole;
        sizes.back() = columns;
        Tensor result = placement.empty(sizes, dtype);
        copies.add(qkv, first, result, 0, columns, "qkv", name);
        return result;
    };
    Tensor q = part(0, q_size, "q"), k = part(q_size, kv_size, "k"), v = part(q_size + kv_size, kv_size, "v");
    copies.launch(placement);
    stack[0] = to_result(std::move(q));
    stack[1] = to_result(std::move(k));
    stack[2] = to_result(std::move(v));
}

const Registration registration{{
    {concat_heads_schema, &concat_heads},
    {split_heads_schema, &split_heads},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
