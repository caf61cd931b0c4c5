// torch/delta_rule_chunks.h: state shared by the launches of one call where a gated delta rule runs in chunks.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "torch/delta_rule_problem.h"
#include "torch/element_type.h"

namespace hipkittens::torch_binding {

// The matrices of all chunks, which one of the prepare functions computes.
class ChunkedProblem {
  public:
    ChunkedProblem(DeltaRuleProblem& problem, const Placement& placement, float scale, bool gradients)
        : problem_(problem),
          placement_(placement),
          element_(element_type(problem.dtype)),
          chunks_(chunks_of(problem.sequences, problem.tokens)),
          places_(static_cast<int64_t>(chunks_.count) * problem.heads),
          parts_(bytes_of(problem.dtype) == 2 ? 2 : 1),
          factors_(
              of_places(delta_rule::chunk_tokens * int64_t{sizeof(delta_rule::RowFactors) / sizeof(float)},
                        Dtype::float32)),
          matrices_(
              of_places((gradients ? 4 : 2) * parts_ * delta_rule::chunk_tokens * delta_rule::chunk_tokens,
                        problem.dtype)) {
        if (problem.key % 8 != 0 || problem.value % 8 != 0)
            fail(problem.where + "K and V need to be multiples of 8");
        for (Tensor* tensor : {&problem.q, &problem.k, &problem.v})
            *tensor = problem.readable_chunks(std::move(*tensor), problem.dtype);
        common_.q = problem.rows(problem.q, problem.dtype, "q");
        common_.k = problem.rows(problem.k, problem.dtype, "k");
        common_.v = problem.rows(problem.v, problem.dtype, "v");
        problem.describe(common_);
        common_.chunks = chunks_;
        common_.factors = static_cast<delta_rule::RowFactors*>(factors_.data());
        common_.matrices = matrices_.data();
        common_.matrices_of_chunk = gradients ? 4 : 2;
        common_.value = static_cast<uint32_t>(problem.value);
        common_.scale = scale;
        keep(factors_, Dtype::float32, "factors");
        keep(matrices_, problem.dtype, "matrices");
    }

    // For decays per head.
    void prepare(bool normalize) {
        for (const auto& [tensor, name] : {std::pair{&problem_.g, "g"}, std::pair{&problem_.beta, "beta"}})
            if (tensor->dtype(problem_.where + name) != Dtype::float32)
                fail(problem_.where + name + " needs to be float32");
        delta_rule::PrepareArguments arguments{};
        describe(arguments, Dtype::float32, Dtype::float32);
        arguments.normalize = normalize;
        arguments.matrices_of_chunk = common_.matrices_of_chunk;
        each_chunk<delta_rule::kinds::prepare>(arguments, 64);
    }
    // For decays per channel.
    void prepare_channels(const DeltaRuleGate& gate, float lower_bound, bool normalize, bool beta_is_logit) {
        delta_rule::ChannelPrepareArguments arguments{};
        const auto [of_g, of_beta] = problem_.describe_gates(arguments);
        problem_.g = problem_.readable_chunks(std::move(problem_.g), of_g);
        describe(arguments, of_g, of_beta);
        gate.describe(problem_, arguments, lower_bound);
        arguments.normalize = normalize;
        arguments.beta_is_logit = beta_is_logit;
        const int64_t keys = delta_rule::operand_keys(placement_.target(), element_, common_.key);
        scaled_ = of_places(3 * parts_ * delta_rule::chunk_tokens * keys, problem_.dtype);
        decays_ = of_places(keys, Dtype::float32);
        keep(*scaled_, problem_.dtype, "scaled");
        arguments.operands = {scaled_->data(), keep(*decays_, Dtype::float32, "decays")};
        operands_ = arguments.operands;
        each_chunk<delta_rule::kinds::channel_prepare>(arguments, 256);
    }

    const delta_rule::ChunkArguments& common() const { return common_; }
    const delta_rule::ChannelOperands& operands() const { return operands_; }
    Tensor of_places(int64_t elements, Dtype type) const {
        return placement_.empty(std::array<int64_t, 2>{places_, elements}, type);
    }
    float* keep(const Tensor& tensor, Dtype type, const char* name) {
        if (tensor.element_count() > 0)
            problem_.regions.push_back({tensor.data(), tensor.extent_bytes(type), name, true});
        return static_cast<float*>(tensor.data());
    }
    template <class Kind>
    void pass(const typename Kind::Arguments& arguments, int threads) const {
        launch(delta_rule::plan_of_states<Kind>(placement_.target(), placement_.shape(), element_, threads,
                                                arguments));
    }
    void gradient(const delta_rule::GradientArguments& arguments) const {
        each_chunk<delta_rule::kinds::gradient>(arguments, 256);
    }

  private:
    template <class Given>
    void describe(Given& arguments, Dtype of_g, Dtype of_beta) {
        problem_.describe(arguments);
        arguments.q = common_.q;
        arguments.k = common_.k;
        arguments.g = problem_.rows(problem_.g, of_g, "g");
        arguments.beta = problem_.rows(problem_.beta, of_beta, "beta");
        arguments.chunks = chunks_;
        arguments.factors = static_cast<delta_rule::RowFactors*>(factors_.data());
        arguments.matrices = matrices_.data();
    }
    template <class Kind>
    void each_chunk(const typename Kind::Arguments& arguments, int threads) const {
        if (chunks_.count > 0)
            launch(delta_rule::plan_of_chunks<Kind>(placement_.target(), element_, chunks_,
                                                    common_.heads.value, common_.key, threads, arguments));
    }
    void launch(const Launch& launch) const { placement_.launch(launch, problem_.regions); }

    DeltaRuleProblem& problem_;
    const Placement& placement_;
    ElementType element_;
    delta_rule::Chunks chunks_;
    int64_t places_, parts_;
    Tensor factors_, matrices_;
    std::optional<Tensor> scaled_, decays_;
    delta_rule::ChunkArguments common_{};
    delta_rule::ChannelOperands operands_{};
};

// Runs many tokens chunk by chunk with `Scan`, few tokens one at a time with `Step`, into `out` and the states `final`.
// prepare(ChunkedProblem&) computes the matrices; describe(StepArguments&) adds what the problem does not contain.
template <class Scan, class Step, class Prepare, class Describe>
void run_rule(DeltaRuleProblem& problem, const Placement& placement, const Tensor& out, const Tensor& final,
              std::optional<Tensor>& initial, float scale, const Prepare& prepare, const Describe& describe) {
    if (final.element_count() == 0) return;
    const delta_rule::States before = problem.given_states(initial, "initial"),
                             after = problem.new_states(final, "final");
    const ElementType element = element_type(problem.dtype);
    if (delta_rule::runs_in_chunks<Scan>(placement.target(), element, problem.tokens, problem.key)) {
        ChunkedProblem chunked(problem, placement, scale, false);
        prepare(chunked);
        delta_rule::ScanArguments arguments{};
        arguments.common = chunked.common();
        arguments.operands = chunked.operands();
        arguments.out = problem.rows(out, problem.dtype, "out", true);
        arguments.initial = before;
        arguments.final = after;
        chunked.pass<Scan>(arguments, delta_rule::scan_threads);
        return;
    }
    if (problem.value % 4 != 0) fail(problem.where + "V needs to be a multiple of 4");
    delta_rule::StepArguments arguments{};
    problem.describe_step(arguments, out);
    describe(arguments);
    arguments.initial = before;
    arguments.final = after;
    arguments.scale = scale;
    placement.launch(
        delta_rule::plan_step<Step>(placement.target(), element, ElementType::f32, false, arguments),
        problem.regions);
}

}  // namespace hipkittens::torch_binding
