#include "distributed/rendezvous.h"

#include <c10/util/Logging.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "distributed/activity.h"
#include "distributed/sign.h"
#include "io/error.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr auto kPause = std::chrono::milliseconds(20);

std::chrono::milliseconds in_milliseconds(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

std::string address(const Launch& launch) { return launch.host + ":" + std::to_string(launch.port); }

std::string random_name() {
  std::random_device random;
  char name[17];
  std::snprintf(name, sizeof name, "%08x%08x", random(), random());
  return name;
}

StorePtr connect(const Launch& launch, bool serve, double timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = in_milliseconds(timeout);
  // c10d reports on stderr, at length, what is caught here.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
  } catch (const std::exception& e) {
    throw RunError(
        "rank " + std::to_string(launch.rank) + ": " +
        (serve ? "cannot serve the store at " : "found no store within " + seconds(timeout) + " at ") +
        address(launch) + " (MASTER_ADDR, MASTER_PORT): " + one_line(e));
  }
}

// Rank 0's side: gives this start of the run a name, and tells it to every process that asks. A rank counts
// as come when it has answered under that name: a process of an earlier start may have asked before it.
std::string gather(c10d::Store& store, const Launch& launch, Clock::time_point deadline, double timeout) {
  const std::string start = random_name();
  std::map<int64_t, std::string> missing;  // and whom of them we have told
  for (int64_t rank = 1; rank < launch.size; ++rank) missing[rank];
  while (!missing.empty()) {
    for (auto entry = missing.begin(); entry != missing.end();) {
      auto& [rank, told] = *entry;
      const auto asker = find(store, "ask/" + std::to_string(rank));
      if (asker && *asker != told) store.set("answer/" + (told = *asker), start);
      entry =
          store.check({start + "/come/" + std::to_string(rank)}) ? missing.erase(entry) : std::next(entry);
    }
    if (Clock::now() > deadline) break;
    if (!missing.empty()) std::this_thread::sleep_for(kPause);
  }
  std::string names;
  for (const auto& [rank, told] : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const std::string verdict = names.empty() ? ""
                                            : (missing.size() == 1 ? "rank " : "ranks ") + names + " of " +
                                                  std::to_string(launch.size) + " did not come within " +
                                                  seconds(timeout) + " (parallel.timeout)";
  store.set(start + "/met", verdict);
  if (!verdict.empty()) {
    std::this_thread::sleep_for(25 * kPause);  // the others read it
    throw RunError(verdict);
  }
  return start;
}

// The other ranks' side.
std::string join(c10d::Store& store, const Launch& launch, Clock::time_point deadline, double timeout) {
  const std::string rank = std::to_string(launch.rank), asker = random_name();
  const auto wait_for = [&](const std::string& key) {
    while (Clock::now() < deadline) {
      if (const auto value = find(store, key)) return *value;
      std::this_thread::sleep_for(kPause);
    }
    throw RunError("rank " + rank + ": rank 0 did not come within " + seconds(timeout) +
                   " (parallel.timeout)");
  };
  store.set("ask/" + rank, asker);
  const std::string start = wait_for("answer/" + asker);
  store.set(start + "/come/" + rank, who_am_i());
  deadline += std::chrono::seconds(1);  // rank 0 is to say who is missing
  const std::string verdict = wait_for(start + "/met");
  if (!verdict.empty()) throw RunError(verdict);
  return start;
}

}  // namespace

std::optional<std::string> find(c10d::Store& words, const std::string& key) {
  if (!words.check({key})) return std::nullopt;
  return words.get_to_str(key);
}

Stores meet(const Launch& launch, double timeout) {
  if (launch.size == 1) {
    const auto alone = c10::make_intrusive<c10d::HashStore>();
    return {alone, alone};
  }
  std::signal(SIGPIPE, SIG_IGN);  // a connection that broke is an error of the operation, not of the process
  const auto deadline = Clock::now() + in_milliseconds(timeout);
  const StorePtr groups = connect(launch, launch.rank == 0 && !launch.agent_store, timeout);
  const StorePtr words = connect(launch, false, timeout);
  const std::string run = "hero/" + launch.run;
  c10d::PrefixStore of_run(run, words);
  try {
    const std::string start = launch.rank == 0 ? gather(of_run, launch, deadline, timeout)
                                               : join(of_run, launch, deadline, timeout);
    const std::string prefix = run + "/" + start;
    return {c10::make_intrusive<c10d::PrefixStore>(prefix, groups),
            c10::make_intrusive<c10d::PrefixStore>(prefix, words)};
  } catch (const c10::Error& e) {
    throw RunError("rank " + std::to_string(launch.rank) + ": the store at " + address(launch) +
                   " has gone: " + one_line(e));
  }
}

}  // namespace hero
