#include "distributed/heartbeat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "distributed/activity.h"
#include "distributed/rendezvous.h"

namespace hero {
namespace {

constexpr double kGracePeriod = 2;       // seconds that a process has to exit after it reported a failure
constexpr double kShortInterval = 0.02;  // seconds between heartbeats during startup and shutdown
constexpr size_t kMaxListed = 8;

template <typename Time>
double age(Time time) {
  return std::chrono::duration<double>(Time::clock::now() - time).count();
}

std::chrono::duration<double> to_duration(double seconds) { return std::chrono::duration<double>(seconds); }

std::string heartbeat_key(int64_t rank) { return "heartbeat/" + std::to_string(rank); }

std::string join(std::vector<std::string> parts) {
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kMaxListed); ++i) text += (i ? "; " : "") + parts[i];
  if (parts.size() > kMaxListed) text += "; and " + std::to_string(parts.size() - kMaxListed) + " more";
  return text;
}

}  // namespace

Heartbeat::Heartbeat(c10d::Store& store, const Launch& launch, double timeout)
    : store_(store),
      launch_(launch),
      timeout_(timeout),
      interval_(std::min(timeout / 10, 2.0)),
      unresponsive_after_(std::max(4 * interval_, 1.0)),
      hosts_store_(launch.rank == 0 && !launch.agent_store),
      self_("rank " + std::to_string(launch.rank) + " (" + host_and_pid() + ")"),
      peers_(launch.rank == 0 ? launch.world_size : 1, {.received = Clock::now()}),
      store_responded_(Clock::now()),
      heartbeat_thread_([this] { heartbeat_loop(); }),
      watchdog_thread_([this] { watchdog_loop(); }) {
  set_diagnosis([this](const std::string& failure) { return report_failure(failure); });
}

Heartbeat::~Heartbeat() {
  end();
  set_diagnosis(nullptr);
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  watchdog_thread_.join();
}

uint64_t Heartbeat::bytes_hashed_by_others() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (size_t i = launch_.rank == 0 ? 1 : 0; i < peers_.size(); ++i) sum += peers_[i].message.bytes_hashed;
  return sum;
}

void Heartbeat::end() {
  if (!heartbeat_thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  heartbeat_thread_.join();
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

std::string Heartbeat::report_failure(const std::string& failure) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty() || ended_) return failure;
  failure_ = self_ + ": " + failure;
  changed_.notify_all();
  while (!report_ && age(store_responded_) < std::min(4 * unresponsive_after_, timeout_))
    changed_.wait_for(lock, to_duration(kShortInterval));
  // Without a response from the store its destructor would hang.
  if (!report_)
    terminate(failure_ + "; " +
              store_failure("has not responded for " + format_seconds(age(store_responded_))));
  if (!report_->starts_with(failure_)) report_ = failure_ + "; before that: " + *report_;
  reported_ = Clock::now();
  return *report_;
}

void Heartbeat::heartbeat_loop() {
  try {
    while (!exchange()) {
      std::unique_lock lock(mutex_);
      const bool urgent = ending_ || !failure_.empty() || !all_ranks_seen();
      changed_.wait_for(lock, to_duration(urgent ? std::min(kShortInterval, interval_) : interval_));
    }
    if (abort_reason_.empty()) return;
    acknowledge_abort();
  } catch (const std::exception&) {
    if (abort_reason_.empty()) abort_reason_ = store_failure("is unreachable");
  }
  deliver_abort_reason();
}

// One round trip to the store. True if this process has ended or must abort. Throws if the store is
// unreachable.
bool Heartbeat::exchange() {
  bool ending;
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    ending = ending_;
    failure = failure_;
  }
  HeartbeatMessage message = make_heartbeat_message(++sequence_number_, ending);
  if (launch_.rank == 0) message.bytes_hashed += bytes_hashed_by_others();
  set(store_, heartbeat_key(launch_.rank), dump(message));
  if (ending && !hosts_store_) return true;
  read_heartbeats();
  if (ending && all_ranks_ended()) return true;
  if (!failure.empty()) set_if_missing(store_, "failure", failure);  // keeps the first failure
  decide_abort();
  abort_reason_ = try_get(store_, "abort").value_or("");
  const std::lock_guard lock(mutex_);
  store_responded_ = Clock::now();
  return !abort_reason_.empty();
}

void Heartbeat::read_heartbeats() {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].message.ended) continue;
    const auto text = try_get(store_, heartbeat_key(rank));
    if (!text) continue;
    const HeartbeatMessage message = parse_heartbeat_message(*text);
    if (message.sequence_number == peers_[rank].message.sequence_number) continue;
    const std::lock_guard lock(mutex_);
    peers_[rank] = {message, Clock::now()};
  }
}

// Writes the abort reason once a rank has been unresponsive for too long, or once a rank has failed and it is
// known which others are missing. The other ranks, which know less, do so only if rank 0 does not.
void Heartbeat::decide_abort() {
  const auto failure = try_get(store_, "failure");
  if (failure && !failure_seen_) failure_seen_ = Clock::now();
  double longest = 0;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    longest = std::max(longest, seconds_since_heartbeat(rank));
  const double waited = failure_seen_ ? age(*failure_seen_) : 0;
  const bool first = launch_.rank == 0;
  const bool complete =
      failure && (first ? longest > unresponsive_after_ || waited > unresponsive_after_ + interval_
                        : waited > 2 * (unresponsive_after_ + interval_));
  if (!complete && longest <= timeout_) return;
  set_if_missing(store_, "abort",
                 failure ? *failure + "; " + describe_missing_ranks() : describe_missing_ranks());
}

// The unresponsive ranks, including those past half the limit: processes that die together do not stop at the
// same moment. If all ranks respond, their activities.
std::string Heartbeat::describe_missing_ranks() const {
  std::vector<std::string> unresponsive;
  std::map<std::string, std::vector<int64_t>> activities;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const HeartbeatMessage& message = peers_[rank].message;
    if (seconds_since_heartbeat(rank) > unresponsive_after_ / 2)
      unresponsive.push_back(rank_name(rank) + " has sent no heartbeat for " +
                             format_seconds(seconds_since_heartbeat(rank)) + "; it was " + describe(message));
    else
      activities[message.ended ? "has ended at step " + std::to_string(message.step)
                               : "is " + describe(message)]
          .push_back(rank);
  }
  if (!unresponsive.empty()) return join(unresponsive);
  std::vector<std::string> responsive;
  for (const auto& [activity, ranks] : activities) {
    std::string others;
    for (size_t i = 1; i < std::min(ranks.size(), kMaxListed); ++i)
      others += (i == 1 ? ", as are ranks " : ", ") + std::to_string(ranks[i]);
    if (ranks.size() > kMaxListed) others += ", ...";
    responsive.push_back(rank_name(ranks[0]) + " " + activity + others);
  }
  return "all ranks respond: " + join(responsive);
}

// Confirms that this process has read the abort reason. If it hosts the store, waits until the others have
// too.
void Heartbeat::acknowledge_abort() {
  set(store_, heartbeat_key(launch_.rank), dump(make_heartbeat_message(++sequence_number_, true)));
  const auto since = Clock::now();
  while (hosts_store_ && !all_ranks_ended() && age(since) < unresponsive_after_ / 2) {
    std::this_thread::sleep_for(to_duration(std::min(kShortInterval, interval_)));
    read_heartbeats();
  }
}

// Passes the abort reason to the main thread if that waits in report_failure(). Otherwise the main thread may
// hang, so the process is terminated here.
void Heartbeat::deliver_abort_reason() {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      report_ = abort_reason_;
      changed_.notify_all();
      return;
    }
  }
  terminate(self_ + " aborts " + describe(make_heartbeat_message(0, true)) + ": " + abort_reason_);
}

// Terminates the process if the store hangs, or the main thread after a failure.
void Heartbeat::watchdog_loop() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!done_) {
    changed_.wait_for(lock, to_duration(std::min(interval_, 0.5)));
    // If this process itself was suspended, the store may be fine.
    if (age(last) > unresponsive_after_) store_responded_ = Clock::now();
    last = Clock::now();
    if (report_ && reported_ && age(*reported_) > kGracePeriod) terminate(*report_);
    if (failure_.empty() && !ended_ && age(store_responded_) > timeout_ + interval_)
      terminate(self_ + " aborts " + describe(make_heartbeat_message(0, true)) + ": " +
                store_failure("has not responded for " + format_seconds(age(store_responded_))));
  }
}

void Heartbeat::terminate(const std::string& text) const {
  const std::string line = "hero: " + text + "\n";
  // Not through stdio: a hanging thread may hold its locks.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(1);
}

// 0 for this rank and for ranks that have ended.
double Heartbeat::seconds_since_heartbeat(int64_t rank) const {
  return rank == launch_.rank || peers_[rank].message.ended ? 0 : age(peers_[rank].received);
}

bool Heartbeat::all_ranks_seen() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.message.sequence_number > 0; });
}

bool Heartbeat::all_ranks_ended() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.message.ended; });
}

std::string Heartbeat::rank_name(int64_t rank) const {
  const std::string& process = peers_[rank].message.process;
  return "rank " + std::to_string(rank) + (process.empty() ? "" : " (" + process + ")");
}

std::string Heartbeat::store_failure(const std::string& how) const {
  const std::string address = launch_.host + ":" + std::to_string(launch_.port);
  if (launch_.agent_store) return "the launcher's store at " + address + " " + how;
  return rank_name(0) + ", which hosts the store at " + address + ", " + how + "; it was " +
         describe(peers_[0].message);
}

}  // namespace hero
