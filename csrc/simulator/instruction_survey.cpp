// simulator/instruction_survey.cpp: lists the instructions in a piece of code, and which of them the simulator can run.
// SPDX-License-Identifier: MIT
#include <map>
#include <optional>
#include <string>

#include "isa/decode.h"
#include "isa/disassemble.h"
#include "isa/table.h"
#include "simulator/execute/families.h"
#include "simulator/hip_call.h"
#include "simulator/machine/control.h"
#include "simulator/machine/loaded_code.h"
#include "simulator/machine/product_runs.h"
#include "simulator/machine/program.h"

using namespace hipkittens;
using namespace hipkittens::simulator;

namespace {

struct Tally {
    const char* row = "";
    uint64_t count = 0, implemented = 0;
};

// Queries the binders. Their steps are discarded, and the constants too before there are too many.
class Judge {
  public:
    bool has_meaning(const isa::Instruction& instruction) {
        if (!builder_ || builder_->constant_values().size() > 256) {
            builder_.emplace(settings_, 512, 256);
        }
        builder_->steps().clear();
        return bind_control(instruction, *builder_) != Control::none ||
               bind_instruction(instruction, *builder_, settings_);
    }

  private:
    Settings settings_ = [] {
        Settings settings;
        settings.host_level = best_host_level();
        return settings;
    }();
    std::optional<StepBuilder> builder_;
};

// A key for each variant of a row's syntax.
uint64_t spelling_of(const isa::Instruction& instruction) {
    return static_cast<uint64_t>(instruction.opcode) << 16 |
           static_cast<uint64_t>(instruction.encoding) << 8 |
           static_cast<uint64_t>(instruction.has_dpp) << 1 | static_cast<uint64_t>(instruction.has_sdwa);
}

}  // namespace

HIPKITTENS_EXPORT int hipkittens_survey(int target, const uint8_t* code, size_t size,
                                        HipkittensVisitMnemonic visit, void* context) {
    return call("hipkittens_survey", [&] {
        require(target == 942 || target == 950, hip::hipErrorInvalidValue,
                "the target is neither 942 nor 950");
        require_pointer(code, "code");
        require(visit != nullptr, hip::hipErrorInvalidValue, "visit is a null pointer");
        const isa::Target which = target == 942 ? isa::Target::gfx942 : isa::Target::gfx950;
        std::map<uint64_t, std::string> names;
        std::map<std::string, Tally> tallies;
        Judge judge;
        for (size_t at = 0; at + 4 <= size;) {
            isa::Instruction instruction;
            if (!isa::decode(which, code + at, size - at, 0, &instruction)) {
                ++tallies[".long"].count;
                at += 4;
                continue;
            }
            std::string& name = names[spelling_of(instruction)];
            if (name.empty()) name = isa::mnemonic_text(instruction);
            Tally& tally = tallies[name];
            tally.row = instruction.row->mnemonic;
            ++tally.count;
            tally.implemented += judge.has_meaning(instruction);
            at += instruction.bytes;
        }
        for (const auto& [name, tally] : tallies)
            visit(context, name.c_str(), tally.row, tally.count, tally.implemented);
    });
}

HIPKITTENS_EXPORT int hipkittens_product_runs(const uint8_t* code_object, size_t size, uint64_t* products,
                                              uint64_t* runs) {
    return call("hipkittens_product_runs", [&] {
        require_pointer(code_object, "code_object");
        require_pointer(products, "products");
        require_pointer(runs, "runs");
        // Translating for a level runs code of that level.
        require(best_host_level() >= HostLevel::avx512_bf16, hip::hipErrorNotSupported,
                "products are brought together for processors with AVX512_BF16, which this one is not");
        Settings settings;
        settings.host_level = HostLevel::avx512_bf16;
        LoadedCode code({code_object, size});
        require(!code.object().kernels.empty(), hip::hipErrorInvalidValue, "the code object has no kernel");
        const ProductRuns found = product_runs(*code.program(code.object().kernels.front(), settings));
        *products = found.products;
        *runs = found.runs;
    });
}
