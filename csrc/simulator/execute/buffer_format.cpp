// simulator/execute/buffer_format.cpp: buffer loads and stores that convert: buffer_*_format_* with the format in their
// descriptor, tbuffer_* with a format of their own.
// SPDX-License-Identifier: MIT
//
// Data and number formats as in the CDNA3 ISA manual's table of buffer formats; X occupies the lowest bits of an element.
// Channels missing from the format read 0, W reads 1. An element that is not entirely in range reads 0 and is not stored. A
// store changes only the channels that it names. The descriptor's DST_SEL selects channels for buffer_load_format_* only.
#include "simulator/execute/buffer_format.h"

#include "isa/table.h"
#include "simulator/execute/vector_memory.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

using isa::Opcode;

enum Number : uint32_t { unorm, snorm, uscaled, sscaled, uint, sint, reserved, floating };

// Bit widths of the channels X, Y, Z, W by data format.
constexpr uint8_t channel_bits[16][4] = {
    {},
    {8},
    {16},
    {8, 8},
    {32},
    {16, 16},
    {11, 11, 10},
    {10, 11, 11},
    {2, 10, 10, 10},
    {10, 10, 10, 2},
    {8, 8, 8, 8},
    {32, 32},
    {16, 16, 16, 16},
    {32, 32, 32},
    {32, 32, 32, 32},
    {},
};
uint32_t element_bytes(uint32_t data_format) {
    const uint8_t* bits = channel_bits[data_format];
    return (bits[0] + bits[1] + bits[2] + bits[3]) / 8u;
}
bool is_known(uint32_t data_format, uint32_t number_format) {
    if (element_bytes(data_format) == 0 || number_format == reserved) return false;
    // There are no floats of 8 or of 2 bits.
    return number_format != floating ||
           (channel_bits[data_format][0] >= 10 && channel_bits[data_format][3] != 2);
}

// The access an instruction requests; kept in Step::extra[2] above the flags, and in the operation with the
// format.
struct Request {
    uint32_t data_format : 4, number_format : 3, channels : 3, is_half : 1, is_high : 1, is_typed : 1,
        unused : 7, selects : 12;
};
static_assert(sizeof(Request) == 4);
constexpr int request_shift = 12;

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Floats of 16 bits (5 exponent bits, signed) and of 11 and 10 bits (5 exponent bits, unsigned).
float from_short_float(uint32_t raw, int bits) {
    const int fraction_bits = bits == 16 ? 10 : bits - 5;
    const uint32_t magnitude = bits == 16 ? raw & 0x7fff : raw, exponent = magnitude >> fraction_bits,
                   fraction = magnitude & ((1u << fraction_bits) - 1);
    const uint32_t sign = bits == 16 ? (raw & 0x8000) << 16 : 0;
    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << (23 - fraction_bits));
    if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << (23 - fraction_bits));
    const float tiny =
        static_cast<float>(fraction) * float_of(static_cast<uint32_t>(127 - 14 - fraction_bits) << 23);
    return sign ? -tiny : tiny;
}
// Rounds to nearest even; in unsigned formats negative numbers become 0.
uint32_t to_short_float(float value, int bits) {
    const int fraction_bits = bits == 16 ? 10 : bits - 5;
    const uint32_t pattern = bits_of(value), magnitude = pattern & 0x7fffffff, negative = pattern >> 31;
    const uint32_t infinity = 31u << fraction_bits, sign = bits == 16 ? negative << 15 : 0;
    if (magnitude > 0x7f800000) return sign | infinity | 1u << (fraction_bits - 1);
    if (bits != 16 && negative) return 0;
    const double scaled = static_cast<double>(float_of(magnitude));
    int exponent = static_cast<int>(magnitude >> 23) - 127;
    if (exponent < -14) exponent = -14;
    if (exponent > 15) return sign | infinity;
    const double steps = __builtin_ldexp(scaled, fraction_bits - exponent);
    uint32_t whole = static_cast<uint32_t>(steps);
    const double rest = steps - whole;
    whole += rest > 0.5 || (rest == 0.5 && (whole & 1));
    // The implicit bit carries into the exponent.
    const uint32_t code = (static_cast<uint32_t>(exponent + 14) << fraction_bits) + whole;
    return sign | (code < infinity ? code : infinity);
}

int32_t sign_extended(uint32_t raw, int bits) {
    return static_cast<int32_t>(raw << (32 - bits)) >> (32 - bits);
}
uint32_t largest(int bits) { return bits == 32 ? ~0u : (1u << bits) - 1; }

bool is_integer(uint32_t number) { return number == uint || number == sint; }

// A channel as 32 bits: f32 or an integer.
uint32_t from_channel(uint32_t raw, int bits, uint32_t number) {
    const double top = largest(bits), signed_top = largest(bits - 1);
    switch (number) {
        case unorm:
            return bits_of(static_cast<float>(raw / top));
        case snorm: {
            const double value = sign_extended(raw, bits) / signed_top;
            return bits_of(static_cast<float>(value < -1 ? -1 : value));
        }
        case uscaled:
            return bits_of(static_cast<float>(raw));
        case sscaled:
            return bits_of(static_cast<float>(sign_extended(raw, bits)));
        case sint:
            return static_cast<uint32_t>(sign_extended(raw, bits));
        case floating:
            return bits == 32 ? raw : bits_of(from_short_float(raw, bits));
        default:
            return raw;
    }
}

double clamped(double value, double low, double high) {
    return value > low ? (value < high ? value : high) : low;
}
uint32_t nearest_even(double value) {
    return static_cast<uint32_t>(static_cast<int64_t>(__builtin_rint(value)));
}

uint32_t to_channel(uint32_t value, int bits, uint32_t number) {
    const double top = largest(bits), signed_top = largest(bits - 1);
    double real = is_integer(number) ? 0 : static_cast<double>(float_of(value));
    if (real != real && number != floating) real = 0;
    switch (number) {
        case unorm:
            return nearest_even(clamped(real, 0, 1) * top);
        case snorm:
            return nearest_even(clamped(real, -1, 1) * signed_top) & largest(bits);
        case uscaled:
            return static_cast<uint32_t>(clamped(real, 0, top));
        case sscaled:
            return static_cast<uint32_t>(static_cast<int64_t>(clamped(real, -signed_top - 1, signed_top))) &
                   largest(bits);
        case uint:
            return value < largest(bits) ? value : largest(bits);
        case sint:
            return static_cast<uint32_t>(static_cast<int64_t>(
                       clamped(static_cast<int32_t>(value), -signed_top - 1, signed_top))) &
                   largest(bits);
        default:
            return bits == 32 ? value : to_short_float(float_of(value), bits);
    }
}

// Bits [first, first + count) of an element; no channel crosses a dword.
uint32_t get_bits(const uint8_t* element, int first, int count) {
    uint32_t dword;
    memcpy(&dword, element + first / 32 * 4, 4);
    return dword >> (first % 32) & largest(count);
}
void set_bits(uint8_t* element, int first, int count, uint32_t value) {
    uint32_t dword;
    memcpy(&dword, element + first / 32 * 4, 4);
    const uint32_t mask = largest(count) << (first % 32);
    dword = (dword & ~mask) | (value << (first % 32) & mask);
    memcpy(element + first / 32 * 4, &dword, 4);
}

void decode_element(const uint8_t* element, Request request, uint32_t channels[4]) {
    const uint32_t one = is_integer(request.number_format) ? 1 : bits_of(1.0f);
    uint32_t values[4] = {0, 0, 0, one};
    for (int i = 0, first = 0; i < 4; ++i) {
        const int bits = channel_bits[request.data_format][i];
        if (bits) values[i] = from_channel(get_bits(element, first, bits), bits, request.number_format);
        first += bits;
    }
    for (int i = 0; i < 4; ++i) {
        const uint32_t select =
            request.is_typed ? 4u + static_cast<uint32_t>(i) : request.selects >> (3 * i) & 7;
        channels[i] = select >= 4 ? values[select - 4] : select == 1 ? one : 0;
    }
}

uint32_t to_half(uint32_t value, uint32_t number) {
    return is_integer(number) ? value & 0xffff : to_short_float(float_of(value), 16);
}
uint32_t from_half(uint32_t half, uint32_t number) {
    if (number == sint) return static_cast<uint32_t>(sign_extended(half & 0xffff, 16));
    return number == uint ? half & 0xffff : bits_of(from_short_float(half & 0xffff, 16));
}

Request request_of(const PendingOperation* operation) {
    Request request;
    memcpy(&request, &operation->lds_offset, sizeof request);
    return request;
}

void complete_load(Wave*, PendingOperation* operation) {
    const Request request = request_of(operation);
    uint32_t* rows = reinterpret_cast<uint32_t*>(operation->rows);
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        uint32_t channels[4] = {0, 0, 0, 0};
        if (operation->valid >> lane & 1) {
            uint8_t element[16] = {};
            memcpy(element, reinterpret_cast<const void*>(operation->address[lane]), operation->bytes);
            decode_element(element, request, channels);
        }
        for (uint32_t i = 0; i < request.channels; ++i) {
            if (!request.is_half) {
                rows[64 * i + lane] = channels[i];
                continue;
            }
            const uint32_t shift = 16 * (request.is_high ? 1 : i % 2),
                           half = to_half(channels[i], request.number_format);
            uint32_t& target = rows[64 * (i / 2) + lane];
            // A single half preserves the other half.
            target = (target & ~(0xffffu << shift)) | half << shift;
        }
    }
}

void complete_store(Wave*, PendingOperation* operation) {
    const Request request = request_of(operation);
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        void* place = reinterpret_cast<void*>(operation->address[lane]);
        uint8_t element[16] = {};
        memcpy(element, place, operation->bytes);
        for (uint32_t i = 0, first = 0; i < request.channels; ++i) {
            const int bits = channel_bits[request.data_format][i];
            if (!bits) break;
            uint32_t value =
                operation->data[64 * (request.is_half ? i / 2 : i) + static_cast<uint32_t>(lane)];
            if (request.is_half)
                value = from_half(value >> (16 * (request.is_high ? 1 : i % 2)), request.number_format);
            set_bits(element, static_cast<int>(first), bits, to_channel(value, bits, request.number_format));
            first += static_cast<uint32_t>(bits);
        }
        memcpy(place, element, operation->bytes);
    }
}

template <bool is_store>
const Step* issue(Wave* wave, const Step* step) {
    Request request;
    const uint32_t asked = step->extra[2] >> request_shift;
    memcpy(&request, &asked, sizeof request);
    if (!request.is_typed) {
        const uint32_t word3 = read_scalar(wave, step->source[2] + 3 * layout::scalar_row_bytes);
        request.data_format = word3 >> 15 & 15;
        request.number_format = word3 >> 12 & 7;
        request.selects = word3 & 0xfff;
    }
    if (!is_known(request.data_format, request.number_format))
        return fault(wave, step, "a reserved buffer format",
                     request.data_format | request.number_format << 4);
    PendingOperation* operation = peek_operation(wave);
    Step sized = *step;
    sized.extra[0] = element_bytes(request.data_format);
    if (!record_buffer_addresses(wave, &sized, operation)) {
        wave->fault_step = step;
        return nullptr;
    }
    if (operation->partial) {
        for (uint64_t left = operation->valid; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            if (operation->valid_bytes[lane] < sized.extra[0]) operation->valid &= ~(uint64_t{1} << lane);
        }
        operation->partial = false;
    }
    begin_results(wave, &sized, operation);
    memcpy(&operation->lds_offset, &request, sizeof request);
    if constexpr (is_store) {
        const uint32_t rows = request.is_half ? (request.channels + 1u) / 2 : request.channels;
        memcpy(operation->data, at(wave, step->source[1]), rows * layout::vector_row_bytes);
        operation->dwords = 0;
    } else {
        poison_results(wave, step);
    }
    queue_vector_memory(wave, operation, is_store);
    return step + 1;
}

struct Form {
    uint8_t channels = 0;
    bool is_store = false, is_half = false, is_high = false;
};

#define CHANNELS(name, is_store, is_half)     \
    case Opcode::name##_x:                    \
        return {1, is_store, is_half, false}; \
    case Opcode::name##_xy:                   \
        return {2, is_store, is_half, false}; \
    case Opcode::name##_xyz:                  \
        return {3, is_store, is_half, false}; \
    case Opcode::name##_xyzw:                 \
        return {4, is_store, is_half, false};

Form form_of(Opcode opcode) {
    switch (opcode) {
        CHANNELS(buffer_load_format, false, false)
        CHANNELS(buffer_store_format, true, false)
        CHANNELS(buffer_load_format_d16, false, true)
        CHANNELS(buffer_store_format_d16, true, true)
        CHANNELS(tbuffer_load_format, false, false)
        CHANNELS(tbuffer_store_format, true, false)
        CHANNELS(tbuffer_load_format_d16, false, true)
        CHANNELS(tbuffer_store_format_d16, true, true)
        case Opcode::buffer_load_format_d16_hi_x:
            return {1, false, true, true};
        case Opcode::buffer_store_format_d16_hi_x:
            return {1, true, true, true};
        default:
            return {};
    }
}
#undef CHANNELS

}  // namespace

bool bind_formatted_buffer(const isa::Instruction& instruction, StepBuilder& builder) {
    const Form form = form_of(instruction.opcode);
    if (!form.channels || instruction.lds) return false;
    // Positions of mubuf and mtbuf operands: vdata, vaddr, srsrc, soffset.
    const isa::Operand* operands = instruction.operands;
    const uint32_t scalar_offset = scalar_row_or_zero(instruction, operands[3], builder);
    Request request = {};
    request.channels = form.channels & 7u;
    request.is_half = form.is_half;
    request.is_high = form.is_high;
    request.is_typed = instruction.encoding == isa::Encoding::mtbuf;
    request.data_format = instruction.format & 15u;
    request.number_format = instruction.format >> 4 & 7u;
    uint32_t asked;
    memcpy(&asked, &request, sizeof asked);
    Step& step = builder.emit(form.is_store ? issue<true> : issue<false>);
    step.immediate = instruction.offset;
    if (operands[1].code != isa::code::none) step.source[0] = builder.offset_of(operands[1].code);
    step.source[2] = builder.offset_of(operands[2].code);
    step.extra[1] = scalar_offset;
    step.stride[0] = instruction.offen;
    step.stride[1] = instruction.idxen;
    (form.is_store ? step.source[1] : step.destination) = builder.offset_of(operands[0].code);
    step.dwords = form.is_store ? 0 : operands[0].dwords;
    step.extra[2] =
        flags_of(builder, instruction) | (form.is_store ? memory_flag::is_store : 0) | asked << request_shift;
    set_completion(step, form.is_store ? complete_store : complete_load);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
