#include "train/schedule.h"

#include <algorithm>
#include <stdexcept>

#include "io/error.h"

namespace hero {
namespace {

// A forward or backward pass of a chunk on a micro-batch.
struct ChunkPass {
  int64_t chunk, micro_batch;
};

// Megatron-LM's interleaved order: micro-batches in groups of `ranks`; a group passes through all chunks of a
// rank before the next group.
std::vector<ChunkPass> chunk_order(int64_t rank, int64_t ranks, int64_t chunks, int64_t micro_batches,
                                   bool forward) {
  std::vector<ChunkPass> order;
  for (int64_t group = 0; group < micro_batches; group += ranks) {
    const int64_t end = std::min(group + ranks, micro_batches);
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t own = forward ? c : chunks - 1 - c;
      for (int64_t m = group; m < end; ++m) order.push_back({own * ranks + rank, m});
    }
  }
  return order;
}

// 1F1B: `warm_up` forward passes, then alternating forward and backward passes, then the remaining backward
// passes.
std::vector<Action> one_forward_one_backward(const std::vector<ChunkPass>& forward,
                                             const std::vector<ChunkPass>& backward, size_t warm_up) {
  std::vector<Action> actions;
  for (size_t i = 0; i < forward.size() + warm_up; ++i) {
    if (i < forward.size()) actions.push_back({Pass::forward, forward[i].chunk, forward[i].micro_batch});
    if (i < warm_up) continue;
    const ChunkPass& work = backward[i - warm_up];
    actions.push_back({Pass::backward, work.chunk, work.micro_batch});
  }
  return actions;
}

// Splits backward passes. Weight gradients follow `delay` micro-batches later, so that every rank holds as
// many micro-batches in flight as the first.
std::vector<Action> split_backward(const std::vector<Action>& whole, int64_t delay) {
  std::vector<Action> actions, waiting;
  size_t begun = 0;
  for (const Action& action : whole) {
    if (action.pass == Pass::forward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({Pass::input_gradient, action.chunk, action.micro_batch});
    waiting.push_back({Pass::weight_gradient, action.chunk, action.micro_batch});
    if (static_cast<int64_t>(waiting.size() - begun) > delay) actions.push_back(waiting[begun++]);
  }
  actions.insert(actions.end(), waiting.begin() + static_cast<int64_t>(begun), waiting.end());
  return actions;
}

std::vector<Action> single_rank_actions(int64_t chunks, int64_t micro_batches) {
  std::vector<Action> actions;
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int64_t c = 0; c < chunks; ++c) actions.push_back({Pass::forward, c, m});
    for (int64_t c = chunks; c-- > 0;) actions.push_back({Pass::backward, c, m});
  }
  return actions;
}

void require(bool good, const std::string& what, int64_t found, const std::string& expected) {
  if (!good)
    throw UserError("schedule: found " + std::to_string(found) + " " + what + ", expected " + expected);
}

[[noreturn]] void fail(int64_t rank, const Action& action, const std::string& what) {
  throw std::logic_error("schedule: rank " + std::to_string(rank) + ", " + to_text(action) + ": " + what);
}

// Positions of all actions. Whole backward passes count as input gradients.
class ActionIndex {
 public:
  ActionIndex(const Schedule& schedule, int64_t chunks) : chunks_(chunks) {
    for (const auto& actions : schedule) {
      for (const Action& action : actions) micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
    }
    positions_.assign(3 * chunks * micro_batches_, {-1, -1});
    for (size_t r = 0; r < schedule.size(); ++r) {
      for (size_t i = 0; i < schedule[r].size(); ++i)
        positions_[slot(schedule[r][i])] = {static_cast<int64_t>(r), static_cast<int64_t>(i)};
    }
  }

  std::vector<ActionPosition> dependencies(const Action& action) const {
    const auto [pass, c, m] = action;
    if (pass == Pass::weight_gradient) return {at({Pass::input_gradient, c, m})};
    if (pass == Pass::forward)
      return c > 0 ? std::vector<ActionPosition>{at({Pass::forward, c - 1, m})}
                   : std::vector<ActionPosition>{};
    std::vector<ActionPosition> result = {at({Pass::forward, c, m})};
    if (c + 1 < chunks_) result.push_back(at({Pass::input_gradient, c + 1, m}));
    return result;
  }

 private:
  size_t slot(const Action& action) const {
    const int64_t kind = action.pass == Pass::forward ? 0 : action.pass == Pass::weight_gradient ? 2 : 1;
    return static_cast<size_t>((kind * chunks_ + action.chunk) * micro_batches_ + action.micro_batch);
  }
  ActionPosition at(const Action& action) const { return positions_[slot(action)]; }

  int64_t chunks_, micro_batches_ = 0;
  std::vector<ActionPosition> positions_;
};

}  // namespace

Schedule make_schedule(PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  const bool interleaved = kind == PipelineSchedule::kInterleaved;
  require(ranks > 0, "ranks", ranks, "at least 1");
  require(micro_batches > 0, "micro-batches", micro_batches, "at least 1");
  require(chunks > 0 && (interleaved || chunks == 1), "chunks per rank", chunks,
          interleaved ? "at least 1" : "1 with " + name_of(kind));
  require(!interleaved || micro_batches % ranks == 0, "micro-batches", micro_batches,
          "a multiple of the " + std::to_string(ranks) + " ranks with interleaved");
  if (ranks == 1) return {single_rank_actions(chunks, micro_batches)};
  Schedule schedule;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t behind = ranks - 1 - rank;
    // The first group passes through all but the last chunk before its first backward pass; each later rank
    // adds two passes.
    const int64_t warm_up = chunks > 1 ? 2 * behind + (chunks - 1) * ranks : behind;
    const auto whole =
        one_forward_one_backward(chunk_order(rank, ranks, chunks, micro_batches, true),
                                 chunk_order(rank, ranks, chunks, micro_batches, false),
                                 static_cast<size_t>(std::min(warm_up, chunks * micro_batches)));
    schedule.push_back(kind == PipelineSchedule::kZeroBubble ? split_backward(whole, rank) : whole);
  }
  return schedule;
}

std::vector<Action> forward_actions(int64_t rank, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  std::vector<Action> actions;
  for (const ChunkPass& pass : chunk_order(rank, ranks, chunks, micro_batches, /*forward=*/true))
    actions.push_back({Pass::forward, pass.chunk, pass.micro_batch});
  return actions;
}

void visit_in_dependency_order(
    const Schedule& schedule, int64_t chunks,
    const std::function<void(ActionPosition, const std::vector<ActionPosition>&)>& visit) {
  const ActionIndex index(schedule, chunks);
  std::vector<int64_t> done(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t rank = 0; rank < static_cast<int64_t>(schedule.size()); ++rank) {
      for (; done[rank] < static_cast<int64_t>(schedule[rank].size()); ++done[rank], moved = true) {
        const auto dependencies = index.dependencies(schedule[rank][done[rank]]);
        const bool ready = std::ranges::all_of(
            dependencies, [&](const ActionPosition& p) { return p.rank >= 0 && p.index < done[p.rank]; });
        if (!ready) break;
        visit({rank, done[rank]}, dependencies);
      }
    }
  }
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    if (done[rank] < static_cast<int64_t>(schedule[rank].size()))
      fail(static_cast<int64_t>(rank), schedule[rank][done[rank]], "deadlock");
  }
}

std::vector<int64_t> peak_activations(const Schedule& schedule) {
  std::vector<int64_t> held;
  for (const auto& actions : schedule) {
    int64_t now = 0, most = 0;
    for (const Action& action : actions) {
      if (action.pass == Pass::forward) most = std::max(most, ++now);
      if (action.pass == Pass::backward || action.pass == Pass::weight_gradient) --now;
    }
    held.push_back(most);
  }
  return held;
}

std::string to_text(const Action& action) {
  const char letter = action.pass == Pass::forward          ? 'F'
                      : action.pass == Pass::backward       ? 'B'
                      : action.pass == Pass::input_gradient ? 'I'
                                                            : 'W';
  return std::to_string(action.chunk) + letter + std::to_string(action.micro_batch);
}

}  // namespace hero
