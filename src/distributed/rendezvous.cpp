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
#include "distributed/heartbeat_message.h"
#include "io/error.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr auto kPollInterval = std::chrono::milliseconds(20);

std::chrono::milliseconds in_milliseconds(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

std::string address(const Launch& launch) { return launch.host + ":" + std::to_string(launch.port); }

std::string random_id() {
  std::random_device random;
  char id[17];
  std::snprintf(id, sizeof id, "%08x%08x", random(), random());
  return id;
}

StorePtr connect(const Launch& launch, bool host, double timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = host;
  options.waitWorkers = false;
  options.timeout = in_milliseconds(timeout);
  // Silences c10d's log of the errors that are caught here.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
  } catch (const std::exception& e) {
    throw RunError("rank " + std::to_string(launch.rank) + ": " +
                   (host ? "cannot host the store at "
                         : "no connection to the store within " + format_seconds(timeout) + " at ") +
                   address(launch) + " (MASTER_ADDR, MASTER_PORT): " + one_line(e));
  }
}

// Rank 0: chooses an id for this start of the run and sends it to every process that requests it. A rank has
// joined once it replies under that id, because an earlier request may be from a process of a previous start.
std::string gather(c10d::Store& store, const Launch& launch, Clock::time_point deadline, double timeout) {
  const std::string start = random_id();
  std::map<int64_t, std::string> missing;  // with the last request that was answered
  for (int64_t rank = 1; rank < launch.world_size; ++rank) missing[rank];
  while (!missing.empty()) {
    for (auto entry = missing.begin(); entry != missing.end();) {
      auto& [rank, answered] = *entry;
      const auto request = try_get(store, "ask/" + std::to_string(rank));
      if (request && *request != answered) store.set("answer/" + (answered = *request), start);
      entry =
          store.check({start + "/joined/" + std::to_string(rank)}) ? missing.erase(entry) : std::next(entry);
    }
    if (Clock::now() > deadline) break;
    if (!missing.empty()) std::this_thread::sleep_for(kPollInterval);
  }
  std::string names;
  for (const auto& [rank, answered] : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const std::string error = names.empty() ? ""
                                          : (missing.size() == 1 ? "rank " : "ranks ") + names + " of " +
                                                std::to_string(launch.world_size) + " did not join within " +
                                                format_seconds(timeout) + " (parallel.timeout)";
  store.set(start + "/complete", error);
  if (!error.empty()) {
    std::this_thread::sleep_for(25 * kPollInterval);  // lets the other ranks read it
    throw RunError(error);
  }
  return start;
}

// All other ranks.
std::string join(c10d::Store& store, const Launch& launch, Clock::time_point deadline, double timeout) {
  const std::string rank = std::to_string(launch.rank), request = random_id();
  const auto wait_for = [&](const std::string& key) {
    while (Clock::now() < deadline) {
      if (const auto value = try_get(store, key)) return *value;
      std::this_thread::sleep_for(kPollInterval);
    }
    throw RunError("rank " + rank + ": rank 0 did not join within " + format_seconds(timeout) +
                   " (parallel.timeout)");
  };
  store.set("ask/" + rank, request);
  const std::string start = wait_for("answer/" + request);
  store.set(start + "/joined/" + rank, host_and_pid());
  deadline += std::chrono::seconds(1);  // rank 0 reports the missing ranks
  const std::string error = wait_for(start + "/complete");
  if (!error.empty()) throw RunError(error);
  return start;
}

}  // namespace

void set(c10d::Store& store, const std::string& key, const std::string& value) { store.set(key, value); }

void set_if_missing(c10d::Store& store, const std::string& key, const std::string& value) {
  store.compareSet(key, "", value);
}

std::optional<std::string> try_get(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return store.get_to_str(key);
}

Stores rendezvous(const Launch& launch, double timeout) {
  if (launch.world_size == 1) {
    const auto alone = c10::make_intrusive<c10d::HashStore>();
    if (!launch.agent_store) return {alone, alone, alone};
    return {alone, alone,
            c10::make_intrusive<c10d::PrefixStore>("hero/" + launch.run_id, connect(launch, false, timeout))};
  }
  std::signal(SIGPIPE, SIG_IGN);  // a broken connection must fail the operation, not kill the process
  const auto deadline = Clock::now() + in_milliseconds(timeout);
  const StorePtr groups = connect(launch, launch.rank == 0 && !launch.agent_store, timeout);
  const StorePtr messages = connect(launch, false, timeout);
  const std::string run = "hero/" + launch.run_id;
  const auto run_store = c10::make_intrusive<c10d::PrefixStore>(run, messages);
  try {
    const std::string start = launch.rank == 0 ? gather(*run_store, launch, deadline, timeout)
                                               : join(*run_store, launch, deadline, timeout);
    const std::string prefix = run + "/" + start;
    return {c10::make_intrusive<c10d::PrefixStore>(prefix, groups),
            c10::make_intrusive<c10d::PrefixStore>(prefix, messages), run_store};
  } catch (const c10::Error& e) {
    throw RunError("rank " + std::to_string(launch.rank) + ": lost the connection to the store at " +
                   address(launch) + ": " + one_line(e));
  }
}

}  // namespace hero
