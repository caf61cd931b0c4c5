// simulator/json_text.h: writes JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace hipkittens::simulator {

class JsonText {
  public:
    JsonText& open(char bracket) {
        separate();
        text_ += bracket;
        first_ = true;
        return *this;
    }
    JsonText& close(char bracket) {
        text_ += bracket;
        first_ = false;
        return *this;
    }
    JsonText& key(std::string_view name) {
        value(name);
        text_ += ':';
        first_ = true;
        return *this;
    }
    JsonText& value(std::string_view string) {
        separate();
        text_ += '"';
        for (const char c : string) {
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char code[8];
                std::snprintf(code, sizeof code, "\\u%04x", c);
                text_ += code;
            } else {
                text_ += c;
            }
        }
        text_ += '"';
        return *this;
    }
    JsonText& value(const char* string) { return value(std::string_view(string)); }
    JsonText& value(bool flag) { return raw(flag ? "true" : "false"); }
    JsonText& value(std::nullptr_t) { return raw("null"); }
    template <std::integral Number>
    JsonText& value(Number number) {
        return raw(std::to_string(number));
    }
    JsonText& value(double number) {
        if (!std::isfinite(number)) return raw("null");
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.10g", number);
        return raw(digits);
    }
    template <class Value>
    JsonText& member(std::string_view name, const Value& of) {
        return key(name).value(of);
    }
    const std::string& text() const { return text_; }

  private:
    void separate() {
        if (!first_) text_ += ',';
        first_ = false;
    }
    JsonText& raw(std::string_view piece) {
        separate();
        text_ += piece;
        return *this;
    }

    std::string text_;
    bool first_ = true;
};

// An array of values that are already JSON, each on its own line.
inline std::string json_array(const std::vector<std::string>& values) {
    std::string text = "[";
    for (const std::string& value : values) {
        if (text.size() > 1) text += ",\n";
        text += value;
    }
    return text + "]";
}

}  // namespace hipkittens::simulator
