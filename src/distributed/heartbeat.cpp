#include "distributed/heartbeat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "distributed/activity.h"
#include "distributed/rendezvous.h"

namespace hero {
namespace {

constexpr double kGrace = 2;          // seconds between a failure's explanation and the end of the process
constexpr double kShortPause = 0.02;  // seconds between signs when something begins or ends
constexpr size_t kListed = 8;

template <typename Time>
double age(Time time) {
  return std::chrono::duration<double>(Time::clock::now() - time).count();
}

std::chrono::duration<double> span(double seconds) { return std::chrono::duration<double>(seconds); }

std::string key_of(int64_t rank) { return "sign/" + std::to_string(rank); }

std::string join(std::vector<std::string> parts) {
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kListed); ++i) text += (i ? "; " : "") + parts[i];
  if (parts.size() > kListed) text += "; and " + std::to_string(parts.size() - kListed) + " more";
  return text;
}

}  // namespace

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> words, const Launch& launch, double timeout)
    : words_(std::move(words)),
      launch_(launch),
      timeout_(timeout),
      interval_(std::min(timeout / 10, 2.0)),
      patience_(std::max(4 * interval_, 1.0)),
      serves_(launch.rank == 0 && !launch.agent_store),
      self_("rank " + std::to_string(launch.rank) + " (" + who_am_i() + ")"),
      peers_(launch.rank == 0 ? launch.size : 1, {.heard = Clock::now()}),
      answered_(Clock::now()),
      beating_([this] { beat(); }),
      watching_([this] { watch(); }) {
  set_diagnosis([this](const std::string& failure) { return explain(failure); });
}

Heartbeat::~Heartbeat() {
  end();
  set_diagnosis(nullptr);
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  watching_.join();
}

void Heartbeat::end() {
  if (!beating_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  beating_.join();
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

std::string Heartbeat::explain(const std::string& failure) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty() || ended_) return failure;
  failure_ = self_ + ": " + failure;
  changed_.notify_all();
  while (!explanation_ && age(answered_) < std::min(4 * patience_, timeout_))
    changed_.wait_for(lock, span(kShortPause));
  // Without an answer no destructor of the store's would come to its end.
  if (!explanation_)
    leave(failure_ + "; " + without_store("has not answered for " + seconds(age(answered_))));
  if (!explanation_->starts_with(failure_)) explanation_ = failure_ + "; before that: " + *explanation_;
  explained_ = Clock::now();
  return *explanation_;
}

void Heartbeat::beat() {
  try {
    while (!exchange()) {
      std::unique_lock lock(mutex_);
      const bool hurry = ending_ || !failure_.empty() || !all_heard();
      changed_.wait_for(lock, span(hurry ? std::min(kShortPause, interval_) : interval_));
    }
    if (verdict_.empty()) return;
    take_leave();
  } catch (const std::exception&) {
    if (verdict_.empty()) verdict_ = without_store("has gone");
  }
  give_up();
}

// Once with the store; true where this process has ended or there is a verdict. Throws where the store has
// gone.
bool Heartbeat::exchange() {
  bool ending;
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    ending = ending_;
    failure = failure_;
  }
  words_->set(key_of(launch_.rank), dump(own_sign(++number_, ending)));
  if (ending && !serves_) return true;
  read_signs();
  if (ending && all_ended()) return true;
  if (!failure.empty()) words_->compareSet("failure", "", failure);  // the first one stays
  judge();
  verdict_ = find(*words_, "verdict").value_or("");
  const std::lock_guard lock(mutex_);
  answered_ = Clock::now();
  return !verdict_.empty();
}

void Heartbeat::read_signs() {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].sign.ended) continue;
    const auto text = find(*words_, key_of(rank));
    if (!text) continue;
    const Sign sign = parse_sign(*text);
    if (sign.number == peers_[rank].sign.number) continue;
    const std::lock_guard lock(mutex_);
    peers_[rank] = {sign, Clock::now()};
  }
}

// Writes the verdict that ends all where a rank is silent for too long, or where one has failed and it is
// clear who else is missing. Rank 0 does so; the others, who see less, only where rank 0 does not.
void Heartbeat::judge() {
  const auto failure = find(*words_, "failure");
  if (failure && !failure_heard_) failure_heard_ = Clock::now();
  double longest = 0;
  for (size_t rank = 0; rank < peers_.size(); ++rank) longest = std::max(longest, silence(rank));
  const double waited = failure_heard_ ? age(*failure_heard_) : 0;
  const bool first = launch_.rank == 0;
  const bool clear = failure && (first ? longest > patience_ || waited > patience_ + interval_
                                       : waited > 2 * (patience_ + interval_));
  if (!clear && longest <= timeout_) return;
  words_->compareSet("verdict", "", failure ? *failure + "; " + missing() : missing());
}

// The silent ranks, also those silent for only half as long as makes one so: what dies together does not fall
// silent at the same moment. Where all live, who is where.
std::string Heartbeat::missing() const {
  std::vector<std::string> silent;
  std::map<std::string, std::vector<int64_t>> places;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Sign& sign = peers_[rank].sign;
    if (silence(rank) > patience_ / 2)
      silent.push_back(name(rank) + " has given no sign for " + seconds(silence(rank)) + "; it was " +
                       place(sign));
    else
      places[sign.ended ? "has ended at step " + std::to_string(sign.step) : "is " + place(sign)].push_back(
          rank);
  }
  if (!silent.empty()) return join(silent);
  std::vector<std::string> lively;
  for (const auto& [place, ranks] : places) {
    std::string others;
    for (size_t i = 1; i < std::min(ranks.size(), kListed); ++i)
      others += (i == 1 ? ", as are ranks " : ", ") + std::to_string(ranks[i]);
    if (ranks.size() > kListed) others += ", ...";
    lively.push_back(name(ranks[0]) + " " + place + others);
  }
  return "no rank is silent: " + join(lively);
}

// Says that this process has read the verdict; where it serves the store, it waits for the others to read it.
void Heartbeat::take_leave() {
  words_->set(key_of(launch_.rank), dump(own_sign(++number_, true)));
  const auto since = Clock::now();
  while (serves_ && !all_ended() && age(since) < patience_ / 2) {
    std::this_thread::sleep_for(span(std::min(kShortPause, interval_)));
    read_signs();
  }
}

// The verdict goes to the main thread where that asks for an explanation. Otherwise it may hang, and the
// process ends here.
void Heartbeat::give_up() {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      explanation_ = verdict_;
      changed_.notify_all();
      return;
    }
  }
  leave(self_ + " ends " + place(own_sign(0, true)) + ": " + verdict_);
}

// Ends the process where the store hangs, or the main thread after a failure.
void Heartbeat::watch() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!done_) {
    changed_.wait_for(lock, span(std::min(interval_, 0.5)));
    // Where this process itself was stopped, the store may answer well.
    if (age(last) > patience_) answered_ = Clock::now();
    last = Clock::now();
    if (explained_ && age(*explained_) > kGrace) leave(*explanation_);
    if (failure_.empty() && !ended_ && age(answered_) > timeout_ + interval_)
      leave(self_ + " ends " + place(own_sign(0, true)) + ": " +
            without_store("has not answered for " + seconds(age(answered_))));
  }
}

void Heartbeat::leave(const std::string& text) const {
  const std::string line = "hero: " + text + "\n";
  // Not through stdio, whose locks a hanging thread may hold.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(1);
}

// Seconds; 0 for a rank that has ended, and for this one.
double Heartbeat::silence(int64_t rank) const {
  return rank == launch_.rank || peers_[rank].sign.ended ? 0 : age(peers_[rank].heard);
}

bool Heartbeat::all_heard() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.sign.number > 0; });
}

bool Heartbeat::all_ended() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.sign.ended; });
}

std::string Heartbeat::name(int64_t rank) const {
  const std::string& who = peers_[rank].sign.who;
  return "rank " + std::to_string(rank) + (who.empty() ? "" : " (" + who + ")");
}

std::string Heartbeat::without_store(const std::string& how) const {
  const std::string place_of_store = launch_.host + ":" + std::to_string(launch_.port);
  if (launch_.agent_store) return "the launcher's store at " + place_of_store + " " + how;
  return name(0) + ", which serves the store at " + place_of_store + ", " + how + "; it was " +
         place(peers_[0].sign);
}

}  // namespace hero
