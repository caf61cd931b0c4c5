// torch/gemm.cpp: validates the tensors of a matrix product, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "torch/element_type.h"
#include "torch/gemm_launch.h"
#include "torch/gemm_operand.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

constexpr const char* gemm_schema =
    "gemm(Tensor a, Tensor b, Tensor? bias, ScalarType out_dtype, bool deterministic) -> Tensor";
// sums += a b, with float32 sums.
constexpr const char* addmm_schema = "addmm_(Tensor(a!) sums, Tensor a, Tensor b) -> ()";

// Leading dimensions that a, b and c all traverse with a single stride are merged into one dimension. The
// innermost is the batch of a launch; there is one launch for each index of the others.
struct BatchDimension {
    int64_t size;
    std::array<int64_t, 3> strides;
};

std::vector<BatchDimension> batch_dimensions(const Tensor& a, const Tensor& b, const Tensor& c) {
    const auto sizes = c.sizes(), sa = a.strides(), sb = b.strides(), sc = c.strides();
    std::vector<BatchDimension> result;  // innermost first
    for (size_t axis = sizes.size() - 2; axis-- > 0;) {
        if (sizes[axis] == 1) continue;
        const BatchDimension next{sizes[axis], {sa[axis], sb[axis], sc[axis]}};
        if (!result.empty()) {
            BatchDimension& inner = result.back();
            bool continues = true;
            for (size_t i = 0; i < 3; ++i) continues &= next.strides[i] == inner.strides[i] * inner.size;
            if (continues) {
                inner.size *= next.size;
                continue;
            }
        }
        result.push_back(next);
    }
    return result;
}

void check_dtypes(const Tensor& a, const Tensor& b) {
    const Dtype dtype = a.dtype("gemm: a");
    if (dtype == Dtype::float32 || b.dtype("gemm: b") != dtype)
        fail(std::string("gemm: a is ") + name(dtype) + ", b is " + name(b.dtype("gemm: b")) +
             "; both must be bfloat16, or both float16");
}

void check_shapes(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
    const auto sa = a.sizes(), sb = b.sizes();
    const auto shapes = [&] { return "a is " + shape_text(sa) + ", b is " + shape_text(sb); };
    if (sa.size() < 2 || sa.size() != sb.size() || !std::equal(sa.begin(), sa.end() - 2, sb.begin())) {
        fail("gemm: a and b need the same leading dimensions and at least 2; " + shapes());
    }
    if (sa.back() != sb[sb.size() - 2]) fail("gemm: the columns of a are not the rows of b; " + shapes());
    if (bias && (bias->dimensions() != 1 || bias->sizes()[0] != sb.back())) {
        fail("gemm: bias needs the shape (" + std::to_string(sb.back()) + "); it is " +
             shape_text(bias->sizes()));
    }
    if (!(a.device() == b.device()) || (bias && !(a.device() == bias->device()))) {
        fail("gemm: a, b and bias are on different devices");
    }
}

const void* advanced(const void* data, int64_t elements, uint32_t bytes) {
    return static_cast<const char*>(data) + elements * static_cast<int64_t>(bytes);
}

// Python has already rejected any other value (hipkittens/_environment.py).
gemm::LoadOrder load_order_asked_for() {
    const char* value = std::getenv("HIPKITTENS_GEMM_LOADS");
    return value && std::string_view(value) == "plain" ? gemm::LoadOrder::plain : gemm::LoadOrder::alternate;
}

// out = a b + bias, or out += a b when the product accumulates into out.
struct Product {
    const Operand &a, &b;
    const std::optional<Tensor>& bias;
    const Tensor& out;
    Dtype dtype, out_dtype;
    bool adds;

    void launch(const Placement& placement) const;
};

void Product::launch(const Placement& placement) const {
    const auto sizes = a.tensor.sizes();
    const int64_t n = b.tensor.sizes().back();
    gemm::Problem problem;
    problem.device = placement.shape();
    problem.a_type = problem.b_type = element_type(dtype);
    problem.output = element_type(out_dtype);
    problem.m = sizes[sizes.size() - 2];
    problem.n = n;
    problem.k = sizes.back();
    problem.a = a.matrix;
    problem.b = b.matrix;
    problem.c = {out.data(), out.strides()[sizes.size() - 2], 0, false};
    problem.load_order = load_order_asked_for();
    problem.adds = adds;
    std::vector<runtime::Region> regions = {
        {a.tensor.data(), a.tensor.extent_bytes(dtype), "a", false},
        {b.tensor.data(), b.tensor.extent_bytes(dtype), "b", false},
        {out.data(), out.extent_bytes(out_dtype), adds ? "sums" : "out", true},
    };
    if (bias) {
        const Dtype bias_dtype = bias->dtype("gemm: bias");
        problem.bias = bias->data();
        problem.bias_type = element_type(bias_dtype);
        regions.push_back({bias->data(), bias->extent_bytes(bias_dtype), "bias", false});
    }

    std::vector<BatchDimension> batch = batch_dimensions(a.tensor, b.tensor, out);
    if (!batch.empty()) {
        problem.batch = batch[0].size;
        problem.a.batch_stride = batch[0].strides[0];
        problem.b.batch_stride = batch[0].strides[1];
        problem.c.batch_stride = batch[0].strides[2];
        batch.erase(batch.begin());
    }
    std::vector<int64_t> index(batch.size(), 0);
    for (;;) {
        std::array<int64_t, 3> offset{};
        for (size_t axis = 0; axis < batch.size(); ++axis) {
            for (size_t i = 0; i < 3; ++i) offset[i] += index[axis] * batch[axis].strides[i];
        }
        problem.a.data = advanced(a.matrix.data, offset[0], bytes_of(dtype));
        problem.b.data = advanced(b.matrix.data, offset[1], bytes_of(dtype));
        problem.c.data = advanced(out.data(), offset[2], bytes_of(out_dtype));
        launch_product(placement, problem, regions);
        size_t axis = 0;
        while (axis < batch.size() && ++index[axis] == batch[axis].size) index[axis++] = 0;
        if (axis == batch.size()) return;
    }
}

Tensor product(Tensor a_tensor, Tensor b_tensor, std::optional<Tensor> bias, Dtype out_dtype) {
    check_shapes(a_tensor, b_tensor, bias);
    check_dtypes(a_tensor, b_tensor);
    const Dtype dtype = a_tensor.dtype("gemm: a");
    const Placement placement(a_tensor.device());
    std::vector<int64_t> sizes(a_tensor.sizes().begin(), a_tensor.sizes().end());
    const int64_t k = sizes.back(), n = b_tensor.sizes().back();
    sizes.back() = n;
    Tensor out = placement.empty(sizes, out_dtype);
    if (out.element_count() == 0) return out;
    if (k == 0) {  // an empty sum
        if (bias) {
            out.copy_from(bias->broadcast_rows(sizes));
        } else {
            out.set_zero();
        }
        return out;
    }
    if (bias && bias->strides()[0] != 1 && n > 1) {
        Tensor dense = Tensor::empty(bias->sizes(), bias->dtype("gemm: bias"), bias->device());
        dense.copy_from(*bias);
        bias = std::move(dense);
    }
    const Operand a = make_operand(std::move(a_tensor), dtype);
    const Operand b = make_operand(std::move(b_tensor), dtype);
    Product{a, b, bias, out, dtype, out_dtype, false}.launch(placement);
    return out;
}

// Rows of unit stride that do not overlap; the plan rejects overlapping batches.
void check_sums(const Tensor& sums, const Tensor& a, const Tensor& b) {
    const auto sizes = sums.sizes(), strides = sums.strides(), of_a = a.sizes();
    const size_t last = sizes.size() - 1;
    const bool fits = sizes.size() == of_a.size() && sizes[last] == b.sizes().back() &&
                      std::equal(sizes.begin(), sizes.end() - 1, of_a.begin());
    if (!fits)
        fail("addmm_: sums has the shape " + shape_text(sizes) + "; a is " + shape_text(of_a) + ", b is " +
             shape_text(b.sizes()));
    if (sums.dtype("addmm_: sums") != Dtype::float32 || !(sums.device() == a.device()))
        fail("addmm_: sums needs to be float32 on the device of a");
    if ((sizes[last] > 1 && strides[last] != 1) || (sizes[last - 1] > 1 && strides[last - 1] < sizes[last]))
        fail("addmm_: rows of sums need unit stride, and shall not overlap");
}

void addmm_(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 || result_count != 0) fail("addmm_ is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor sums = arguments.tensor(), a_tensor = arguments.tensor(), b_tensor = arguments.tensor();
    check_shapes(a_tensor, b_tensor, std::nullopt);
    check_dtypes(a_tensor, b_tensor);
    check_sums(sums, a_tensor, b_tensor);
    if (sums.element_count() == 0 || a_tensor.sizes().back() == 0) return;
    const Dtype dtype = a_tensor.dtype("gemm: a");
    const Placement placement(a_tensor.device());
    const Operand a = make_operand(std::move(a_tensor), dtype);
    const Operand b =
        make_operand(std::move(b_tensor), dtype, false);  // kernels of kind adding accept only such rows
    Product{a, b, std::nullopt, sums, dtype, Dtype::float32, true}.launch(placement);
}

void gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 1) fail("gemm is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor a = arguments.tensor();
    Tensor b = arguments.tensor();
    std::optional<Tensor> bias = arguments.optional_tensor();
    const int32_t out_dtype = arguments.dtype();
    // Every plan adds in a fixed order, so the result is deterministic for both values of the flag.
    [[maybe_unused]] const bool deterministic = arguments.boolean();
    stack[0] = to_result(
        product(std::move(a), std::move(b), std::move(bias), dtype_from_torch(out_dtype, "gemm: out_dtype")));
}

const Registration registration{{
    {gemm_schema, &gemm},
    {addmm_schema, &addmm_},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
