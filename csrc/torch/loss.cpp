// torch/loss.cpp: validates the tensors of cross entropy, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/loss/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// logits (..., V), target int64 (...) -> float32 (...). softcap 0: none. maximum is that of the row, sum that
// of its e^(x - maximum). entropy is empty unless requested.
constexpr const char* cross_entropy_schema =
    "cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing, float z_loss, "
    "float softcap, bool need_entropy) -> (Tensor loss, Tensor maximum, Tensor sum, Tensor entropy)";
constexpr const char* cross_entropy_backward_schema =
    "cross_entropy_backward(Tensor dloss, Tensor? dentropy, Tensor logits, Tensor target, Tensor maximum, "
    "Tensor sum, Tensor? entropy, int ignore_index, float label_smoothing, float z_loss, float softcap) -> "
    "Tensor";
// Returns the losses and overwrites the logits, which are dense, with their gradient; dloss has one element,
// or one for each row.
constexpr const char* cross_entropy_in_place_schema =
    "cross_entropy_in_place(Tensor(a!) logits, Tensor target, Tensor dloss, int ignore_index, "
    "float label_smoothing, float z_loss, float softcap) -> Tensor";
// The same from maximum and sum, for logits that are a range of columns of a row of `classes`; target is
// relative to the first of these columns and may lie outside the range.
constexpr const char* cross_entropy_backward_in_place_schema =
    "cross_entropy_backward_in_place(Tensor(a!) logits, Tensor target, Tensor dloss, Tensor maximum, Tensor "
    "sum, int "
    "classes, "
    "int ignore_index, float label_smoothing, float z_loss, float softcap) -> ()";

struct Problem {
    std::string where;
    Tensor logits, target;
    Dtype dtype;
    std::vector<int64_t> rows;  // sizes of all dimensions but the last
    loss::CrossEntropyArguments arguments{};
    std::vector<runtime::Region> regions;

    Problem(std::string name, Tensor given_logits, Tensor given_target)
        : where(std::move(name)),
          logits(std::move(given_logits)),
          target(std::move(given_target)),
          dtype(logits.dtype(where + "logits")) {
        const auto sizes = logits.sizes(), of_target = target.sizes();
        if (sizes.empty()) fail(where + "logits need at least 1 dimension");
        rows.assign(sizes.begin(), sizes.end() - 1);
        if (!std::equal(rows.begin(), rows.end(), of_target.begin(), of_target.end()))
            fail(where + "target needs the shape of logits without the last dimension");
        if (target.dtype_number() != aoti_torch_dtype_int64() || !target.is_contiguous())
            fail(where + "target needs to be dense int64");
        if (!(target.device() == logits.device())) fail(where + "target is on another device than logits");
    }
    bool empty() const { return logits.element_count() == 0; }

    void read_options(Arguments& given) {
        arguments.ignore_index = given.integer();
        arguments.label_smoothing = static_cast<float>(given.number());
        arguments.z_loss = static_cast<float>(given.number());
        arguments.softcap = static_cast<float>(given.number());
    }
    // Adds a tensor of one float32 per row with a single stride, which may be 0.
    uint32_t add_rows(const Tensor& tensor, const char* name) {
        const int64_t count = logits.element_count() / logits.sizes().back();
        if (tensor.dtype(where + name) != Dtype::float32 || !(tensor.device() == logits.device()))
            fail(where + name + " needs to be float32 on the device of logits");
        if (tensor.element_count() != count && tensor.element_count() != 1)
            fail(where + name + " needs one element, or one for each row");
        const auto strides = tensor.strides();
        const bool equal =
            tensor.element_count() == 1 ||
            std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; });
        if (!equal && !tensor.is_contiguous()) fail(where + name + " needs to be dense");
        regions.push_back({tensor.data(), equal ? 4 : tensor.extent_bytes(Dtype::float32), name, false});
        return equal ? 0 : 1;
    }
    void add_statistics(const Tensor& maximum, const Tensor& sum) {
        arguments.maximum = static_cast<float*>(maximum.data());
        arguments.sum = static_cast<float*>(sum.data());
        add_rows(maximum, "maximum");
        add_rows(sum, "sum");
    }
    void add_result(const Tensor& tensor, Dtype of, const char* name) {
        regions.push_back({tensor.data(), tensor.extent_bytes(of), name, true});
    }
    void launch(const Placement& placement) {
        const int64_t columns = logits.sizes().back();
        loss::check(logits.element_count() / columns, columns, element_type(dtype));
        const std::vector<Tensor*> tensors = {&logits};
        const RowView view(tensors, dtype);
        arguments.logits = view.rows(logits, 0);
        arguments.rows = view.counts();
        arguments.target = static_cast<const int64_t*>(target.data());
        arguments.columns = static_cast<uint32_t>(columns);
        if (!arguments.classes) arguments.classes = arguments.columns;
        arguments.wide = columns % 8 == 0 && view.aligned(tensors);
        if (arguments.gradient != logits.data())
            regions.push_back({logits.data(), logits.extent_bytes(dtype), "logits", false});
        regions.push_back(
            {target.data(), static_cast<uint64_t>(target.element_count()) * 8, "target", false});
        placement.launch(loss::plan(placement.target(), element_type(dtype), arguments), regions);
    }
};

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data()); }

void cross_entropy(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 7 || result_count != 4) fail("cross_entropy is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor logits = given.tensor(), target = given.tensor();
    Problem problem("cross_entropy: ", std::move(logits), std::move(target));
    problem.read_options(given);
    const bool need_entropy = given.boolean();
    const Placement placement(problem.logits.device());
    Tensor loss = placement.empty(problem.rows, Dtype::float32),
           maximum = placement.empty(problem.rows, Dtype::float32),
           sum = placement.empty(problem.rows, Dtype::float32);
    Tensor entropy = placement.empty(need_entropy ? problem.rows : std::vector<int64_t>{0}, Dtype::float32);
    if (loss.element_count() > 0) {
        if (problem.empty()) fail("cross_entropy: rows have no elements");
        problem.arguments.loss = floats(loss);
        problem.arguments.maximum = floats(maximum);
        problem.arguments.sum = floats(sum);
        problem.arguments.entropy = need_entropy ? floats(entropy) : nullptr;
        problem.add_result(loss, Dtype::float32, "loss");
        problem.add_result(maximum, Dtype::float32, "maximum");
        problem.add_result(sum, Dtype::float32, "sum");
        if (need_entropy) problem.add_result(entropy, Dtype::float32, "entropy");
        problem.launch(placement);
    }
    stack[0] = to_result(std::move(loss));
    stack[1] = to_result(std::move(maximum));
    stack[2] = to_result(std::move(sum));
    stack[3] = to_result(std::move(entropy));
}

void cross_entropy_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 1)
        fail("cross_entropy_backward is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor dloss = given.tensor();
    std::optional<Tensor> dentropy = given.optional_tensor();
    Tensor logits = given.tensor(), target = given.tensor();
    Tensor maximum = given.tensor(), sum = given.tensor();
    std::optional<Tensor> entropy = given.optional_tensor();
    Problem problem("cross_entropy_backward: ", std::move(logits), std::move(target));
    problem.read_options(given);
    if (dentropy.has_value() && !entropy) fail(problem.where + "dentropy needs the entropy");
    const Placement placement(problem.logits.device());
    Tensor dlogits = placement.empty(problem.logits.sizes(), problem.dtype);
    if (!problem.empty()) {
        problem.arguments.dloss = floats(dloss);
        problem.arguments.dloss_step = problem.add_rows(dloss, "dloss");
        problem.add_statistics(maximum, sum);
        if (dentropy) {
            problem.arguments.dentropy = floats(*dentropy);
            problem.arguments.dentropy_step = problem.add_rows(*dentropy, "dentropy");
            problem.arguments.entropy = floats(*entropy);
            problem.add_rows(*entropy, "entropy");
        }
        problem.arguments.gradient = dlogits.data();
        problem.add_result(dlogits, problem.dtype, "dlogits");
        problem.launch(placement);
    }
    stack[0] = to_result(std::move(dlogits));
}

void cross_entropy_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 7 || result_count != 1)
        fail("cross_entropy_in_place is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor logits = given.tensor(), target = given.tensor(), dloss = given.tensor();
    Problem problem("cross_entropy_in_place: ", std::move(logits), std::move(target));
    problem.read_options(given);
    if (!problem.logits.is_contiguous()) fail(problem.where + "logits need to be dense");
    const Placement placement(problem.logits.device());
    Tensor loss = placement.empty(problem.rows, Dtype::float32);
    if (loss.element_count() > 0) {
        if (problem.empty()) fail(problem.where + "rows have no elements");
        Tensor maximum = placement.empty(problem.rows, Dtype::float32),
               sum = placement.empty(problem.rows, Dtype::float32);
        problem.arguments.loss = floats(loss);
        problem.arguments.maximum = floats(maximum);
        problem.arguments.sum = floats(sum);
        problem.arguments.dloss = floats(dloss);
        problem.arguments.dloss_step = problem.add_rows(dloss, "dloss");
        problem.arguments.gradient = problem.logits.data();
        problem.add_result(loss, Dtype::float32, "loss");
        problem.add_result(maximum, Dtype::float32, "maximum");
        problem.add_result(sum, Dtype::float32, "sum");
        problem.add_result(problem.logits, problem.dtype, "logits");
        problem.launch(placement);
    }
    stack[0] = to_result(std::move(loss));
}

void cross_entropy_backward_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 10 || result_count != 0)
        fail("cross_entropy_backward_in_place is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor logits = given.tensor(), target = given.tensor(), dloss = given.tensor();
    Tensor maximum = given.tensor(), sum = given.tensor();
    Problem problem("cross_entropy_backward_in_place: ", std::move(logits), std::move(target));
    const int64_t classes = given.integer();
    problem.read_options(given);
    if (!problem.logits.is_contiguous()) fail(problem.where + "logits need to be dense");
    if (problem.empty()) return;
    if (classes < problem.logits.sizes().back() || classes > INT32_MAX)
        fail(problem.where + "classes is " + std::to_string(classes) + "; it must be at least the columns");
    problem.arguments.classes = static_cast<uint32_t>(classes);
    problem.add_statistics(maximum, sum);
    problem.arguments.dloss = floats(dloss);
    problem.arguments.dloss_step = problem.add_rows(dloss, "dloss");
    problem.arguments.gradient = problem.logits.data();
    problem.add_result(problem.logits, problem.dtype, "logits");
    problem.launch(Placement(problem.logits.device()));
}

const Registration registration{{
    {cross_entropy_schema, &cross_entropy},
    {cross_entropy_backward_schema, &cross_entropy_backward},
    {cross_entropy_in_place_schema, &cross_entropy_in_place},
    {cross_entropy_backward_in_place_schema, &cross_entropy_backward_in_place},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
