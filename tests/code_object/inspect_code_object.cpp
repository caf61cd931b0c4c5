// tests/code_object/inspect_code_object.cpp: prints a code object as JSON, or parses damaged copies of it.
// SPDX-License-Identifier: MIT
//
//   inspect_code_object show FILE
//   inspect_code_object mutate FILE SEED COUNT      exit 0 and counts; a crash or a foreign exception is the
//   failure
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "code_object/code_object.h"

using namespace hipkittens::code_object;

static std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result + "\"";
}

static std::string json(const Kernel& k) {
    static const char* const user_sgpr_names[] = {
        "private_segment_buffer", "dispatch_ptr",   "queue_ptr",
        "kernarg_segment_ptr",    "dispatch_id",    "flat_scratch_init",
        "private_segment_size",   "kernarg_preload"};
    std::string text = "{\"name\": " + quoted(k.name) + ", \"arguments\": [";
    const auto comma = [&](bool is_first) { text += is_first ? "" : ", "; };
    for (const Argument& a : k.arguments) {
        comma(&a == &k.arguments.front());
        text += "{\"name\": " + quoted(a.name) + ", \"offset\": " + std::to_string(a.offset) +
                ", \"bytes\": " + std::to_string(a.bytes) + ", \"kind\": " + quoted(a.kind_text) +
                ", \"known\": " + (a.kind == ValueKind::unknown ? "false" : "true") +
                ", \"address_space\": " + quoted(a.address_space) + "}";
    }
    text += "], \"user_sgprs\": [";
    for (const UserSgprRange& r : k.user_sgprs) {
        comma(&r == &k.user_sgprs.front());
        text += "[\"" + std::string(user_sgpr_names[static_cast<int>(r.kind)]) + "\", " +
                std::to_string(r.first) + ", " + std::to_string(r.count) + "]";
    }
    text += "]";
    const auto number = [&](const char* name, uint64_t value) {
        text += ", \"" + std::string(name) + "\": " + std::to_string(value);
    };
#define NUMBER(member) number(#member, k.member)
    NUMBER(lds_bytes);
    NUMBER(private_bytes);
    NUMBER(kernarg_bytes);
    NUMBER(kernarg_align);
    NUMBER(explicit_kernarg_bytes);
    NUMBER(max_flat_workgroup_size);
    NUMBER(wavefront_size);
    NUMBER(vgprs);
    NUMBER(agprs);
    NUMBER(sgprs);
    NUMBER(vgpr_spills);
    NUMBER(sgpr_spills);
    NUMBER(entry_address);
    NUMBER(start_address);
    NUMBER(code_bytes);
    NUMBER(descriptor_address);
    NUMBER(user_sgpr_count);
    NUMBER(preload_dwords);
    NUMBER(preload_offset);
    NUMBER(workgroup_id_x);
    NUMBER(workgroup_id_y);
    NUMBER(workgroup_id_z);
    NUMBER(workgroup_info);
    NUMBER(private_segment);
    NUMBER(workitem_id_mode);
    NUMBER(allocated_vgprs);
    NUMBER(accum_offset);
    NUMBER(tg_split);
    NUMBER(float_mode);
    NUMBER(ieee_mode);
    NUMBER(dx10_clamp);
    NUMBER(fp16_overflow);
    NUMBER(uses_dynamic_stack);
#undef NUMBER
    text += ", \"reqd_workgroup_size\": [";
    for (size_t i = 0; i < k.reqd_workgroup_size.size(); ++i) {
        comma(i == 0);
        text += std::to_string(k.reqd_workgroup_size[i]);
    }
    return text + "]}";
}

static int show(const std::vector<uint8_t>& file) {
    const CodeObject object = parse(file);
    const uint64_t run_address = 0x7f0000001000;
    std::vector<uint8_t> image(object.image_bytes);
    load_image(object, file, image, run_address);
    std::printf(
        "{\"target\": \"%s\", \"abi_version\": %d, \"image_address\": %llu, \"run_address\": %llu, "
        "\"kernels\": [",
        target_name(object.target), object.abi_version, static_cast<unsigned long long>(object.image_address),
        static_cast<unsigned long long>(run_address));
    for (const Kernel& k : object.kernels)
        std::printf("%s%s", &k == &object.kernels[0] ? "" : ", ", json(k).c_str());
    std::printf("], \"symbols\": {");
    bool is_first = true;
    for (const Symbol& s : object.symbols) {
        if (!s.is_defined || !s.is_dynamic) continue;
        std::printf("%s%s: [%llu, %llu]", is_first ? "" : ", ", quoted(s.name).c_str(),
                    static_cast<unsigned long long>(s.address), static_cast<unsigned long long>(s.bytes));
        is_first = false;
    }
    std::printf("}, \"relocations\": %zu, \"image\": \"", object.relocations.size());
    for (uint8_t byte : image) std::printf("%02x", byte);
    std::printf("\"}\n");
    return 0;
}

static int mutate(const std::vector<uint8_t>& original, unsigned seed, int count) {
    std::mt19937 random(seed);
    int accepted = 0, refused = 0;
    for (int i = 0; i < count; ++i) {
        std::vector<uint8_t> file = original;
        if (random() % 4 == 0) file.resize(random() % (file.size() + 1));
        // Half of the damage goes to the headers, notes and tables at both ends, where the structure is.
        for (unsigned n = random() % 8 + 1; n-- && !file.empty();) {
            const size_t place =
                random() % 2 ? random() % file.size() : random() % std::min<size_t>(file.size(), 2560);
            static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, 0xdf, 0xdd, 0xc9};
            file[place] = random() % 2 ? edges[random() % sizeof edges] : static_cast<uint8_t>(random());
        }
        // An exact-sized heap copy lets AddressSanitizer see a read one byte beyond.
        const std::vector<uint8_t> exact(file.begin(), file.end());
        try {
            const CodeObject object = parse(exact);
            if (object.image_bytes < (1u << 24)) {
                std::vector<uint8_t> image(object.image_bytes);
                load_image(object, exact, image, 0x1000);
            }
            ++accepted;
        } catch (const Error& error) {
            if (std::strlen(error.what()) < 20) return 3;
            ++refused;
        }
    }
    std::printf("{\"accepted\": %d, \"refused\": %d}\n", accepted, refused);
    return 0;
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    std::ifstream stream(argv[2], std::ios::binary);
    const std::vector<uint8_t> file{std::istreambuf_iterator<char>(stream), {}};
    if (argc == 5) return mutate(file, static_cast<unsigned>(std::atoi(argv[3])), std::atoi(argv[4]));
    try {
        return show(file);
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
