// code_object/kernel.h: one kernel: its descriptor and its metadata.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hipkittens::code_object {

enum class ValueKind : uint8_t {
#define VALUE_KIND(name) name,
#include "code_object/value_kind.def"
#undef VALUE_KIND
    unknown,  // Argument::kind_text holds the word
};

struct Argument {
    std::string name, type_name;  // empty if the compiler did not provide it
    std::string kind_text, address_space;
    ValueKind kind = ValueKind::unknown;
    uint32_t offset = 0, bytes = 0;  // within the kernel argument segment; checked to be inside it

    bool is_hidden() const { return kind_text.starts_with("hidden_"); }
};

// The enabled user SGPRs, in the order in which they are assigned registers from s0 upwards.
enum class UserSgpr : uint8_t {
    private_segment_buffer,  // 4 registers
    dispatch_ptr,            // 2
    queue_ptr,               // 2
    kernarg_segment_ptr,     // 2
    dispatch_id,             // 2
    flat_scratch_init,       // 2
    private_segment_size,    // 1
    kernarg_preload,         // Kernel::preload_dwords registers
};

struct UserSgprRange {
    UserSgpr kind;
    uint8_t first = 0, count = 0;
};

struct Kernel {
    std::string name;
    std::vector<Argument> arguments;            // in the order of the metadata; hidden ones come last
    std::vector<uint32_t> reqd_workgroup_size;  // 0 or 3 entries

    uint32_t lds_bytes = 0;      // static
    uint32_t private_bytes = 0;  // scratch of one work-item
    uint32_t kernarg_bytes = 0, kernarg_align = 8;
    uint32_t explicit_kernarg_bytes = 0;  // end of the last argument that is not hidden
    uint32_t max_flat_workgroup_size = 1024;
    uint32_t wavefront_size = 64;
    uint32_t vgprs = 0, agprs = 0, sgprs = 0;  // as in the metadata; vgprs includes agprs
    uint32_t vgpr_spills = 0, sgpr_spills = 0;
    bool uses_dynamic_stack = false;

    uint64_t descriptor_address = 0;  // of the .kd, in the file's addresses
    uint64_t entry_address = 0;       // from the descriptor, in the file's addresses
    // Where waves begin. Code that requests kernarg preload starts with 256 bytes that load the same
    // registers with s_load for firmware that cannot preload; firmware that can begins after them.
    uint64_t start_address = 0;
    uint64_t code_bytes = 0;  // size of the function symbol at the entry, 0 if there is none

    std::vector<UserSgprRange> user_sgprs;
    uint8_t user_sgpr_count = 0;                      // workgroup ids follow from here
    uint16_t preload_dwords = 0, preload_offset = 0;  // dwords of the kernarg segment
    bool workgroup_id_x = false, workgroup_id_y = false, workgroup_id_z = false, workgroup_info = false;
    bool private_segment = false;
    uint8_t workitem_id_mode = 0;  // v0 holds x (0), x,y (1) or x,y,z (2), ten bits each
    uint32_t allocated_vgprs = 0;  // from the descriptor: AccVGPRs included, multiple of 8
    uint32_t accum_offset = 0;     // AccVGPR 0 is register accum_offset of the unified file
    bool tg_split = false;
    uint8_t float_mode = 0;  // MODE[7:0]: round32, round16_64, denorm32, denorm16_64, two bits each
    bool ieee_mode = false, dx10_clamp = false, fp16_overflow = false;
    uint32_t compute_pgm_rsrc1 = 0, compute_pgm_rsrc2 = 0, compute_pgm_rsrc3 = 0;
    uint16_t kernel_code_properties = 0;
};

}  // namespace hipkittens::code_object
