// torch/expert_rows.cpp: checks the tensors of moves of rows to experts and back, plans them and launches them.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "kernels/expert_rows/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// entries int32 (places,): pair of token and choice of each place, places int32 (tokens, k): place of each pair; out of range: none.
// weights float32 (tokens, k). Gather and combine are each other's transposed, and take the same, so that each can be the other's
// gradient: gather reads no places and combine no entries.
constexpr const char* gather_schema =
    "expert_gather(Tensor x, Tensor entries, Tensor places, Tensor? weights) -> Tensor";
constexpr const char* combine_schema =
    "expert_combine(Tensor y, Tensor entries, Tensor places, Tensor? weights) -> Tensor";
// rows[places[t, s]] . tokens[t]: the gradient of weights.
constexpr const char* dot_schema =
    "expert_dot(Tensor rows, Tensor tokens, Tensor entries, Tensor places) -> Tensor";

using expert_rows::ExpertRowsArguments;

class Problem {
  public:
    Problem(const char* name, StableIValue* stack, uint64_t argument_count, uint64_t result_count,
            bool has_tokens)
        : where_(std::string(name) + ": "),
          given_(stack, checked(name, argument_count, result_count)),
          rows_(given_.tensor()),
          dtype_(rows_.dtype(where_ + (has_tokens ? "rows" : "x"))) {
        if (has_tokens) tokens_ = given_.tensor();
        entries_ = given_.tensor();
        places_ = given_.tensor();
        if (!has_tokens) weights_ = given_.optional_tensor();
        check_rows(rows_, "rows");
        if (tokens_) check_rows(*tokens_, "tokens");
        check_numbers(*entries_, "entries", 1, aoti_torch_dtype_int32());
        check_numbers(*places_, "places", 2, aoti_torch_dtype_int32());
        if (weights_) {
            check_numbers(*weights_, "weights", 2, aoti_torch_dtype_float32());
            if (weights_->sizes()[0] != tokens() || weights_->sizes()[1] != choices())
                fail(where_ + "weights need the shape of places");
        }
        if (choices() < 1) fail(where_ + "places need at least 1 choice of each token");
        arguments_.columns = static_cast<uint32_t>(columns());
        arguments_.choices = expert_divisor();
    }

    int64_t tokens() const { return places_->sizes()[0]; }
    int64_t choices() const { return places_->sizes()[1]; }
    int64_t columns() const { return rows_.sizes()[1]; }
    int64_t pairs() const { return tokens() * choices(); }
    int64_t entry_count() const { return entries_->sizes()[0]; }
    int64_t row_count() const { return rows_.sizes()[0]; }
    const Tensor& rows() const { return rows_; }
    const std::optional<Tensor>& second() const { return tokens_; }
    const std::string& where() const { return where_; }

    // result has the sizes of the operator's; `by_entries`: which index says where its rows come from.
    template <class Kind>
    Tensor run(std::vector<int64_t> sizes, bool by_entries) {
        constexpr bool is_dot = std::is_same_v<Kind, expert_rows::kinds::dot>;
        if (columns() > 0) expert_rows::check(sizes[0], columns(), pairs());
        const Placement placement(rows_.device());
        Tensor result = placement.empty(sizes, is_dot ? Dtype::float32 : dtype_);
        if (result.element_count() == 0) return result;
        const int64_t limit = by_entries ? pairs() : row_count();
        if (limit == 0 || columns() == 0) {
            result.set_zero();
            return result;
        }
        const Tensor& index = by_entries ? *entries_ : *places_;
        arguments_.rows = rows_.data();
        arguments_.row_step = rows_.strides()[0];
        arguments_.index = static_cast<const int32_t*>(index.data());
        arguments_.limit = static_cast<uint32_t>(limit);
        arguments_.result = result.data();
        arguments_.count = static_cast<uint32_t>(is_dot ? pairs() : sizes[0]);
        arguments_.aligned = aligned(rows_) && (is_dot || columns() * bytes_of(dtype_) % 4 == 0);
        std::vector<runtime::Region> regions = {
            {rows_.data(), rows_.extent_bytes(dtype_), "rows", false},
            {index.data(), index.extent_bytes(Dtype::int32), by_entries ? "entries" : "places", false},
            {result.data(), result.extent_bytes(is_dot ? Dtype::float32 : dtype_), "result", true}};
        if (tokens_) {
            arguments_.tokens = tokens_->data();
            arguments_.token_step = tokens_->strides()[0];
            arguments_.aligned = arguments_.aligned && aligned(*tokens_);
            regions.push_back({tokens_->data(), tokens_->extent_bytes(dtype_), "tokens", false});
        }
        if (weights_) {
            arguments_.weights = static_cast<const float*>(weights_->data());
            regions.push_back({weights_->data(), weights_->extent_bytes(Dtype::float32), "weights", false});
        }
        placement.launch(expert_rows::plan<Kind>(placement.target(), element_type(dtype_), arguments_),
                         regions);
        return result;
    }

  private:
    static uint64_t checked(const char* name, uint64_t argument_count, uint64_t result_count) {
        if (argument_count != 4 || result_count != 1)
            fail(std::string(name) + " is registered with another schema");
        return argument_count;
    }
    Divisor expert_divisor() const { return divisor_of(static_cast<uint32_t>(choices())); }
    void check_rows(Tensor& tensor, const char* name) {
        if (tensor.dimensions() != 2) fail(where_ + name + " need two dimensions");
        if (tensor.dtype(where_ + name) != dtype_ || !(tensor.device() == rows_.device()))
            fail(where_ + name + " need one dtype and device");
        if (tensor.sizes()[1] != columns()) fail(where_ + name + " need as many columns as the others");
        tensor = with_unit_stride(std::move(tensor), dtype_);
    }
    void check_numbers(Tensor& tensor, const char* name, int64_t dimensions, int32_t dtype) const {
        if (tensor.dimensions() != dimensions || tensor.dtype_number() != dtype || !tensor.is_contiguous() ||
            !(tensor.device() == rows_.device()))
            fail(where_ + name + " need to be contiguous, of " + std::to_string(dimensions) +
                 " dimensions, " + (dtype == aoti_torch_dtype_int32() ? "int32" : "float32") +
                 ", on the device of the rows");
    }
    bool aligned(const Tensor& tensor) const {
        return reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0 &&
               tensor.strides()[0] * bytes_of(dtype_) % 4 == 0;
    }

    std::string where_;
    Arguments given_;
    Tensor rows_;
    Dtype dtype_;
    std::optional<Tensor> tokens_, entries_, places_, weights_;
    ExpertRowsArguments arguments_{};
};

void gather(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    Problem problem("expert_gather", stack, argument_count, result_count, false);
    if (problem.row_count() != problem.tokens())
        fail("expert_gather: x needs a row for each token of places");
    stack[0] =
        to_result(problem.run<expert_rows::kinds::gather>({problem.entry_count(), problem.columns()}, true));
}

void combine(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    Problem problem("expert_combine", stack, argument_count, result_count, false);
    if (problem.row_count() != problem.entry_count())
        fail("expert_combine: y needs a row for each of entries");
    stack[0] =
        to_result(problem.run<expert_rows::kinds::combine>({problem.tokens(), problem.columns()}, false));
}

void dot(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    Problem problem("expert_dot", stack, argument_count, result_count, true);
    if (problem.row_count() != problem.entry_count() || problem.second()->sizes()[0] != problem.tokens())
        fail("expert_dot: rows need a row for each of entries, tokens one for each token of places");
    stack[0] = to_result(problem.run<expert_rows::kinds::dot>({problem.tokens(), problem.choices()}, false));
}

const Registration registration{{
    {gather_schema, &gather},
    {combine_schema, &combine},
    {dot_schema, &dot},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
