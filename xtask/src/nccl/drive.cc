// Drives NCCL's transport for verbs as NCCL does, without a GPU: two processes, each of which sends to the other.
//
// drive PORT TOGETHER [HOST]: waits on a TCP port of this machine, or connects to it where the other process
// waits. So many receives at most are asked for together. All devices that NCCL takes (NCCL_IB_HCA) are one to
// it. Every byte is compared.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "nccl_net.h"

extern ncclNet_t ncclNetIb;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(60);
constexpr size_t kRoom = size_t(96) << 20;
constexpr size_t kLong = size_t(64) << 20;
// Bytes behind each message, which stay as they are.
constexpr size_t kGuard = 64;
constexpr uint8_t kUntouched = 0xa5;
constexpr int kGroup = 8;

[[noreturn]] void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::_Exit(1);
}

void check(ncclResult_t result, const char *call) {
  if (result != ncclSuccess) fail("%s answers %d", call, int(result));
}

#define CHECK(call) check((call), #call)

void log(ncclDebugLogLevel, unsigned long, const char *, int, const char *, ...) {}

ncclResult_t profile(void **, int, void *, int64_t, void *) { return ncclSuccess; }

// Fails when nothing has happened for too long.
class Patience {
 public:
  void happened() { last_ = Clock::now(); }
  void wait() {
    if (Clock::now() - last_ > kPatience) fail("nothing happens");
    std::this_thread::yield();
  }

 private:
  Clock::time_point last_ = Clock::now();
};

int reach(uint16_t port, const char *host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  int line = socket(AF_INET, SOCK_STREAM, 0);
  if (host) {
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("%s is no address", host);
    if (connect(line, reinterpret_cast<sockaddr *>(&address), sizeof address)) fail("nobody waits");
    return line;
  }
  int on = 1;
  setsockopt(line, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(line, reinterpret_cast<sockaddr *>(&address), sizeof address) || listen(line, 1)) {
    fail("cannot wait on port %u", unsigned(port));
  }
  return accept(line, nullptr, nullptr);
}

// Tells the other process and hears as much.
void exchange(int line, const void *own, void *other, size_t length) {
  if (write(line, own, length) != ssize_t(length)) fail("the other process is gone");
  if (recv(line, other, length, MSG_WAITALL) != ssize_t(length)) fail("the other process is gone");
}

uint8_t byte_of(uint64_t seed, size_t index) {
  uint64_t word = (seed + 1) * 0x9e3779b97f4a7c15u + (index >> 3) * 0xd1342543de82ef95u;
  return uint8_t((word ^ word >> 29) >> (8 * (index & 7)));
}

struct Message {
  size_t offset, size, room;
  uint64_t seed;
};

struct Peer {
  void *sends, *receives;
  void *send_key, *receive_key;
  uint8_t *out, *in;
  size_t messages = 0, bytes = 0;
};

// Groups of messages that are under way at a time, in either direction.
void batch(Peer &peer, const std::vector<std::vector<Message>> &groups, uint64_t own, uint64_t others) {
  struct Receive {
    void *request = nullptr, *flush = nullptr;
    bool done = false;
  };
  std::vector<Receive> receives(groups.size());
  for (size_t g = 0; g < groups.size(); g++) {
    void *data[kGroup], *keys[kGroup];
    size_t sizes[kGroup];
    int tags[kGroup];
    int count = int(groups[g].size());
    for (int i = 0; i < count; i++) {
      const Message &it = groups[g][i];
      std::memset(peer.in + it.offset, kUntouched, it.room + kGuard);
      for (size_t b = 0; b < it.size; b++) peer.out[it.offset + b] = byte_of(it.seed ^ own, b);
      data[i] = peer.in + it.offset;
      keys[i] = peer.receive_key;
      sizes[i] = it.room;
      tags[i] = int(g) << 8 | i;
    }
    CHECK(ncclNetIb.irecv(peer.receives, count, data, sizes, tags, keys, nullptr, &receives[g].request));
    if (!receives[g].request) fail("no receive is taken");
  }
  // Sends are offered in the order of the receives; of a group the last one first.
  size_t group = 0, left = groups[0].size(), open = 0;
  std::vector<void *> sends;
  Patience patience;
  while (group < groups.size() || !sends.empty() || open < groups.size()) {
    if (group < groups.size()) {
      const Message &it = groups[group][left - 1];
      void *request = nullptr;
      int tag = int(group) << 8 | int(left - 1);
      CHECK(ncclNetIb.isend(peer.sends, peer.out + it.offset, it.size, tag, peer.send_key, nullptr, &request));
      if (request) {
        sends.push_back(request);
        if (--left == 0 && ++group < groups.size()) left = groups[group].size();
        patience.happened();
      }
    }
    for (size_t s = 0; s < sends.size();) {
      int done = 0;
      CHECK(ncclNetIb.test(sends[s], &done, nullptr));
      if (done) sends.erase(sends.begin() + s), patience.happened();
      else s++;
    }
    for (size_t g = 0; g < groups.size(); g++) {
      Receive &it = receives[g];
      if (it.done) continue;
      int done = 0, sizes[kGroup] = {};
      CHECK(ncclNetIb.test(it.flush ? it.flush : it.request, &done, it.flush ? nullptr : sizes));
      if (!done) continue;
      patience.happened();
      bool something = false;
      if (!it.flush) {
        void *data[kGroup], *keys[kGroup];
        for (size_t i = 0; i < groups[g].size(); i++) {
          const Message &message = groups[g][i];
          if (size_t(sizes[i]) != message.size) fail("%d bytes came of %zu", sizes[i], message.size);
          data[i] = peer.in + message.offset;
          keys[i] = peer.receive_key;
          something = something || message.size > 0;
        }
        CHECK(ncclNetIb.iflush(peer.receives, int(groups[g].size()), data, sizes, keys, &it.flush));
        if (something && !it.flush) fail("NCCL does not flush");
        if (it.flush) continue;
      }
      it.done = true;
      open++;
      for (const Message &message : groups[g]) {
        for (size_t b = 0; b < message.room + kGuard; b++) {
          uint8_t wanted = b < message.size ? byte_of(message.seed ^ others, b) : kUntouched;
          if (peer.in[message.offset + b] != wanted) fail("byte %zu of %zu is wrong", b, message.size);
        }
        peer.messages++;
        peer.bytes += message.size;
      }
    }
    patience.wait();
  }
}

uint8_t *memory() {
  void *at = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("there is no memory");
  return static_cast<uint8_t *>(at);
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 3) fail("drive PORT TOGETHER [HOST]");
  size_t together = std::min(size_t(std::atoi(arguments[2])), size_t(kGroup));
  const char *host = count > 3 ? arguments[3] : nullptr;
  int line = reach(uint16_t(std::atoi(arguments[1])), host);

  ncclNetCommConfig_t config{};
  config.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF;
  void *context = nullptr;
  CHECK(ncclNetIb.init(&context, 0, &config, log, profile));
  int devices = 0;
  CHECK(ncclNetIb.devices(&devices));
  if (devices == 0) fail("NCCL finds no device");
  int device = 0;
  if (devices > 1) {
    ncclNetVDeviceProps_t all{};
    for (all.ndevs = 0; all.ndevs < devices; all.ndevs++) all.devs[all.ndevs] = all.ndevs;
    CHECK(ncclNetIb.makeVDevice(&device, &all));
  }
  ncclNetProperties_t properties{};
  CHECK(ncclNetIb.getProperties(device, &properties));
  std::printf("%s: %d Mbit/s, %d receives together, memory %#x\n", properties.name, properties.speed,
              properties.maxRecvs, unsigned(properties.ptrSupport));

  char own[NCCL_NET_HANDLE_MAXSIZE] = {}, other[NCCL_NET_HANDLE_MAXSIZE] = {};
  void *listener = nullptr;
  CHECK(ncclNetIb.listen(context, device, own, &listener));
  exchange(line, own, other, sizeof own);
  Peer peer{};
  Patience patience;
  while (!peer.sends || !peer.receives) {
    ncclNetDeviceHandle_t *none = nullptr;
    if (!peer.sends) CHECK(ncclNetIb.connect(context, device, other, &peer.sends, &none));
    if (!peer.receives) CHECK(ncclNetIb.accept(listener, &peer.receives, &none));
    patience.wait();
  }
  peer.out = memory();
  peer.in = memory();
  CHECK(ncclNetIb.regMr(peer.sends, peer.out, kRoom, NCCL_PTR_HOST, &peer.send_key));
  CHECK(ncclNetIb.regMr(peer.receives, peer.in, kRoom, NCCL_PTR_HOST, &peer.receive_key));

  uint64_t seeds[2] = {uint64_t(1) << 40, uint64_t(2) << 40};
  uint64_t mine = seeds[host != nullptr], others = seeds[host == nullptr], random = 88172645463325252u;
  auto below = [&random](size_t bound) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return size_t(random % bound);
  };
  for (int round = 0; round < 40; round++) {
    std::vector<std::vector<Message>> groups(16);
    size_t offset = 0;
    for (auto &group : groups) {
      size_t size = round % 2 ? 1 + below(together) : 1;
      for (size_t i = 0; i < size; i++) {
        size_t bytes = below(8) ? below(40000) : 0, room = bytes + below(100);
        group.push_back({offset, bytes, room, random});
        offset += room + kGuard + below(64);
      }
    }
    batch(peer, groups, mine, others);
  }
  for (int round = 0; round < 2; round++) batch(peer, {{{0, kLong, kLong, random + round}}}, mine, others);

  char byte = 0;
  exchange(line, &byte, &byte, 1);
  CHECK(ncclNetIb.deregMr(peer.sends, peer.send_key));
  CHECK(ncclNetIb.deregMr(peer.receives, peer.receive_key));
  CHECK(ncclNetIb.closeSend(peer.sends));
  CHECK(ncclNetIb.closeRecv(peer.receives));
  CHECK(ncclNetIb.closeListen(listener));
  CHECK(ncclNetIb.finalize(context));
  std::printf("%zu messages of %zu bytes arrived as they should\n", peer.messages, peer.bytes);
  return 0;
}
