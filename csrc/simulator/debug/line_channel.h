// simulator/debug/line_channel.h: lines of text to and from the program that controls the debugger.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace hipkittens::simulator::debug {

// A Unix socket. A closed peer is no error: nothing is sent to it, and nothing is received.
class LineChannel {
  public:
    // Throws std::runtime_error with the path and the reason if nobody listens there.
    explicit LineChannel(const std::string& path);
    ~LineChannel();
    LineChannel(const LineChannel&) = delete;

    void send(std::string line);
    std::optional<std::string> receive();  // waits for a whole line; none once the peer has closed
    bool has_input() const;                // receive() would not wait for its first byte

  private:
    int socket_ = -1;
    std::string received_;
};

}  // namespace hipkittens::simulator::debug
