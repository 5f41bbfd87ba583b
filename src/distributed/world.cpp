#include "distributed/world.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "distributed/activity.h"
#include "distributed/backends.h"
#include "distributed/heartbeat.h"
#include "distributed/rendezvous.h"
#include "distributed/wait_limit.h"
#include "io/error.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kOpenedKey = "opened";

std::vector<int64_t> all_ranks(int64_t size) {
  std::vector<int64_t> ranks(size);
  for (int64_t r = 0; r < size; ++r) ranks[r] = r;
  return ranks;
}

using NamedValues = std::vector<std::pair<std::string, std::string>>;

std::string value_of(const NamedValues& values, const std::string& key) {
  for (const auto& [name, value] : values)
    if (name == key) return value;
  return "no value";
}

// "" if they are equal.
std::string difference(const NamedValues& mine, const NamedValues& theirs, int64_t rank) {
  for (const NamedValues* values : {&mine, &theirs}) {
    for (const auto& [key, value] : *values) {
      const std::string here = value_of(mine, key), there = value_of(theirs, key);
      if (here != there)
        return key + ": found " + here + " on rank " + std::to_string(rank) + " (" + host_and_pid() +
               "), expected " + there + " as on rank 0";
    }
  }
  return "";
}

// Returns `access()`, a request to the store; RunError naming the operation and the key if it fails.
template <typename Access>
auto access_store(const std::string& operation, const std::string& key, const Access& access) {
  try {
    return access();
  } catch (const std::exception& e) {
    throw RunError(diagnosis("store " + operation + " of " + key + " failed: " + one_line(e)));
  }
}

}  // namespace

World::World(const Launch& launch, double timeout)
    : launch_(launch),
      timeout_(timeout),
      stores_(std::make_unique<Stores>(rendezvous(launch, timeout))),
      heartbeat_(launch.world_size == 1 ? nullptr
                                        : std::make_unique<Heartbeat>(*stores_->messages, launch, timeout)) {}

World::World(const Launch& launch, const Config& config, at::Device device)
    : World(launch, config.parallel.timeout) {
  init_process_groups(config, device);
}

void World::init_process_groups(const Config& config, at::Device device) {
  mesh_ = make_mesh(config, launch_.rank, launch_.world_size);
  device_ = device;
  timeout_ = config.parallel.timeout;
  all_ = make_group("all ranks", all_ranks(launch_.world_size));
  data_ = make_group("data ranks", mesh_.data_ranks());
  expert_ = make_group("expert ranks", mesh_.expert_ranks());
  replica_ = make_group("replica ranks", mesh_.replica_ranks());
  if (mesh_.pipeline == 1) return;
  const bool wraps = config.parallel.chunks > 1, modules = config.model.num_nextn_predict_layers > 0;
  const auto add_channel = [&](Channel channel, const std::string& messages) {
    channels_[static_cast<size_t>(channel)] =
        make_group("pipeline ranks (" + messages + ")", mesh_.pipeline_ranks());
  };
  add_channel(Channel::kActivations, "activations");
  if (wraps) add_channel(Channel::kWrappedActivations, "activations, wrapped");
  add_channel(Channel::kGradients, "gradients");
  if (wraps) add_channel(Channel::kWrappedGradients, "gradients, wrapped");
  if (modules) add_channel(Channel::kEmbeddings, "embeddings");
  if (modules) add_channel(Channel::kEmbeddingGradients, "embedding gradients");
}

World::~World() {
  if (!heartbeat_) return;
  if (std::uncaught_exceptions() > 0)
    heartbeat_->report_failure("step " + std::to_string(current_activity().step) +
                               ": failed; see the error output of that process");
  heartbeat_->end();
}

std::unique_ptr<Group> World::make_group(const std::string& name, const std::vector<int64_t>& ranks) const {
  if (ranks.size() == 1) return std::make_unique<Group>(name, launch_.rank);
  const auto group_rank = std::find(ranks.begin(), ranks.end(), launch_.rank) - ranks.begin();
  const auto make_backend = device_.is_cuda() ? make_nccl_backend : make_gloo_backend;
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(name + "/" + std::to_string(ranks[0]), stores_->groups);
  const std::string what = "connecting " + name;
  const ScopedWait waiting(what);
  try {
    const auto timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(timeout_));
    return std::make_unique<Group>(
        name, ranks, group_rank,
        make_backend(store, static_cast<int>(group_rank), static_cast<int>(ranks.size()), timeout));
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& e) {
    throw RunError(diagnosis(what + " failed: " + one_line(e)));
  }
}

void World::set_opened() const {
  access_store("set", kOpenedKey, [&] { set_if_missing(*stores_->launch, kOpenedKey, "1"); });
}

bool World::opened_before() const {
  if (!launch_.agent_store) return true;
  return access_store("get", kOpenedKey, [&] { return try_get(*stores_->launch, kOpenedKey).has_value(); });
}

void World::set(const std::string& key, const std::string& value) const {
  access_store("set", key, [&] { stores_->messages->set(key, value); });
}

std::string World::get(const std::string& key) const {
  const ScopedWait waiting("store get of " + key);
  WaitLimit limit(timeout_, Clock::now());
  auto pause = std::chrono::milliseconds(1);
  while (!limit.exceeded(Clock::now(), heartbeat_ ? heartbeat_->bytes_hashed_by_others() : 0)) {
    const auto value = access_store("get", key, [&] { return try_get(*stores_->messages, key); });
    if (value) return *value;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
  throw RunError(diagnosis("step " + std::to_string(current_activity().step) + ": key " + key +
                           " was not set within " + format_seconds(timeout_) + " (parallel.timeout)"));
}

void World::check_same_on_all_ranks(const NamedValues& values) const {
  const std::string prefix = "check/" + std::to_string(checks_++) + "/";
  if (is_rank_zero()) {
    set(prefix + "values", nlohmann::json(values).dump());
    std::string error;
    for (int64_t rank = 1; rank < launch_.world_size; ++rank) {
      const std::string found = get(prefix + std::to_string(rank));
      if (error.empty()) error = found;
    }
    set(prefix + "error", error);
  } else {
    const NamedValues expected = nlohmann::json::parse(get(prefix + "values"));
    set(prefix + std::to_string(launch_.rank), difference(values, expected, launch_.rank));
  }
  const std::string error = get(prefix + "error");
  if (error.empty()) return;
  stop_heartbeat();
  throw UserError(error);
}

void World::stop_heartbeat() const {
  if (heartbeat_) heartbeat_->end();
}

}  // namespace hero
