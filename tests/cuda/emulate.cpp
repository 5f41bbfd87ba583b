#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/emulate_mma.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Bounds of the section that holds every __shared__ variable; absent if no kernel has one.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the linker makes these names
extern "C" __attribute__((weak)) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

namespace hero::emulate {
namespace {

constexpr size_t kStack = 128 << 10;
constexpr int kLanes = 32;
constexpr size_t kMost = 128;  // bytes that a lane may bring to a meeting

enum class State { kReady, kAtBarrier, kInWarp, kDone };

// A copy that a thread has asked for.
struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;
};

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start;
  jmp_buf at;
  State state = State::kReady;
  bool started = false;
  const char* what = "";
  Place place{};
  std::deque<std::vector<Copy>> copies;  // by groups; the last is open
};

struct Warp {
  unsigned arrived = 0;
  alignas(16) unsigned char in[kLanes * kMost], out[kLanes * kMost];
};

Order order = Order::kAscending;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
size_t current, threads;
jmp_buf scheduler;
const std::function<void()>* body;
std::string failure;

std::string describe(const Fiber& fiber) {
  return std::string(fiber.what) + " at " + std::strrchr(fiber.place.file, '/') + ":" +
         std::to_string(fiber.place.line);
}

std::string name(size_t thread) { return "thread " + std::to_string(thread); }

[[noreturn]] void leave() { _longjmp(scheduler, 1); }

[[noreturn]] void fail(const std::string& message) {
  if (failure.empty()) failure = message;
  leave();
}

void pause() {
  if (_setjmp(fibers[current].at) == 0) leave();
}

void enter() {
  (*body)();
  fibers[current].state = State::kDone;
  leave();
}

void resume(size_t thread) {
  current = thread;
  threadIdx = {static_cast<unsigned>(thread) % blockDim.x,
               static_cast<unsigned>(thread) / blockDim.x % blockDim.y,
               static_cast<unsigned>(thread) / blockDim.x / blockDim.y};
  auto& fiber = fibers[thread];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

// Called when no thread can run. Releases the block's barrier if everybody stands at the same one, else says
// who waits for whom.
void meet_at_barrier() {
  size_t waiting = 0;
  while (fibers[waiting].state == State::kDone) ++waiting;
  const auto& one = fibers[waiting];
  const bool together = one.state == State::kAtBarrier;
  for (size_t t = 0; t < threads; ++t) {
    const auto& other = fibers[t];
    if (other.state == State::kDone) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) +
                " has left the kernel";
      return;
    }
    if (other.state != one.state || other.place.line != one.place.line ||
        other.place.file != one.place.file) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) + " in " +
                describe(other);
      return;
    }
  }
  if (!together) failure = "lanes of the mask are missing: " + name(waiting) + " waits in " + describe(one);
  for (size_t t = 0; t < threads; ++t) fibers[t].state = State::kReady;
}

__attribute__((no_sanitize("address"))) void spoil_shared_memory() {
  for (volatile unsigned char* byte = __start_emulated_shared; byte < __stop_emulated_shared; ++byte)
    *byte = 0xff;
}

void run_block() {
  spoil_shared_memory();
  for (size_t t = 0; t < threads; ++t) {
    fibers[t].state = State::kReady;
    fibers[t].started = false;
    fibers[t].copies.assign(1, {});
  }
  for (auto& warp : warps) warp.arrived = 0;
  while (failure.empty()) {
    bool all_done = true, ran = false;
    for (size_t i = 0; i < threads && failure.empty(); ++i) {
      const size_t t = order == Order::kAscending ? i : threads - 1 - i;
      if (fibers[t].state == State::kReady) {
        resume(t);
        ran = true;
      }
      all_done = all_done && fibers[t].state == State::kDone;
    }
    if (all_done) return;
    if (!ran && failure.empty()) meet_at_barrier();
  }
}

}  // namespace

void set_order(Order new_order) { order = new_order; }

void wait_for_block(Place place) {
  auto& fiber = fibers[current];
  fiber.what = "__syncthreads";
  fiber.place = place;
  fiber.state = State::kAtBarrier;
  pause();
}

void trap(Place place) { fail("trap at " + std::string(place.file) + ":" + std::to_string(place.line)); }

void meet(unsigned mask, const void* in, size_t in_bytes, void* out, size_t out_bytes,
          const std::function<void(const void* in, void* out)>& together, const char* what, Place place) {
  if (in_bytes > kMost || out_bytes > kMost) fail("a lane brings too much");
  const size_t first = current / kLanes * kLanes;
  auto& warp = warps[current / kLanes];
  auto& fiber = fibers[current];
  const unsigned own = 1u << (current - first);
  if (!(mask & own)) fail(name(current) + " is not in the mask of " + what);
  std::memcpy(warp.in + current % kLanes * in_bytes, in, in_bytes);
  fiber.what = what;
  fiber.place = place;
  warp.arrived |= own;
  if (warp.arrived != mask) {
    fiber.state = State::kInWarp;
    pause();
  } else {
    warp.arrived = 0;
    for (size_t t = first; t < first + kLanes; ++t) {
      if (!(mask >> (t - first) & 1)) continue;
      if (fibers[t].place.line != place.line || fibers[t].place.file != place.file)
        fail("divergent: " + name(t) + " waits in " + describe(fibers[t]) + ", " + name(current) + " in " +
             describe(fiber));
      fibers[t].state = State::kReady;
    }
    together(warp.in, warp.out);
  }
  std::memcpy(out, warp.out + current % kLanes * out_bytes, out_bytes);
}

void copy_later(void* to, const void* from, size_t bytes, size_t zeros, Place place) {
  const auto misplaced = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % bytes != 0; };
  if (misplaced(to) || misplaced(from) || zeros > bytes) trap(place);
  fibers[current].copies.back().push_back({to, from, bytes, zeros});
}

void commit_copies() { fibers[current].copies.emplace_back(); }

void wait_for_copies(size_t groups_under_way) {
  auto& groups = fibers[current].copies;
  for (; groups.size() > groups_under_way + 1; groups.pop_front()) {
    for (const auto& copy : groups.front()) {
      std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
      std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
    }
  }
}

std::string run(dim3 grid, dim3 block, const std::function<void()>& thread) {
  blockDim = block;
  gridDim = grid;
  body = &thread;
  failure.clear();
  threads = static_cast<size_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024) return "a block has " + std::to_string(threads) + " threads";
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return "a grid of these sizes cannot be launched";
  if (threads > fibers.size()) fibers = std::vector<Fiber>(threads);
  warps.resize((threads + kLanes - 1) / kLanes);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block();
        if (!failure.empty()) {
          return failure + " (block " + std::to_string(x) + ", " + std::to_string(y) + ", " +
                 std::to_string(z) + ")";
        }
      }
    }
  }
  return "";
}

}  // namespace hero::emulate
