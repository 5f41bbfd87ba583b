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

// Bounds of all __shared__ variables, from shared_memory.ld.
// NOLINTNEXTLINE(bugprone-reserved-identifier): defined by the linker
extern "C" uint64_t __start_emulated_shared[], __stop_emulated_shared[];

namespace hero::emulate {

__attribute__((section("emulated_shared"), aligned(1024))) unsigned char dynamic_shared[kDynamicSharedBytes];

namespace {

constexpr size_t kStack = 128 << 10;
constexpr int kWarpSize = 32;
constexpr size_t kMaxLaneBytes = 128;  // bytes per lane in a warp collective

enum class State { kReady, kAtBarrier, kAtClusterBarrier, kInWarp, kDone };

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
// Of all blocks of a cluster, one block after another.
std::vector<Fiber> fibers;
std::vector<Warp> warps;
size_t current, threads, cluster;  // index of the running fiber; threads per block; blocks per cluster
unsigned first_block;              // blockIdx.x of the cluster's first block
// Shared memory of the blocks of a cluster that are not `loaded`, whose own is in the section.
std::vector<std::vector<uint64_t>> shared_images;
size_t loaded;
jmp_buf scheduler;
Stack scheduler_stack;
const std::function<void()>* body;
std::string failure;

std::string describe(const Fiber& fiber) {
  return std::string(fiber.what) + " at " + std::strrchr(fiber.location.file, '/') + ":" +
         std::to_string(fiber.location.line);
}

std::string name(size_t fiber) { return "thread " + std::to_string(fiber % threads); }

Warp& current_warp() {
  const size_t per_block = (threads + kWarpSize - 1) / kWarpSize;
  return warps[current / threads * per_block + current % threads / kWarpSize];
}

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

void wait_at_barrier(State state, const char* what, SourceLocation location) {
  auto& fiber = fibers[current];
  fiber.what = what;
  fiber.location = location;
  fiber.state = state;
  suspend();
}

void run_fiber() {
  after_switch({}, &scheduler_stack);
  (*body)();
  fibers[current].state = State::kDone;
  yield_to_scheduler();
}

void resume(size_t index) {
  current = index;
  const size_t thread = index % threads;
  threadIdx = {static_cast<unsigned>(thread) % blockDim.x,
               static_cast<unsigned>(thread) / blockDim.x % blockDim.y,
               static_cast<unsigned>(thread) / blockDim.x / blockDim.y};
  auto& fiber = fibers[index];
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

// Called when no thread of a block can run. Releases the barrier if all of them wait at it; returns false if
// they wait for the cluster. Reports divergence.
bool release_barrier(size_t block) {
  const size_t begin = block * threads, end = begin + threads;
  size_t waiting = begin;
  while (fibers[waiting].state == State::kDone) ++waiting;
  const auto& one = fibers[waiting];
  for (size_t t = begin; t < end; ++t) {
    const auto& other = fibers[t];
    if (other.state == State::kDone) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) +
                " has exited the kernel";
      return true;
    }
    if (other.state != one.state || other.location.line != one.location.line ||
        other.location.file != one.location.file) {
      failure = "divergent: " + name(waiting) + " waits in " + describe(one) + ", " + name(t) + " in " +
                describe(other);
      return true;
    }
  }
  if (one.state == State::kAtClusterBarrier) return false;
  if (one.state == State::kInWarp)
    failure = "not all lanes of the mask arrived: " + name(waiting) + " waits in " + describe(one);
  for (size_t t = begin; t < end; ++t) fibers[t].state = State::kReady;
  return true;
}

// Not memset and memcpy, which AddressSanitizer checks: the section has its red zones between variables.
__attribute__((no_sanitize("address"))) void poison_shared_memory() {
  for (volatile uint64_t* word = __start_emulated_shared; word < __stop_emulated_shared; ++word)
    *word = ~uint64_t{0};
}

// Exchanges the section with an image of the same size.
__attribute__((no_sanitize("address"))) void exchange_shared_memory(std::vector<uint64_t>& image) {
  uint64_t* other = image.data();
  for (volatile uint64_t* word = __start_emulated_shared; word < __stop_emulated_shared; ++word, ++other) {
    const uint64_t own = *word;
    *word = *other;
    *other = own;
  }
}

void load_block(size_t block) {
  blockIdx.x = first_block + static_cast<unsigned>(block);
  if (block == loaded) return;
  exchange_shared_memory(shared_images[block]);
  shared_images[loaded].swap(shared_images[block]);
  loaded = block;
}

// Runs a block until all its threads have exited, which returns true, or wait for the cluster.
bool run_block(size_t block) {
  load_block(block);
  while (failure.empty()) {
    bool all_done = true, ran = false;
    for (size_t i = 0; i < threads && failure.empty(); ++i) {
      const size_t t = block * threads + (order == Order::kAscending ? i : threads - 1 - i);
      if (fibers[t].state == State::kReady) {
        resume(t);
        ran = true;
      }
      all_done = all_done && fibers[t].state == State::kDone;
    }
    if (all_done) return true;
    if (!ran && failure.empty() && !release_barrier(block)) return false;
  }
  return true;
}

void start_cluster() {
  poison_shared_memory();
  const auto section = static_cast<size_t>(__stop_emulated_shared - __start_emulated_shared);
  shared_images.assign(cluster, std::vector<uint64_t>(cluster > 1 ? section : 0, ~uint64_t{0}));
  loaded = 0;
  for (auto& fiber : fibers) {
    fiber.state = State::kReady;
    fiber.started = false;
    fiber.copies.assign(1, {});
    fiber.products.assign(1, {});
    fiber.unfenced_copies = false;
  }
  for (auto& warp : warps) warp.arrived = 0;
}

// Runs the blocks of a cluster, one after another, from one barrier of the cluster to the next.
void run_cluster() {
  start_cluster();
  while (failure.empty()) {
    size_t done = 0;
    for (size_t i = 0; i < cluster && failure.empty(); ++i)
      done += run_block(order == Order::kAscending ? i : cluster - 1 - i);
    if (done == cluster || !failure.empty()) return;
    if (done > 0) failure = "divergent: a block waits for its cluster, another one has exited the kernel";
    for (size_t block = 1; block < cluster && failure.empty(); ++block) {
      const auto &first = fibers[0].location, &other = fibers[block * threads].location;
      if (first.line != other.line || first.file != other.file)
        failure =
            "divergent: blocks wait in " + describe(fibers[0]) + " and " + describe(fibers[block * threads]);
    }
    for (auto& fiber : fibers) fiber.state = State::kReady;
  }
}

}  // namespace

void set_order(Order new_order) { order = new_order; }

void block_barrier(SourceLocation location) { wait_at_barrier(State::kAtBarrier, "__syncthreads", location); }

void cluster_barrier(SourceLocation location) {
  wait_at_barrier(State::kAtClusterBarrier, "a barrier of the cluster", location);
}

unsigned cluster_rank() { return static_cast<unsigned>(current / threads); }
unsigned cluster_size() { return static_cast<unsigned>(cluster); }

void* shared_address_in_block(void* address, unsigned rank) {
  if (rank >= cluster) fail("a cluster has " + std::to_string(cluster) + " blocks");
  if (rank == loaded) return address;
  const auto offset = static_cast<char*>(address) - reinterpret_cast<char*>(__start_emulated_shared);
  return reinterpret_cast<char*>(shared_images[rank].data()) + offset;
}

void trap(SourceLocation location) {
  fail("trap at " + std::string(location.file) + ":" + std::to_string(location.line));
}

void warp_collective(unsigned mask, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                     const std::function<void(const void* in, void* out)>& combine, const char* what,
                     SourceLocation location) {
  if (in_bytes > kMaxLaneBytes || out_bytes > kMaxLaneBytes) fail("too many bytes per lane");
  const size_t lane = current % threads % kWarpSize, first = current - lane;
  auto& warp = current_warp();
  auto& fiber = fibers[current];
  const unsigned own = 1u << lane;
  if (!(mask & own)) fail(name(current) + " is not in the mask of " + what);
  std::memcpy(warp.in + lane * in_bytes, in, in_bytes);
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
  std::memcpy(out, warp.out + lane * out_bytes, out_bytes);
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

std::string run(dim3 grid, dim3 block, const std::function<void()>& thread, unsigned blocks_per_cluster) {
  blockDim = block;
  gridDim = grid;
  body = &thread;
  failure.clear();
  threads = static_cast<size_t>(block.x) * block.y * block.z;
  cluster = blocks_per_cluster;
  if (threads == 0 || threads > 1024) return "a block has " + std::to_string(threads) + " threads";
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return "invalid grid size";
  if (cluster == 0 || cluster > 8 || grid.x % cluster != 0) return "invalid cluster size";
  if (threads * cluster > fibers.size()) fibers = std::vector<Fiber>(threads * cluster);
  warps.resize((threads + kWarpSize - 1) / kWarpSize * cluster);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += blocks_per_cluster) {
        blockIdx = {x, y, z};
        first_block = x;
        run_cluster();
        if (!failure.empty()) {
          return failure + " (block " + std::to_string(blockIdx.x) + ", " + std::to_string(y) + ", " +
                 std::to_string(z) + ")";
        }
      }
    }
  }
  return "";
}

}  // namespace hero::emulate
