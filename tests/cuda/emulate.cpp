#include <setjmp.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/emulate_mma.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Bounds of the section of all __shared__ variables; null if no kernel has one.
// NOLINTNEXTLINE(bugprone-reserved-identifier): defined by the linker
extern "C" __attribute__((weak)) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

namespace hero::emulate {
namespace {

constexpr size_t kStack = 128 << 10;
constexpr int kWarpSize = 32;
constexpr size_t kMaxLaneBytes = 128;  // bytes per lane in a warp collective

enum class State { kReady, kAtBarrier, kInWarp, kDone };

// A pending asynchronous copy.
struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;
};

// A stack as AddressSanitizer knows it: its bounds, and the state of a stack that was left.
struct Stack {
  const void* bottom = nullptr;
  size_t size = 0;
  void* state = nullptr;
};

// Announces the switch from one stack to another, before and after.
void before_switch([[maybe_unused]] Stack* from, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(from ? &from->state : nullptr, to.bottom, to.size);
#endif
}
void after_switch([[maybe_unused]] const Stack& to, [[maybe_unused]] Stack* from = nullptr) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(to.state, from ? &from->bottom : nullptr, from ? &from->size : nullptr);
#endif
}

struct Fiber {
  std::unique_ptr<char[]> memory{new char[kStack]};
  Stack stack{memory.get(), kStack};
  ucontext_t start;
  jmp_buf at;
  State state = State::kReady;
  bool started = false;
  const char* what = "";
  SourceLocation location{};
  // By committed group; the last one is open.
  std::deque<std::vector<Copy>> copies;
  std::deque<std::vector<std::function<void()>>> products;
  bool unfenced_copies = false;
};

struct Warp {
  unsigned arrived = 0;
  alignas(16) unsigned char in[kWarpSize * kMaxLaneBytes], out[kWarpSize * kMaxLaneBytes];
};

Order order = Order::kAscending;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
size_t current, threads;
jmp_buf scheduler;
Stack scheduler_stack;
const std::function<void()>* body;
std::string failure;

std::string describe(const Fiber& fiber) {
  return std::string(fiber.what) + " at " + std::strrchr(fiber.location.file, '/') + ":" +
         std::to_string(fiber.location.line);
}

std::string name(size_t thread) { return "thread " + std::to_string(thread); }

[[noreturn]] void yield_to_scheduler() {
  auto& fiber = fibers[current];
  before_switch(fiber.state == State::kDone ? nullptr : &fiber.stack, scheduler_stack);
  _longjmp(scheduler, 1);
}

[[noreturn]] void fail(const std::string& message) {
  if (failure.empty()) failure = message;
  yield_to_scheduler();
}

void suspend() {
  if (_setjmp(fibers[current].at) == 0) yield_to_scheduler();
  after_switch(fibers[current].stack, &scheduler_stack);
}

void run_fiber() {
  after_switch({}, &scheduler_stack);
  (*body)();
  fibers[current].state = State::kDone;
  yield_to_scheduler();
}

void resume(size_t thread) {
  current = thread;
  threadIdx = {static_cast<unsigned>(thread) % blockDim.x,
               static_cast<unsigned>(thread) / blockDim.x % blockDim.y,
               static_cast<unsigned>(thread) / blockDim.x / blockDim.y};
  auto& fiber = fibers[thread];
  if (_setjmp(scheduler) != 0) return after_switch(scheduler_stack);
  before_switch(&scheduler_stack, fiber.stack);
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.memory.get();
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, run_fiber, 0);
  setcontext(&fiber.start);
}

// Called when no thread can run. Releases the barrier if all threads of the block wait at it, else reports
// the divergence.
void release_barrier() {
  size_t waiting = 0;
  while (fibers[waiting].state == State::kDone) ++waiting;
  const auto& one = fibers[waiting];
  const bool at_barrier = one.state == State::kAtBarrier;
  for (size_t t = 0; t < threads; ++t) {
    const auto& other = fibers[t];
    if (other.state == State::kDone) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) +
                " has exited the kernel";
      return;
    }
    if (other.state != one.state || other.location.line != one.location.line ||
        other.location.file != one.location.file) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) + " in " +
                describe(other);
      return;
    }
  }
  if (!at_barrier)
    failure = "not all lanes of the mask arrived: " + name(waiting) + " waits in " + describe(one);
  for (size_t t = 0; t < threads; ++t) fibers[t].state = State::kReady;
}

__attribute__((no_sanitize("address"))) void poison_shared_memory() {
  for (volatile unsigned char* byte = __start_emulated_shared; byte < __stop_emulated_shared; ++byte)
    *byte = 0xff;
}

void run_block() {
  poison_shared_memory();
  for (size_t t = 0; t < threads; ++t) {
    fibers[t].state = State::kReady;
    fibers[t].started = false;
    fibers[t].copies.assign(1, {});
    fibers[t].products.assign(1, {});
    fibers[t].unfenced_copies = false;
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
    if (!ran && failure.empty()) release_barrier();
  }
}

}  // namespace

void set_order(Order new_order) { order = new_order; }

void block_barrier(SourceLocation location) {
  auto& fiber = fibers[current];
  fiber.what = "__syncthreads";
  fiber.location = location;
  fiber.state = State::kAtBarrier;
  suspend();
}

void trap(SourceLocation location) {
  fail("trap at " + std::string(location.file) + ":" + std::to_string(location.line));
}

void warp_collective(unsigned mask, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                     const std::function<void(const void* in, void* out)>& combine, const char* what,
                     SourceLocation location) {
  if (in_bytes > kMaxLaneBytes || out_bytes > kMaxLaneBytes) fail("too many bytes per lane");
  const size_t first = current / kWarpSize * kWarpSize;
  auto& warp = warps[current / kWarpSize];
  auto& fiber = fibers[current];
  const unsigned own = 1u << (current - first);
  if (!(mask & own)) fail(name(current) + " is not in the mask of " + what);
  std::memcpy(warp.in + current % kWarpSize * in_bytes, in, in_bytes);
  fiber.what = what;
  fiber.location = location;
  warp.arrived |= own;
  if (warp.arrived != mask) {
    fiber.state = State::kInWarp;
    suspend();
  } else {
    warp.arrived = 0;
    for (size_t t = first; t < first + kWarpSize; ++t) {
      if (!(mask >> (t - first) & 1)) continue;
      if (fibers[t].location.line != location.line || fibers[t].location.file != location.file)
        fail("divergent: " + name(t) + " waits in " + describe(fibers[t]) + ", " + name(current) + " in " +
             describe(fiber));
      fibers[t].state = State::kReady;
    }
    combine(warp.in, warp.out);
  }
  std::memcpy(out, warp.out + current % kWarpSize * out_bytes, out_bytes);
}

void async_copy(void* to, const void* from, size_t bytes, size_t zeros, SourceLocation location) {
  const auto misaligned = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % bytes != 0; };
  if (misaligned(to) || misaligned(from) || zeros > bytes) trap(location);
  fibers[current].copies.back().push_back({to, from, bytes, zeros});
}

void commit_async_copies() { fibers[current].copies.emplace_back(); }

void wait_for_async_copies(size_t groups_in_flight) {
  auto& groups = fibers[current].copies;
  for (; groups.size() > groups_in_flight + 1; groups.pop_front()) {
    for (const auto& copy : groups.front()) {
      fibers[current].unfenced_copies = true;
      std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
      std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
    }
  }
}

void fence_async_copies() { fibers[current].unfenced_copies = false; }

void async_product(const std::function<void()>& product, SourceLocation location) {
  if (fibers[current].unfenced_copies) trap(location);
  fibers[current].products.back().push_back(product);
}

void commit_async_products() { fibers[current].products.emplace_back(); }

void wait_for_async_products(size_t groups_in_flight) {
  auto& groups = fibers[current].products;
  for (; groups.size() > groups_in_flight + 1; groups.pop_front()) {
    for (const auto& product : groups.front()) product();
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
    return "invalid grid size";
  if (threads > fibers.size()) fibers = std::vector<Fiber>(threads);
  warps.resize((threads + kWarpSize - 1) / kWarpSize);
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
