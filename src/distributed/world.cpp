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
#include "io/error.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<int64_t> all_ranks(int64_t size) {
  std::vector<int64_t> ranks(size);
  for (int64_t r = 0; r < size; ++r) ranks[r] = r;
  return ranks;
}

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string value_of(const Facts& facts, const std::string& key) {
  for (const auto& [name, value] : facts)
    if (name == key) return value;
  return "nothing";
}

// "" where they are equal.
std::string difference(const Facts& mine, const Facts& theirs, int64_t rank) {
  for (const Facts* facts : {&theirs, &mine}) {
    for (const auto& [key, value] : *facts) {
      const std::string here = value_of(mine, key), there = value_of(theirs, key);
      if (here != there)
        return key + ": found " + here + " on rank " + std::to_string(rank) + " (" + who_am_i() +
               "), expected " + there + " as on rank 0";
    }
  }
  return "";
}

}  // namespace

World::World(const Launch& launch, double timeout)
    : launch_(launch),
      timeout_(timeout),
      stores_(std::make_unique<Stores>(meet(launch, timeout))),
      heartbeat_(launch.size == 1 ? nullptr : std::make_unique<Heartbeat>(stores_->words, launch, timeout)) {}

World::World(const Launch& launch, const Config& config, at::Device device)
    : World(launch, config.parallel.timeout) {
  form(config, device);
}

void World::form(const Config& config, at::Device device) {
  mesh_ = make_mesh(config, launch_.rank, launch_.size);
  device_ = device;
  timeout_ = config.parallel.timeout;
  all_ = make_group("all ranks", all_ranks(launch_.size));
  data_ = make_group("data ranks", mesh_.data_ranks());
  expert_ = make_group("expert ranks", mesh_.expert_ranks());
  replica_ = make_group("replica ranks", mesh_.replica_ranks());
  const char* lanes[] = {"activations", "activations, wrapped", "gradients", "gradients, wrapped"};
  for (int lane = 0; lane < 4; ++lane) {
    const bool wraps = lane % 2 == 1;
    if (mesh_.pipeline > 1 && (!wraps || config.parallel.chunks > 1))
      lanes_[lane] = make_group("pipeline ranks (" + std::string(lanes[lane]) + ")", mesh_.pipeline_ranks());
  }
}

World::~World() {
  if (!heartbeat_) return;
  if (std::uncaught_exceptions() > 0)
    heartbeat_->explain("step " + std::to_string(current_activity().step) +
                        ": given up for the reason it gives");
  heartbeat_->end();
}

std::unique_ptr<Group> World::make_group(const std::string& name, const std::vector<int64_t>& ranks) const {
  if (ranks.size() == 1) return std::make_unique<Group>(name, launch_.rank);
  const auto place = std::find(ranks.begin(), ranks.end(), launch_.rank) - ranks.begin();
  const auto make = device_.is_cuda() ? make_nccl : make_gloo;
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(name + "/" + std::to_string(ranks[0]), stores_->groups);
  const std::string what = "connecting " + name;
  const Waiting waiting(what);
  try {
    const auto timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(timeout_));
    return std::make_unique<Group>(
        name, ranks, place, make(store, static_cast<int>(place), static_cast<int>(ranks.size()), timeout));
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& e) {
    throw RunError(diagnosis(what + " failed: " + one_line(e)));
  }
}

void World::tell(const std::string& key, const std::string& value) const {
  try {
    stores_->words->set(key, value);
  } catch (const std::exception& e) {
    throw RunError(diagnosis("telling " + key + " failed: " + one_line(e)));
  }
}

std::string World::hear(const std::string& key) const {
  const Waiting waiting("hearing of " + key);
  const auto begin = Clock::now();
  const std::chrono::duration<double> longest(timeout_);
  auto pause = std::chrono::milliseconds(1);
  try {
    while (Clock::now() - begin < longest) {
      if (const auto value = find(*stores_->words, key)) return *value;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(100));
    }
  } catch (const std::exception& e) {
    throw RunError(diagnosis("hearing of " + key + " failed: " + one_line(e)));
  }
  throw RunError(diagnosis("step " + std::to_string(current_activity().step) + ": nobody has told " + key +
                           " within " + seconds(timeout_) + " (parallel.timeout)"));
}

void World::agree(const Facts& facts) const {
  const std::string prefix = "agree/" + std::to_string(agreements_++) + "/";
  if (first()) {
    tell(prefix + "facts", nlohmann::json(facts).dump());
    std::string verdict;
    for (int64_t rank = 1; rank < launch_.size; ++rank) {
      const std::string found = hear(prefix + std::to_string(rank));
      if (verdict.empty()) verdict = found;
    }
    tell(prefix + "verdict", verdict);
  } else {
    const Facts expected = nlohmann::json::parse(hear(prefix + "facts"));
    tell(prefix + std::to_string(launch_.rank), difference(facts, expected, launch_.rank));
  }
  const std::string verdict = hear(prefix + "verdict");
  if (verdict.empty()) return;
  dismiss();
  throw UserError(verdict);
}

void World::dismiss() const {
  if (heartbeat_) heartbeat_->end();
}

}  // namespace hero
