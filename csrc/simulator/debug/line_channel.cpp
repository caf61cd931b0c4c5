// simulator/debug/line_channel.cpp: lines of text to and from the program that controls the debugger.
// SPDX-License-Identifier: MIT
#include "simulator/debug/line_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace hipkittens::simulator::debug {

LineChannel::LineChannel(const std::string& path) {
    const auto refuse = [&](const char* why) {
        if (socket_ >= 0) close(socket_);
        throw std::runtime_error("HIPKITTENS_DEBUG_SOCKET is " + path + ": " + why +
                                 "; `hipkittens sim debug` sets it to the socket that it listens on");
    };
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) refuse("the path is too long for a Unix socket");
    path.copy(address.sun_path, path.size());
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0 || connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        refuse(std::strerror(errno));
}

LineChannel::~LineChannel() { close(socket_); }

void LineChannel::send(std::string line) {
    line += '\n';
    for (size_t sent = 0; sent < line.size();) {
        const ssize_t count = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return;
        sent += static_cast<size_t>(count);
    }
}

std::optional<std::string> LineChannel::receive() {
    for (;;) {
        if (const size_t end = received_.find('\n'); end != std::string::npos) {
            std::string line = received_.substr(0, end);
            received_.erase(0, end + 1);
            return line;
        }
        char part[4096];
        const ssize_t count = recv(socket_, part, sizeof part, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return std::nullopt;
        received_.append(part, static_cast<size_t>(count));
    }
}

bool LineChannel::has_input() const {
    if (!received_.empty()) return true;
    pollfd waiting{socket_, POLLIN, 0};
    return poll(&waiting, 1, 0) == 1;
}

}  // namespace hipkittens::simulator::debug
