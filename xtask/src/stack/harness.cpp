// The published card's RoCE stack, compiled natively and driven by what comes in by standard input. It answers by
// standard output; fuzz/src/targets/differential/stack.rs is the other end, and says what the messages are.
//
// Around the stack stands what the shell has there: payload of posts and of READ responses comes at once, by a rule
// that the other end knows, and payload of requests that are sent again out of the slot that the first one filled.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <vector>

// All of the stack in one piece: its templates are instantiated by whom they are used.
#include "axi_utils.cpp"
#include "ipv4/ipv4_utils.cpp"
#include "ipv4/ipv4.cpp"
#include "udp/udp.cpp"
#include "crc/crc.cpp"
#include "ib_transport_protocol/ib_utils.cpp"
#include "ib_transport_protocol/ib_transport_protocol.cpp"
#include "rocev2/rocev2.cpp"

typedef net_axis<DATA_WIDTH> word;
typedef std::vector<uint8_t> bytes;

static const size_t WORD = DATA_WIDTH / 8;
// Calls without a read or a write after which the stack is done: more than any of its machines passes through idly.
static const int IDLE = 64;
// Calls after which it never will be.
static const long ENDLESS = 1000000;

static hls::stream<word> from_net, to_net, to_memory, from_memory;
static hls::stream<txMeta> posts;
static hls::stream<ackMeta> acks;
static hls::stream<memCmd> writes, reads;
static hls::stream<qpContext> contexts;
static hls::stream<ifConnReq> connections;
static hls::stream<psnPkg> debug[3];
static ap_uint<32> crc_drops, psn_drops, repeated, received, sent;
static uint32_t own_ipv4;
static bool is_endless;

// Payload of each QP's slots.
static std::map<std::pair<unsigned, unsigned>, bytes> slots;
static bytes frame, landed;
static std::vector<bytes> frames, payloads;
static std::vector<memCmd> landings;

static void read_exactly(void *into, size_t length) {
    for (char *at = static_cast<char *>(into); length > 0;) {
        ssize_t got = read(STDIN_FILENO, at, length);
        if (got <= 0)
            _exit(got == 0 ? 0 : 1);
        at += got;
        length -= got;
    }
}

static bytes output;

template <typename T>
static void put(T value) {
    const uint8_t *at = reinterpret_cast<const uint8_t *>(&value);
    output.insert(output.end(), at, at + sizeof value);
}

static void put_bytes(const bytes &value) {
    put<uint32_t>(value.size());
    output.insert(output.end(), value.begin(), value.end());
}

static void flush() {
    for (size_t done = 0; done < output.size();) {
        ssize_t written = write(STDOUT_FILENO, output.data() + done, output.size() - done);
        if (written <= 0)
            _exit(1);
        done += written;
    }
    output.clear();
}

template <typename T>
static T get() {
    T value;
    read_exactly(&value, sizeof value);
    return value;
}

static void feed(hls::stream<word> &into, const bytes &from) {
    for (size_t at = 0; at < from.size(); at += WORD) {
        word next(0, 0, at + WORD >= from.size());
        for (size_t i = 0; i < WORD && at + i < from.size(); i++) {
            next.data(8 * i + 7, 8 * i) = from[at + i];
            next.keep[i] = 1;
        }
        into.write(next);
    }
}

// Takes words, and whole packets of them into a list.
static void collect(hls::stream<word> &from, bytes &begun, std::vector<bytes> &into) {
    while (!from.empty()) {
        word next = from.read();
        for (size_t i = 0; i < WORD; i++) {
            if (next.keep[i])
                begun.push_back((uint8_t)next.data(8 * i + 7, 8 * i));
        }
        if (next.last) {
            into.push_back(begun);
            begun.clear();
        }
    }
}

// What lies at an address of a QP's address space.
static bytes memory(unsigned qpn, uint64_t addr, size_t length) {
    bytes there(length);
    for (size_t i = 0; i < length; i++) {
        uint64_t at = addr + i;
        there[i] = (uint8_t)(at ^ at >> 8 ^ at >> 16 ^ 37 * qpn);
    }
    return there;
}

// Answers a request for payload, and tells of it where that is counted; false where that is of no bytes, or of more than any packet has.
static bool supply(const memCmd &cmd) {
    unsigned qpn = cmd.qpn, slot = cmd.offs;
    bool responds = cmd.op_code >= RC_RDMA_READ_RESP_FIRST;
    if (responds && (unsigned)cmd.lst) {
        put<uint8_t>('r');
        put<uint16_t>(qpn);
    }
    size_t length = (unsigned)cmd.len;
    if (length == 0 || length > PMTU)
        return false;
    bytes payload = memory(qpn, (uint64_t)cmd.addr, length);
    if (!responds) {
        bytes &there = slots[{qpn, slot}];
        there.resize(std::max(there.size(), length));
        if ((unsigned)cmd.actv)
            std::copy(payload.begin(), payload.end(), there.begin());
        else
            payload.assign(there.begin(), there.begin() + length);
    }
    feed(from_memory, payload);
    return true;
}

static bool step() {
    rocev2_top(from_net, to_net, posts, acks, writes, reads, to_memory, from_memory, contexts, connections,
               ap_uint<128>(own_ipv4), debug[0], debug[1], debug[2], crc_drops, psn_drops, repeated, received, sent);
    for (auto &stream : debug) {
        psnPkg seen(RC_ACK, 0, 0, 0);
        while (!stream.empty()) {
            stream.read(seen);
            // What it says of itself, and where it stands without end, is no work.
            hls::operations -= 2;
        }
    }
    while (!reads.empty()) {
        if (!supply(reads.read()))
            return false;
    }
    while (!acks.empty()) {
        ackMeta ack = acks.read();
        put<uint8_t>('a');
        put<uint8_t>(ack.op_code);
        put<uint16_t>((unsigned)ack.qpn);
        put<uint8_t>((unsigned)ack.dst);
        put<uint8_t>((unsigned)ack.strm);
        put<uint8_t>((unsigned)ack.lst);
    }
    while (!writes.empty())
        landings.push_back(writes.read());
    collect(to_net, frame, frames);
    collect(to_memory, landed, payloads);
    return true;
}

// Lets the stack work until it has nothing to do; false where it wants what no shell can give it.
static bool settle() {
    int idle = 0;
    for (long calls = 0; idle < IDLE; calls++) {
        unsigned long before = hls::operations;
        if (!step())
            return false;
        if (calls > ENDLESS) {
            is_endless = true;
            return false;
        }
        idle = hls::operations == before ? idle + 1 : 0;
    }
    return true;
}

// Tells what has come of a command.
static void answer(bool settled) {
    for (auto &whole : frames) {
        put<uint8_t>('f');
        put_bytes(whole);
    }
    size_t whole = std::min(landings.size(), payloads.size());
    for (size_t i = 0; i < whole; i++) {
        memCmd &cmd = landings[i];
        put<uint8_t>('w');
        put<uint16_t>((unsigned)cmd.qpn);
        put<uint8_t>(cmd.op_code);
        put<uint8_t>((unsigned)cmd.lst);
        put<uint64_t>((uint64_t)cmd.addr);
        bytes &payload = payloads[i];
        payload.resize(std::min(payload.size(), (size_t)(unsigned)cmd.len));
        put_bytes(payload);
    }
    frames.clear();
    landings.erase(landings.begin(), landings.begin() + whole);
    payloads.erase(payloads.begin(), payloads.begin() + whole);
    put<uint8_t>(settled ? 'd' : is_endless ? 'o' : 'x');
    for (unsigned value : {(unsigned)psn_drops, (unsigned)repeated, (unsigned)received, (unsigned)sent})
        put<uint32_t>(value);
    flush();
}

// Has every timer that runs expire once.
static bool tick() {
    // All run down, and wait; a round is one call for each QP, and a timer's time is 10 of them natively.
    for (int calls = 0; calls < 12 * MAX_QPS; calls++) {
        if (!step())
            return false;
    }
    hls::timers_held = false;
    for (int calls = 0; calls < MAX_QPS + IDLE; calls++) {
        if (!step())
            return false;
    }
    hls::timers_held = true;
    return settle();
}

static bool take(uint8_t command) {
    switch (command) {
    case 'i':
        own_ipv4 = __builtin_bswap32(get<uint32_t>());
        return settle();
    case 'q': {
        uint32_t qpn = get<uint32_t>(), expected = get<uint32_t>(), next = get<uint32_t>(), key = get<uint32_t>();
        contexts.write(qpContext(READY_SEND, qpn, next, expected, key, 0));
        return settle();
    }
    case 'n': {
        uint32_t qpn = get<uint32_t>(), remote = get<uint32_t>(), ipv4 = get<uint32_t>(), port = get<uint32_t>();
        ap_uint<128> address = 0;
        address(127, 96) = __builtin_bswap32(ipv4);
        connections.write(ifConnReq(qpn, remote, address, port));
        return settle();
    }
    case 'p': {
        uint32_t opcode = get<uint32_t>(), qpn = get<uint32_t>(), slot = get<uint32_t>(), last = get<uint32_t>();
        uint32_t length = get<uint32_t>();
        uint64_t local = get<uint64_t>(), remote = get<uint64_t>();
        posts.write(txMeta(ibOpCode(opcode), qpn, PKG_HOST, last, slot, local, remote, length, 0));
        return settle();
    }
    case 'f': {
        bytes packet(get<uint32_t>());
        read_exactly(packet.data(), packet.size());
        feed(from_net, packet);
        return settle();
    }
    case 't':
        return tick();
    default:
        _exit(2);
    }
}

int main() {
    // What the stack says of itself goes nowhere.
    std::cout.setstate(std::ios::failbit);
    // Its list of free elements is filled by one at a time.
    for (int calls = 0; calls < 2100; calls++)
        step();
    // There is no way to reset it, so each life is a process.
    for (;;) {
        if (get<uint8_t>() != 'c')
            return 2;
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            for (;;) {
                uint8_t command = get<uint8_t>();
                if (command == 'e')
                    _exit(0);
                answer(take(command));
            }
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 1;
    }
}
