// fuzz/launch_mutation.cpp: mutations that leave a code object loadable and change what it does.
// SPDX-License-Identifier: MIT
//
// Plain byte mutations of an ELF file mostly make it unreadable. Most mutations here stay within the instructions that a
// kernel consists of, and put instructions there that decode.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "code_object/code_object.h"
#include "fuzz/launch_header.h"
#include "isa/decode.h"

using namespace hipkittens;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using Random = std::minstd_rand;

// A run of bytes of the file.
struct Place {
    size_t offset = 0, bytes = 0;
};

class Mutation {
  public:
    Mutation(uint8_t* file, size_t size, const code_object::CodeObject& object, Random& random)
        : file_(file), random_(random) {
        target_ = object.target == code_object::Target::gfx942 ? isa::Target::gfx942 : isa::Target::gfx950;
        for (const auto& kernel : object.kernels) {
            const uint64_t code_bytes = kernel.code_bytes ? kernel.code_bytes : 256;
            kernels_.push_back(find(object, kernel.start_address, code_bytes, size));
            descriptors_.push_back(find(object, kernel.descriptor_address, 64, size));
        }
    }

    bool apply() {
        const size_t kernel = kernels_.empty() ? 0 : random_() % kernels_.size();
        if (kernels_.empty() || kernels_[kernel].bytes < 8) return false;
        split(kernels_[kernel]);
        if (instructions_.empty()) return false;
        const uint32_t choice = random_() % 16;
        for (uint32_t times = 1 + random_() % 4; times--;) {
            if (choice < 8) {
                replace(any());
            } else if (choice < 11) {
                flip(any());
            } else if (choice < 14) {
                copy(any(), any());
            } else if (descriptors_[kernel].bytes) {
                // 48..55: the resource words and code properties of the descriptor; 0..7: its segment sizes.
                const size_t at = random_() % 4 ? 48 + random_() % 10 : random_() % 8;
                file_[descriptors_[kernel].offset + at] ^= static_cast<uint8_t>(1u << random_() % 8);
            }
        }
        return true;
    }

  private:
    static Place find(const code_object::CodeObject& object, uint64_t address, uint64_t bytes, size_t size) {
        for (const auto& segment : object.segments) {
            if (address < segment.address || address >= segment.address + segment.file_bytes) continue;
            const size_t offset = segment.file_offset + (address - segment.address);
            const size_t left = segment.address + segment.file_bytes - address;
            if (offset < size) return {offset, std::min<size_t>({bytes, left, size - offset})};
        }
        return {};
    }

    void split(Place code) {
        for (size_t at = 0; at + 4 <= code.bytes;) {
            isa::Instruction instruction;
            const bool ok = isa::decode(target_, file_ + code.offset + at, code.bytes - at, 0, &instruction);
            const size_t bytes = ok ? instruction.bytes : 4;
            instructions_.push_back({code.offset + at, bytes});
            at += bytes;
        }
    }
    Place any() { return instructions_[random_() % instructions_.size()]; }

    // Random words of one encoding's prefix until they are an instruction that fits; s_nop behind a shorter one.
    void replace(Place place) {
        static constexpr uint32_t prefixes[][2] = {
            // value, mask of the leading bits
            {0xbe800000, 0xff800000}, {0x80000000, 0xc0000000}, {0xb0000000, 0xf0000000},
            {0xbf000000, 0xff800000}, {0xbf800000, 0xff800000}, {0xc0000000, 0xfc000000},
            {0x7e000000, 0xfe000000}, {0x00000000, 0x80000000}, {0x7c000000, 0xfe000000},
            {0xd0000000, 0xfc000000}, {0xd3800000, 0xff800000}, {0xd8000000, 0xfc000000},
            {0xe0000000, 0xfc000000}, {0xe8000000, 0xfc000000}, {0xdc000000, 0xfc000000},
        };
        const auto& prefix = prefixes[random_() % std::size(prefixes)];
        const size_t room = std::max<size_t>(place.bytes, 4);
        for (int attempt = 0; attempt < 200; ++attempt) {
            uint32_t words[4];
            for (uint32_t& word : words)
                word = static_cast<uint32_t>(random_()) << 16 ^ static_cast<uint32_t>(random_());
            words[0] = (words[0] & ~prefix[1]) | prefix[0];
            isa::Instruction instruction;
            if (!isa::decode(target_, reinterpret_cast<const uint8_t*>(words), sizeof words, 0, &instruction))
                continue;
            if (instruction.bytes > room) continue;
            std::memcpy(file_ + place.offset, words, instruction.bytes);
            const uint32_t nop = 0xbf800000;
            for (size_t at = instruction.bytes; at + 4 <= room; at += 4)
                std::memcpy(file_ + place.offset + at, &nop, 4);
            return;
        }
    }
    void flip(Place place) {
        file_[place.offset + random_() % place.bytes] ^= static_cast<uint8_t>(1u << random_() % 8);
    }
    void copy(Place from, Place to) {
        if (from.bytes <= to.bytes) std::memmove(file_ + to.offset, file_ + from.offset, from.bytes);
    }

    uint8_t* file_;
    Random& random_;
    isa::Target target_;
    std::vector<Place> kernels_, descriptors_, instructions_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
    constexpr size_t header_bytes = sizeof(fuzz::LaunchHeader);
    Random random(seed);
    if (size > header_bytes && random() % 8 == 0) {
        data[random() % header_bytes] = random() % 4 ? static_cast<uint8_t>(random()) : 0;
        return size;
    }
    if (size > header_bytes && random() % 16 != 0) {
        try {
            const code_object::CodeObject object =
                code_object::parse({data + header_bytes, size - header_bytes});
            if (Mutation(data + header_bytes, size - header_bytes, object, random).apply()) return size;
        } catch (const code_object::Error&) {
            // Damaged already: byte mutations below.
        }
    }
    return LLVMFuzzerMutate(data, size, max_size);
}
