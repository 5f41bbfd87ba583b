#include "train/check_schedule.h"

#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace hero::test {
namespace {

[[noreturn]] void fail(int64_t rank, const Action& action, const std::string& what) {
  throw std::logic_error("schedule: rank " + std::to_string(rank) + ", " + to_text(action) + ": " + what);
}

// Every action exists once, on the rank of its chunk; every backward pass is either whole or split.
void check_complete(const Schedule& schedule, int64_t chunks, int64_t micro_batches) {
  const auto ranks = static_cast<int64_t>(schedule.size());
  std::map<std::tuple<Pass, int64_t, int64_t>, int64_t> times;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const Action& action : schedule[rank]) {
      const auto [pass, c, m] = action;
      if (c < 0 || c >= chunks || m < 0 || m >= micro_batches) fail(rank, action, "out of bounds");
      if (c % ranks != rank) fail(rank, action, "belongs to rank " + std::to_string(c % ranks));
      if (++times[{pass, c, m}] > 1) fail(rank, action, "is duplicated");
    }
  }
  for (int64_t c = 0; c < chunks; ++c) {
    for (int64_t m = 0; m < micro_batches; ++m) {
      const auto has = [&](Pass pass) { return times.contains({pass, c, m}); };
      if (!has(Pass::forward)) fail(c % ranks, {Pass::forward, c, m}, "is missing");
      const bool input = has(Pass::input_gradient), weight = has(Pass::weight_gradient);
      if (input != weight) fail(c % ranks, {Pass::backward, c, m}, "input or weight gradient is missing");
      if (input == has(Pass::backward))
        fail(c % ranks, {Pass::backward, c, m}, input ? "is both whole and split" : "is missing");
    }
  }
}

// Messages by (sender, receiver, gradients), in the order of the sender or of the receiver.
using Messages = std::map<std::tuple<int64_t, int64_t, bool>, std::vector<Action>>;

void check_order(const Schedule& schedule, int64_t chunks) {
  Messages sent, needed;
  const auto ranks = static_cast<int64_t>(schedule.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const Action& action : schedule[rank]) {
      if (action.pass == Pass::weight_gradient) continue;
      const bool gradients = action.pass != Pass::forward;
      const int64_t step = gradients ? -1 : 1, next = action.chunk + step, before = action.chunk - step;
      if (next >= 0 && next < chunks && next % ranks != rank)
        sent[{rank, next % ranks, gradients}].push_back({action.pass, next, action.micro_batch});
      if (before >= 0 && before < chunks && before % ranks != rank)
        needed[{before % ranks, rank, gradients}].push_back(action);
    }
  }
  for (const auto& [edge, actions] : needed) {
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& arriving = sent.at(edge)[i];
      if (actions[i].chunk != arriving.chunk || actions[i].micro_batch != arriving.micro_batch)
        fail(std::get<1>(edge), actions[i],
             "message " + std::to_string(i) + " from rank " + std::to_string(std::get<0>(edge)) + " is for " +
                 to_text(arriving));
    }
  }
}

}  // namespace

void check_schedule(const Schedule& schedule, int64_t chunks, int64_t micro_batches) {
  check_complete(schedule, chunks, micro_batches);
  visit_in_dependency_order(schedule, chunks, [](ActionPosition, const std::vector<ActionPosition>&) {});
  check_order(schedule, chunks);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    text += "rank " + std::to_string(rank) + ":";
    for (const Action& action : schedule[rank]) {
      text += ' ';
      text += to_text(action);
    }
    text += '\n';
  }
  return text;
}

}  // namespace hero::test
