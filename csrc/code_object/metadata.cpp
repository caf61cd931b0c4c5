// code_object/metadata.cpp: kernel metadata (MessagePack) and kernel descriptors.
// SPDX-License-Identifier: MIT
#include "code_object/metadata.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "code_object/error.h"
#include "code_object/msgpack.h"

namespace hipkittens::code_object {
namespace {

using msgpack::Type;
using msgpack::Value;

constexpr const char* compile_again = "compile the kernel again for code object version 3 or later";

const Value& required(const Value& map, std::string_view key, Type type) {
    const Value* value = map.find(key);
    if (!value)
        throw Error("metadata of a kernel has no " + std::string(key), map.file_offset, compile_again);
    if (value->type != type) {
        throw Error("metadata entry " + std::string(key) + " has the wrong type", value->file_offset,
                    compile_again);
    }
    return *value;
}

uint32_t number_of(const Value& value, std::string_view key) {
    if (value.type != Type::unsigned_integer || value.number > std::numeric_limits<uint32_t>::max()) {
        throw Error("metadata entry " + std::string(key) + " is no number of 32 bits", value.file_offset,
                    compile_again);
    }
    return static_cast<uint32_t>(value.number);
}

uint32_t number(const Value& map, std::string_view key, uint32_t otherwise) {
    const Value* value = map.find(key);
    return value ? number_of(*value, key) : otherwise;
}

std::string text(const Value& map, std::string_view key) {
    const Value* value = map.find(key);
    return value && value->type == Type::string ? std::string(value->text) : std::string();
}

ValueKind value_kind(std::string_view word) {
#define VALUE_KIND(name) \
    if (word == #name) return ValueKind::name;
#include "code_object/value_kind.def"
#undef VALUE_KIND
    return ValueKind::unknown;
}

Argument read_argument(const Value& map, uint32_t kernarg_bytes) {
    Argument argument;
    argument.name = text(map, ".name");
    argument.type_name = text(map, ".type_name");
    argument.address_space = text(map, ".address_space");
    argument.kind_text = std::string(required(map, ".value_kind", Type::string).text);
    argument.kind = value_kind(argument.kind_text);
    argument.offset = number_of(required(map, ".offset", Type::unsigned_integer), ".offset");
    argument.bytes = number_of(required(map, ".size", Type::unsigned_integer), ".size");
    if (argument.offset > kernarg_bytes || argument.bytes > kernarg_bytes - argument.offset) {
        throw Error("an argument at offset " + std::to_string(argument.offset) + " of " +
                        std::to_string(argument.bytes) + " bytes lies beyond the argument segment of " +
                        std::to_string(kernarg_bytes) + " bytes",
                    map.file_offset, compile_again);
    }
    return argument;
}

KernelMetadata read_kernel(const Value& map) {
    if (map.type != Type::map)
        throw Error("an entry of amdhsa.kernels is no map", map.file_offset, compile_again);
    KernelMetadata result;
    result.file_offset = map.file_offset;
    result.descriptor_symbol = std::string(required(map, ".symbol", Type::string).text);
    Kernel& kernel = result.kernel;
    kernel.name = std::string(required(map, ".name", Type::string).text);
    kernel.kernarg_bytes =
        number_of(required(map, ".kernarg_segment_size", Type::unsigned_integer), ".kernarg_segment_size");
    kernel.kernarg_align = number(map, ".kernarg_segment_align", 8);
    kernel.lds_bytes = number(map, ".group_segment_fixed_size", 0);
    kernel.private_bytes = number(map, ".private_segment_fixed_size", 0);
    kernel.max_flat_workgroup_size = number(map, ".max_flat_workgroup_size", 1024);
    kernel.wavefront_size = number(map, ".wavefront_size", 64);
    kernel.vgprs = number(map, ".vgpr_count", 0);
    kernel.agprs = number(map, ".agpr_count", 0);
    kernel.sgprs = number(map, ".sgpr_count", 0);
    kernel.vgpr_spills = number(map, ".vgpr_spill_count", 0);
    kernel.sgpr_spills = number(map, ".sgpr_spill_count", 0);
    const Value* dynamic_stack = map.find(".uses_dynamic_stack");
    kernel.uses_dynamic_stack =
        dynamic_stack && dynamic_stack->type == Type::boolean && dynamic_stack->number;
    if (map.find(".reqd_workgroup_size")) {
        const Value& sizes = required(map, ".reqd_workgroup_size", Type::array);
        if (sizes.items.size() != 3) {
            throw Error(".reqd_workgroup_size does not have three entries", sizes.file_offset, compile_again);
        }
        for (const Value& size : sizes.items) {
            kernel.reqd_workgroup_size.push_back(number_of(size, ".reqd_workgroup_size"));
        }
    }
    if (map.find(".args")) {
        for (const Value& item : required(map, ".args", Type::array).items) {
            if (item.type != Type::map)
                throw Error("an entry of .args is no map", item.file_offset, compile_again);
            kernel.arguments.push_back(read_argument(item, kernel.kernarg_bytes));
            const Argument& argument = kernel.arguments.back();
            if (argument.is_hidden()) continue;
            kernel.explicit_kernarg_bytes =
                std::max(kernel.explicit_kernarg_bytes, argument.offset + argument.bytes);
        }
    }
    return result;
}

uint32_t bits(uint32_t word, int first, int count) { return word >> first & ((1u << count) - 1); }

}  // namespace

std::vector<KernelMetadata> read_metadata(std::span<const uint8_t> note, uint64_t file_offset) {
    const Value root = msgpack::decode(note, file_offset);
    if (root.type != Type::map) throw Error("metadata is no map", file_offset, compile_again);
    std::vector<KernelMetadata> result;
    if (!root.find("amdhsa.kernels")) return result;
    for (const Value& item : required(root, "amdhsa.kernels", Type::array).items)
        result.push_back(read_kernel(item));
    return result;
}

void read_descriptor(std::span<const uint8_t> descriptor, uint64_t address, uint64_t file_offset,
                     Kernel& kernel) {
    const auto word = [&](size_t offset) {
        uint32_t value;
        std::memcpy(&value, descriptor.data() + offset, sizeof value);
        return value;
    };
    const auto refuse = [&](const std::string& what) {
        throw Error("kernel " + kernel.name + ": " + what, file_offset, compile_again);
    };
    int64_t entry;
    std::memcpy(&entry, descriptor.data() + 16, sizeof entry);
    kernel.descriptor_address = address;
    kernel.entry_address = address + static_cast<uint64_t>(entry);
    // Hand-written objects occasionally differ from their metadata here; hardware and HIP's loader use the
    // descriptor.
    kernel.lds_bytes = word(0);
    kernel.private_bytes = word(4);
    if (word(8) > kernel.kernarg_bytes) kernel.kernarg_bytes = word(8);

    kernel.compute_pgm_rsrc3 = word(44);
    kernel.compute_pgm_rsrc1 = word(48);
    kernel.compute_pgm_rsrc2 = word(52);
    const uint32_t rsrc1 = kernel.compute_pgm_rsrc1, rsrc2 = kernel.compute_pgm_rsrc2, properties = word(56);
    kernel.kernel_code_properties = static_cast<uint16_t>(properties);
    kernel.preload_dwords = static_cast<uint16_t>(bits(properties, 16, 7));
    kernel.preload_offset = static_cast<uint16_t>(bits(properties, 23, 9));
    kernel.start_address = kernel.entry_address + (kernel.preload_dwords ? 256 : 0);

    kernel.allocated_vgprs = (bits(rsrc1, 0, 6) + 1) * 8;  // gfx90a and later: granules of 8
    kernel.float_mode = static_cast<uint8_t>(bits(rsrc1, 12, 8));
    kernel.dx10_clamp = bits(rsrc1, 21, 1);
    kernel.ieee_mode = bits(rsrc1, 23, 1);
    kernel.fp16_overflow = bits(rsrc1, 26, 1);
    kernel.private_segment = bits(rsrc2, 0, 1);
    kernel.user_sgpr_count = static_cast<uint8_t>(bits(rsrc2, 1, 5));
    kernel.workgroup_id_x = bits(rsrc2, 7, 1);
    kernel.workgroup_id_y = bits(rsrc2, 8, 1);
    kernel.workgroup_id_z = bits(rsrc2, 9, 1);
    kernel.workgroup_info = bits(rsrc2, 10, 1);
    kernel.workitem_id_mode = static_cast<uint8_t>(bits(rsrc2, 11, 2));
    kernel.accum_offset = (bits(kernel.compute_pgm_rsrc3, 0, 6) + 1) * 4;
    kernel.tg_split = bits(kernel.compute_pgm_rsrc3, 16, 1);
    if (kernel.workitem_id_mode == 3) refuse("the descriptor's work-item id mode 3 is undefined");
    if (bits(properties, 10, 1))
        refuse("the descriptor asks for waves of 32, which this target does not have");

    struct {
        int bit;
        UserSgpr kind;
        uint8_t count;
    } const layout[] = {
        {0, UserSgpr::private_segment_buffer, 4},
        {1, UserSgpr::dispatch_ptr, 2},
        {2, UserSgpr::queue_ptr, 2},
        {3, UserSgpr::kernarg_segment_ptr, 2},
        {4, UserSgpr::dispatch_id, 2},
        {5, UserSgpr::flat_scratch_init, 2},
        {6, UserSgpr::private_segment_size, 1},
    };
    uint32_t next = 0;
    for (const auto& [bit, kind, count] : layout) {
        if (!bits(properties, bit, 1)) continue;
        kernel.user_sgprs.push_back({kind, static_cast<uint8_t>(next), count});
        next += count;
    }
    if (kernel.preload_dwords) {
        kernel.user_sgprs.push_back({UserSgpr::kernarg_preload, static_cast<uint8_t>(next),
                                     static_cast<uint8_t>(kernel.preload_dwords)});
        next += kernel.preload_dwords;
        const uint32_t end = (kernel.preload_offset + kernel.preload_dwords) * 4u;
        // Rounded up: a preloaded tail of fewer than four bytes is read together with the segment's padding.
        if (end > (kernel.kernarg_bytes + 3) / 4 * 4)
            refuse("the descriptor preloads beyond the argument segment");
    }
    if (next > 16) refuse("the descriptor asks for more than 16 user SGPRs");
    if (next > kernel.user_sgpr_count) {
        refuse("the descriptor enables " + std::to_string(next) + " user SGPRs but counts " +
               std::to_string(kernel.user_sgpr_count));
    }
}

}  // namespace hipkittens::code_object
