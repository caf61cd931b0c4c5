// torch/grouped_matmul.cpp: validates the tensors of a grouped matrix product, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/gemm/plan_grouped.h"
#include "torch/element_type.h"
#include "torch/gemm_codes.h"
#include "torch/gemm_operand.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// a (m, k) and b (groups, k, n): groups of rows of a. a (m, k) and b (k, n): groups along k, one result
// matrix each. a (groups, m, k) and b (groups, k, n): no offs. For groups of rows b may be preshuffled into
// panels (gemm_operand.h), (groups, n / panel, chunks, panel, 16 bytes). offs: ends of the groups, int32.
// bias: (n) or (groups, n).
constexpr const char* grouped_gemm_schema =
    "grouped_gemm(Tensor a, Tensor b, Tensor? offs, Tensor? bias, ScalarType out_dtype) -> Tensor";
// Groups of rows: b (groups, k, 2 n), n gates followed by the n partners they multiply, or interleaved.
// activation: 0 silu, 1 gelu_tanh, 2 gelu, 3 relu, 4 tanh, 5 swiglu; limit below 0: none. sums: each row
// holds n gates and then n partners; empty unless they are kept. entries and choices: see below.
constexpr const char* grouped_gated_schema =
    "grouped_gated(Tensor a, Tensor b, Tensor offs, Tensor? bias, Tensor? entries, int choices, int "
    "activation, "
    "bool interleaved, float alpha, float limit, bool keep_sums, ScalarType out_dtype) -> (Tensor result, "
    "Tensor sums)";
// Groups of rows of quantized values, as bytes: a (m, bytes of k) and b (groups, bytes of k, n), in the formats of gemm_codes.h.
// int32: the accumulators of int8 values, without scales and bias. Scalings: 1 for both: scale_a (m, 1) and scale_b (groups, n, 1)
// multiply the accumulators. 4 and 5: (m, blocks) and (groups, blocks of n, blocks) multiply those of each 128 of k. 3: e8m0 bytes
// in the order of kernels/gemm/step_scales.h; for b (groups, bytes), for a in bands of 32 rows that begin with each group: row r of
// group g, whose first row is row f of a, is row 32 (f / 32 + g) + r - f. 1 and 3: scale_a is per row, or absent. With entries (m),
// int32, a is (tokens, bytes of k), and row r of the product uses token entries[r] / choices; scale_a still belongs to the m rows.
constexpr const char* scaled_grouped_gemm_schema =
    "scaled_grouped_gemm(Tensor a, Tensor b, Tensor offs, Tensor? scale_a, Tensor? scale_b, Tensor? bias, "
    "Tensor? entries, int choices, int format_a, int format_b, int scaling_a, int scaling_b, ScalarType "
    "out_dtype) -> Tensor";
constexpr const char* operation = "grouped_gemm";

// Groups of columns are groups of rows of the transposed product.
gemm::Grouping grouping_of(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs) {
    const int64_t da = a.dimensions(), db = b.dimensions();
    if (da == 2 && (db == 3 || db == 5)) return gemm::Grouping::rows;
    if (da == 2 && db == 2) return gemm::Grouping::inner;
    if (da == 3 && db == 3 && !offs) return gemm::Grouping::none;
    fail("grouped_gemm: a has " + std::to_string(da) + " dimensions and b has " + std::to_string(db) +
         "; 2 and 3, 2 and 2, without offs 3 and 3, and 2 and 5 with panels are allowed");
}

struct Scales {
    const std::optional<Tensor>&a, &b;
    ElementType format_a, format_b;
    int64_t scaling_a, scaling_b;

    gemm::Scales kind() const {
        if (scaling_a == row_wise && scaling_b == row_wise) return gemm::Scales::outer;
        if (scaling_a == row_block_wise && scaling_b == block_wise) return gemm::Scales::blocks;
        if (scaling_a == mx_wise && scaling_b == mx_wise) return gemm::Scales::in_matrix;
        if (scaling_a == row_wise && scaling_b == mx_wise) return gemm::Scales::of_b;
        fail("grouped_gemm: no kernel has the scalings " + std::to_string(scaling_a) + " and " +
             std::to_string(scaling_b) + "; allowed: 1 and 1, 4 and 5, 3 and 3, 1 and 3");
    }
};

// Accumulators of int8 values have no scales; other formats may omit them for 16-bit rows.
void check_which_are_given(const Scales& scales, gemm::Scales kind, bool biased, Dtype out_dtype) {
    const bool of_integers = scales.format_a == ElementType::i8;
    if (of_integers != (scales.format_b == ElementType::i8))
        fail("grouped_gemm: one operand is int8 and the other is not");
    if (out_dtype == Dtype::int32) {
        if (!of_integers) fail("grouped_gemm: only int8 operands have int32 sums");
        if (scales.a || scales.b || biased) fail("grouped_gemm: int32 sums have no scales and no bias");
        return;
    }
    if (!scales.a && kind != gemm::Scales::of_b) fail("grouped_gemm: scale_a is missing");
    if (!scales.b) fail("grouped_gemm: scale_b is missing");
}

struct Sizes {
    int64_t groups, m, n, k;
};

// Maps the rows of the product to rows of a.
struct Gather {
    const Tensor& entries;
    int64_t choices;
};

void check_gather(const Gather& gather, const Tensor& a) {
    if (gather.entries.dimensions() != 1 || gather.entries.dtype_number() != aoti_torch_dtype_int32() ||
        !gather.entries.is_contiguous() || !(gather.entries.device() == a.device()))
        fail("grouped_gemm: entries needs to be contiguous, int32, of one dimension, and on a's device");
    if (gather.choices < 1)
        fail("grouped_gemm: choices is " + std::to_string(gather.choices) + "; 1 or more are allowed");
}

Sizes sizes_of(gemm::Grouping grouping, const Tensor& a, const Tensor& b, const std::optional<Panels>& panels,
               const std::optional<Tensor>& offs, const std::optional<Scales>& scales) {
    const auto sa = a.sizes(), sb = b.sizes();
    const std::string shapes = "; a is " + shape_text(sa) + ", b is " + shape_text(sb);
    const int64_t rows_of_b = panels ? panels->row_elements : sb[sb.size() - 2],
                  k = scales ? codes_in(operation, "a", scales->format_a, sa.back()) : sa.back();
    if (k != (scales ? codes_in(operation, "b", scales->format_b, rows_of_b) : rows_of_b))
        fail("grouped_gemm: the columns of a are not the rows of b" + shapes);
    if (grouping != gemm::Grouping::none) {
        if (!offs) fail("grouped_gemm: offs is missing" + shapes);
        if (offs->dimensions() != 1 || offs->dtype_number() != aoti_torch_dtype_int32() ||
            !offs->is_contiguous() || !(offs->device() == a.device()))
            fail("grouped_gemm: offs needs to be contiguous, int32, of one dimension, and on a's device");
    }
    const int64_t groups = grouping == gemm::Grouping::none ? sa[0] : offs->sizes()[0];
    if (sb.size() != 2 && sb[0] != groups)
        fail("grouped_gemm: there are " + std::to_string(groups) + " groups" + shapes);
    if (!(a.device() == b.device())) fail("grouped_gemm: a and b are on different devices");
    return {groups, sa[sa.size() - 2], panels ? panels->rows : sb.back(), k};
}

struct Gates {
    int32_t activation = 0;
    bool interleaved = false;
    float alpha = 1, limit = 0;
    bool keeps_sums = false;
};

struct Results {
    Tensor result;
    std::optional<Tensor> sums;
};

// Scales by row and block of k in consecutive order, with any strides; per group if `sizes` has three
// dimensions.
gemm::ScaleArgument scale_argument(const char* name, const Tensor& scale, const std::vector<int64_t>& sizes,
                                   int64_t block_rows) {
    const auto given = scale.sizes(), strides = scale.strides();
    if (scale.dtype_number() != aoti_torch_dtype_float32() || !std::ranges::equal(given, sizes))
        fail(std::string("grouped_gemm: ") + name + " needs dtype float32 and the shape " +
             shape_text(sizes) + "; its shape is " + shape_text(given));
    const auto stride = [&](size_t from_last) {
        const size_t axis = given.size() - from_last;
        if (strides[axis] < 0) fail(std::string("grouped_gemm: ") + name + " has a negative stride");
        return given[axis] == 1 ? 0 : strides[axis];
    };
    return {scale.data(), stride(2), stride(1), given.size() == 3 ? stride(3) : 0, block_rows};
}

// The bands of each group, and those of the rows past the last group.
gemm::ScaleArgument mx_scale_of_a(const Tensor& scale, int64_t m, int64_t groups, int64_t k) {
    const int64_t band = mx_band_bytes(k);
    check_mx_scale(operation, "scale_a", scale, ((m + 31) / 32 + groups) * band);
    return {scale.data(), band, 0, band, 32};
}

gemm::ScaleArgument mx_scale_of_b(const Tensor& scale, int64_t groups, int64_t n, int64_t k) {
    const int64_t band = mx_band_bytes(k), of_group = (n + 31) / 32 * band;
    check_mx_scale(operation, "scale_b", scale, groups * of_group);
    const auto sizes = scale.sizes();
    if (sizes.size() < 2 || sizes[0] != groups || scale.element_count() / groups < of_group)
        fail("grouped_gemm: scale_b needs " + std::to_string(of_group) + " elements for each of " +
             std::to_string(groups) + " groups; its shape is " + shape_text(sizes));
    return {scale.data(), band, 0, scale.element_count() / groups, 32};
}

// Converts strides from bytes to elements.
void count_in_elements(gemm::Matrix& matrix, ElementType type) {
    const int64_t size = size_of(type);
    if (matrix.leading_stride % size != 0 || matrix.batch_stride % size != 0)
        fail("grouped_gemm: rows are " + std::to_string(matrix.leading_stride) +
             " bytes apart, no multiple of " + std::to_string(size));
    matrix.leading_stride /= size;
    matrix.batch_stride /= size;
}

// Bytes are quantized values, which have scales.
Dtype dtype_of_operands(const Tensor& a, const Tensor& b, bool scaled) {
    if (scaled) {
        if (a.dtype_number() != aoti_torch_dtype_uint8() || b.dtype_number() != aoti_torch_dtype_uint8())
            fail("grouped_gemm: operands with scales must be uint8, the bytes of their codes");
        return Dtype::uint8;
    }
    const Dtype dtype = a.dtype("grouped_gemm: a"), other = b.dtype("grouped_gemm: b");
    if (dtype == Dtype::float32 || other != dtype)
        fail(std::string("grouped_gemm: a is ") + name(dtype) + ", b is " + name(other) +
             "; both must be bfloat16, or both float16");
    return dtype;
}

Results product(Tensor a_tensor, Tensor b_tensor, const std::optional<Tensor>& offs,
                const std::optional<Tensor>& bias, Dtype out_dtype, const std::optional<Scales>& scales = {},
                const std::optional<Gates>& gates = {}, const std::optional<Gather>& gather = {}) {
    const gemm::Grouping grouping = grouping_of(a_tensor, b_tensor, offs);
    const Dtype dtype = dtype_of_operands(a_tensor, b_tensor, scales.has_value());
    const std::optional<Panels> panels = panels_of(operation, b_tensor, 1, scales ? 1 : 2);
    const auto [groups, rows_of_a, n, k] = sizes_of(grouping, a_tensor, b_tensor, panels, offs, scales);
    if (gather) check_gather(*gather, a_tensor);
    if (gather && !scales && k % 2 != 0)
        fail("grouped_gated: rows of " + std::to_string(k) +
             " elements are not gathered; an even number is needed");
    const int64_t m = gather ? gather->entries.sizes()[0] : rows_of_a;
    if (gates && (grouping != gemm::Grouping::rows || n % 2 != 0 || k == 0))
        fail(
            "grouped_gated: groups of rows of a, an even number of columns of b and some k are needed; b "
            "is " +
            shape_text(b_tensor.sizes()));
    const int64_t columns = gates ? n / 2 : n;  // columns of the result
    if (panels && gates && gates->interleaved)
        fail("grouped_gated: gates and their partners in panels do not alternate");
    if (scales && grouping != gemm::Grouping::rows)
        fail("grouped_gemm: operands with scales have groups of rows alone");
    const gemm::Scales kind = scales ? scales->kind() : gemm::Scales::none;
    if (kind != gemm::Scales::none && kind != gemm::Scales::outer && k == 0)
        fail("grouped_gemm: no blocks of k have scales");
    if (scales) check_which_are_given(*scales, kind, bias.has_value(), out_dtype);
    for (const auto* each : {scales ? &scales->a : nullptr, scales ? &scales->b : nullptr})
        if (each && *each && !((*each)->device() == a_tensor.device()))
            fail("grouped_gemm: scales and a are on different devices");
    if (bias &&
        (bias->dimensions() > 2 || bias->sizes().back() != n || !bias->is_contiguous() ||
         (bias->dimensions() == 2 && bias->sizes()[0] != groups) || !(bias->device() == a_tensor.device())))
        fail("grouped_gemm: bias needs to be contiguous, of the shape (" + std::to_string(n) + ") or (" +
             std::to_string(groups) + ", " + std::to_string(n) + "), and on a's device; it is " +
             shape_text(bias->sizes()));
    const Placement placement(a_tensor.device());
    std::vector<int64_t> sizes{groups, m, columns};
    if (grouping == gemm::Grouping::rows) sizes.erase(sizes.begin());
    Results results{placement.empty(sizes, out_dtype), {}};
    if (gates)
        results.sums =
            placement.empty(gates->keeps_sums ? std::vector<int64_t>{m, n} : std::vector<int64_t>{0}, dtype);
    Tensor& out = results.result;
    if (out.element_count() == 0) return results;
    if (groups == 0 || rows_of_a == 0) {  // no row belongs to a group, or there are no tokens
        out.set_zero();
        if (gates && gates->keeps_sums) results.sums->set_zero();
        return results;
    }

    // The operand orders that kernels support for aligned rows (gemm::is_grouped_orientation); quantized
    // operands support no others.
    const bool inner = grouping == gemm::Grouping::inner, needs_dwords = scales || gather;
    const Operand b =
        panels ? Operand{std::move(b_tensor), {nullptr, panels->row_elements, 0, true, panels->panel_rows}}
        : needs_dwords ? make_operand_on_dwords(std::move(b_tensor), dtype, true)
        : gates        ? make_operand(std::move(b_tensor), dtype, true)
        : inner        ? make_operand(std::move(b_tensor), dtype, false)
                       : make_operand(std::move(b_tensor), dtype);
    const Operand a = needs_dwords ? make_operand_on_dwords(std::move(a_tensor), dtype, false)
                      : grouping == gemm::Grouping::none && !b.matrix.transposed
                          ? make_operand(std::move(a_tensor), dtype)
                          : make_operand(std::move(a_tensor), dtype, inner);

    gemm::GroupedProblem problem;
    problem.device = placement.shape();
    problem.a_type = scales ? scales->format_a : element_type(dtype);
    problem.b_type = scales ? scales->format_b : element_type(dtype);
    problem.output = out_dtype == Dtype::int32 ? ElementType::i32 : element_type(out_dtype);
    problem.m = m;
    problem.n = columns;
    problem.k = k;
    problem.groups = groups;
    problem.grouping = grouping;
    problem.a = a.matrix;
    problem.b = b.matrix;
    problem.c = {out.data(), columns, grouping == gemm::Grouping::rows ? 0 : m * n, false};
    if (a.tensor.dimensions() == 3) problem.a.batch_stride = a.tensor.strides()[0];
    if (b.tensor.dimensions() != 2) problem.b.batch_stride = b.tensor.strides()[0];
    problem.b.data = b.tensor.data();
    if (scales) {
        count_in_elements(problem.a, problem.a_type);
        count_in_elements(problem.b, problem.b_type);
    }

    std::vector<runtime::Region> regions;
    const auto reads = [&](const Tensor& tensor, Dtype of, const char* name) -> const void* {
        const uint64_t bytes = tensor.extent_bytes(of);
        if (bytes == 0) return nullptr;
        regions.push_back({tensor.data(), bytes, name, false});
        return tensor.data();
    };
    reads(a.tensor, dtype, "a");
    reads(b.tensor, dtype, "b");
    if (offs) problem.ends = static_cast<const int32_t*>(reads(*offs, Dtype::int32, "offs"));
    if (gather) {
        problem.entries = static_cast<const int32_t*>(reads(gather->entries, Dtype::int32, "entries"));
        problem.choices = gather->choices;
        problem.tokens = rows_of_a;
    }
    if (scales) {
        problem.scales = kind;
        const int64_t shared = kind == gemm::Scales::blocks ? 128 : 1,
                      blocks = kind == gemm::Scales::blocks ? (k + 127) / 128 : 1;
        const bool mx_a = scales->scaling_a == mx_wise, mx_b = scales->scaling_b == mx_wise;
        if (scales->a) {
            problem.a_scale = mx_a ? mx_scale_of_a(*scales->a, m, groups, k)
                                   : scale_argument("scale_a", *scales->a, {m, blocks}, 1);
            reads(*scales->a, mx_a ? Dtype::uint8 : Dtype::float32, "scale_a");
        }
        if (scales->b) {
            problem.b_scale = mx_b ? mx_scale_of_b(*scales->b, groups, n, k)
                                   : scale_argument("scale_b", *scales->b,
                                                    {groups, (n + shared - 1) / shared, blocks}, shared);
            reads(*scales->b, mx_b ? Dtype::uint8 : Dtype::float32, "scale_b");
        }
    }
    if (bias) {
        const Dtype bias_dtype = bias->dtype("grouped_gemm: bias");
        problem.bias = reads(*bias, bias_dtype, "bias");
        problem.bias_type = element_type(bias_dtype);
        problem.bias_group_stride = bias->dimensions() == 2 ? n : 0;
    }
    if (gates) {
        problem.activation = gates->activation;
        problem.alpha = gates->alpha;
        problem.limit = gates->limit;
        gemm::set_partners(problem, gates->interleaved);
    }
    if (gates && gates->keeps_sums) {
        problem.sums = {results.sums->data(), n, 0, false};
        regions.push_back({results.sums->data(), results.sums->extent_bytes(dtype), "sums", true});
    }
    regions.push_back({out.data(), out.extent_bytes(out_dtype), "out", true});
    placement.launch(gemm::plan(problem), regions);
    return results;
}

void grouped_gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 1) fail("grouped_gemm is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor a = arguments.tensor();
    Tensor b = arguments.tensor();
    const std::optional<Tensor> offs = arguments.optional_tensor(), bias = arguments.optional_tensor();
    const int32_t out_dtype = arguments.dtype();
    stack[0] = to_result(product(std::move(a), std::move(b), offs, bias,
                                 dtype_from_torch(out_dtype, "grouped_gemm: out_dtype"))
                             .result);
}

void grouped_gated(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 12 || result_count != 2) fail("grouped_gated is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor a = arguments.tensor();
    Tensor b = arguments.tensor();
    const std::optional<Tensor> offs = arguments.tensor(), bias = arguments.optional_tensor(),
                                entries = arguments.optional_tensor();
    std::optional<Gather> gather;
    const int64_t choices = arguments.integer();
    if (entries) gather.emplace(*entries, choices);
    const int64_t activation = arguments.integer();
    if (activation < 0 || activation > static_cast<int64_t>(activation::Activation::swiglu))
        fail("grouped_gated: activation is " + std::to_string(activation) + "; 0 .. 5 are allowed");
    Gates gates{static_cast<int32_t>(activation)};
    gates.interleaved = arguments.boolean();
    gates.alpha = static_cast<float>(arguments.number());
    gates.limit = arguments.upper_bound();
    gates.keeps_sums = arguments.boolean();
    const Dtype out_dtype = dtype_from_torch(arguments.dtype(), "grouped_gated: out_dtype");
    Results results = product(std::move(a), std::move(b), offs, bias, out_dtype, {}, gates, gather);
    stack[0] = to_result(std::move(results.result));
    stack[1] = to_result(std::move(*results.sums));
}

void scaled_grouped_gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 13 || result_count != 1)
        fail("scaled_grouped_gemm is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor a = arguments.tensor();
    Tensor b = arguments.tensor();
    const std::optional<Tensor> offs = arguments.tensor();
    const std::optional<Tensor> scale_a = arguments.optional_tensor(), scale_b = arguments.optional_tensor();
    const std::optional<Tensor> bias = arguments.optional_tensor(), entries = arguments.optional_tensor();
    const int64_t choices = arguments.integer();
    const ElementType format_a = code_format(operation, "format_a", arguments.integer()),
                      format_b = code_format(operation, "format_b", arguments.integer());
    const int64_t scaling_a = arguments.integer(), scaling_b = arguments.integer();
    const Scales scales{scale_a, scale_b, format_a, format_b, scaling_a, scaling_b};
    const int32_t number = arguments.dtype();
    const Dtype out_dtype = number == aoti_torch_dtype_int32()
                                ? Dtype::int32
                                : dtype_from_torch(number, "grouped_gemm: out_dtype");
    std::optional<Gather> gather;
    if (entries) gather.emplace(*entries, choices);
    stack[0] =
        to_result(product(std::move(a), std::move(b), offs, bias, out_dtype, scales, {}, gather).result);
}

const Registration registration{{
    {grouped_gemm_schema, &grouped_gemm},
    {grouped_gated_schema, &grouped_gated},
    {scaled_grouped_gemm_schema, &scaled_grouped_gemm},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
