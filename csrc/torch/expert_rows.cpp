// torch/expert_rows.cpp: validates the tensors of moves of rows to experts and back, plans them and launches them.
// SPDX-License-Identifier: MIT
#include <array>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/expert_rows/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// entries int32 (places,): the (token, choice) pair at each place; places int32 (tokens, k): the place of each pair;
// out of range: none. weights float32 (tokens, k). Gather and combine are transposes of each other and accept the same
// arguments, so that each can be the other's gradient; gather does not read places and combine does not read entries.
constexpr const char* gather_schema =
    "expert_gather(Tensor x, Tensor entries, Tensor places, Tensor? weights) -> Tensor";
constexpr const char* combine_schema =
    "expert_combine(Tensor y, Tensor entries, Tensor places, Tensor? weights) -> Tensor";
// rows[places[t, s]] . tokens[t]: the gradient of weights.
constexpr const char* dot_schema =
    "expert_dot(Tensor rows, Tensor tokens, Tensor entries, Tensor places) -> Tensor";

using expert_rows::ExpertRowsArguments;

namespace kinds = expert_rows::kinds;

// Runs gather, combine or dot; `name` is the name of its operator.
template <class Kind>
class Problem {
    static constexpr bool is_gather = std::is_same_v<Kind, kinds::gather>;
    static constexpr bool is_dot = std::is_same_v<Kind, kinds::dot>;

  public:
    Problem(const std::string& name, StableIValue* stack, uint64_t argument_count)
        : where_(name + ": "),
          given_(stack, argument_count),
          rows_(given_.tensor()),
          dtype_(rows_.dtype(where_ + "rows")) {
        if (is_dot) tokens_ = given_.tensor();
        entries_ = given_.tensor();
        places_ = given_.tensor();
        if (!is_dot) weights_ = given_.optional_tensor();
        check_numbers(*entries_, "entries", 1, aoti_torch_dtype_int32());
        check_numbers(*places_, "places", 2, aoti_torch_dtype_int32());
        if (choices() < 1) fail(where_ + "places need at least 1 choice of each token");
        check_rows(rows_, "rows", is_gather ? token_count() : place_count());
        if (tokens_) check_rows(*tokens_, "tokens", token_count());
        if (weights_) {
            check_numbers(*weights_, "weights", 2, aoti_torch_dtype_float32());
            if (weights_->sizes()[0] != token_count() || weights_->sizes()[1] != choices())
                fail(where_ + "weights need the shape of places");
        }
    }

    Tensor run() {
        const std::array<int64_t, 2> sizes = {is_gather ? place_count() : token_count(),
                                              is_dot ? choices() : columns()};
        expert_rows::check_pairs(pairs());
        if (sizes[0] > 0 && columns() > 0)
            check_row_threads("expert_rows", sizes[0], columns(), expert_rows::threads);
        const Dtype result_dtype = is_dot ? Dtype::float32 : dtype_;
        const Placement placement(rows_.device());
        Tensor result = placement.empty(sizes, result_dtype);
        if (result.element_count() == 0) return result;
        const int64_t limit = is_gather ? pairs() : place_count();
        if (limit == 0 || columns() == 0) {
            result.set_zero();
            return result;
        }
        const Tensor& index = is_gather ? *entries_ : *places_;
        ExpertRowsArguments arguments{};
        arguments.rows = rows_.data();
        arguments.row_step = rows_.strides()[0];
        arguments.index = static_cast<const int32_t*>(index.data());
        arguments.limit = static_cast<uint32_t>(limit);
        arguments.result = result.data();
        arguments.count = static_cast<uint32_t>(is_dot ? pairs() : sizes[0]);
        arguments.columns = static_cast<uint32_t>(columns());
        arguments.choices = divisor_of(static_cast<uint32_t>(choices()));
        arguments.aligned = aligned(rows_) && (is_dot || columns() * bytes_of(dtype_) % 4 == 0);
        std::vector<runtime::Region> regions = {
            {rows_.data(), rows_.extent_bytes(dtype_), "rows", false},
            {index.data(), index.extent_bytes(Dtype::int32), is_gather ? "entries" : "places", false},
            {result.data(), result.extent_bytes(result_dtype), "result", true}};
        if (tokens_) {
            arguments.tokens = tokens_->data();
            arguments.token_step = tokens_->strides()[0];
            arguments.aligned = arguments.aligned && aligned(*tokens_);
            regions.push_back({tokens_->data(), tokens_->extent_bytes(dtype_), "tokens", false});
        }
        if (weights_) {
            arguments.weights = static_cast<const float*>(weights_->data());
            regions.push_back({weights_->data(), weights_->extent_bytes(Dtype::float32), "weights", false});
        }
        placement.launch(expert_rows::plan<Kind>(placement.target(), element_type(dtype_), arguments),
                         regions);
        return result;
    }

  private:
    int64_t token_count() const { return places_->sizes()[0]; }
    int64_t choices() const { return places_->sizes()[1]; }
    int64_t columns() const { return rows_.sizes()[1]; }
    int64_t pairs() const { return token_count() * choices(); }
    int64_t place_count() const { return entries_->sizes()[0]; }

    void check_rows(Tensor& tensor, const char* name, int64_t count) {
        if (tensor.dimensions() != 2) fail(where_ + name + " need two dimensions");
        if (tensor.dtype(where_ + name) != dtype_ || !(tensor.device() == rows_.device()))
            fail(where_ + name + " need one dtype and device");
        if (tensor.sizes()[0] != count || tensor.sizes()[1] != columns())
            fail(where_ + name + " need " + std::to_string(count) + " rows of " + std::to_string(columns()) +
                 " columns");
        tensor = with_unit_stride(std::move(tensor), dtype_);
    }
    void check_numbers(const Tensor& tensor, const char* name, int64_t dimensions, int32_t dtype) const {
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
};

template <class Kind>
void run(const char* name, StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 4 || result_count != 1)
        fail(std::string(name) + " is registered with another schema");
    Tensor result = Problem<Kind>(name, stack, argument_count).run();
    stack[0] = to_result(std::move(result));
}

void gather(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    run<kinds::gather>("expert_gather", stack, argument_count, result_count);
}
void combine(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    run<kinds::combine>("expert_combine", stack, argument_count, result_count);
}
void dot(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    run<kinds::dot>("expert_dot", stack, argument_count, result_count);
}

const Registration registration{{
    {gather_schema, &gather},
    {combine_schema, &combine},
    {dot_schema, &dot},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
