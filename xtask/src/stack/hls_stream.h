// The part of the synthesizer's stream that the stack's code uses: a queue, here without an end. In hardware a writer
// waits for a full queue; natively none does, but for the one queue that harness.cpp holds.
#pragma once

#include <cstdlib>
#include <deque>
#include <string>

namespace hls {

// Reads and writes so far, of all streams: where they stay the same the stack has nothing to do.
inline unsigned long operations = 0;
// Whether timers that have run down wait.
inline bool timers_held = true;

template <typename T>
class stream {
    std::deque<T> values;
    bool is_of_timers = false;

public:
    stream() = default;
    explicit stream(const char *name) : is_of_timers(std::string(name) == "timer2retrans_req") {}

    bool empty() const { return values.empty(); }
    bool full() const { return is_of_timers && timers_held; }

    void read(T &into) {
        if (values.empty())
            abort();
        into = values.front();
        values.pop_front();
        operations++;
    }

    T read() {
        T value;
        read(value);
        return value;
    }

    void write(const T &value) {
        values.push_back(value);
        operations++;
    }
};

}  // namespace hls
