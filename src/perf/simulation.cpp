#include "perf/simulation.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace hero {
namespace {

double seconds_of(const Action& action, const PipelineCosts& costs) {
  const double input = costs.input_gradient[action.chunk], weight = costs.weight_gradient[action.chunk];
  switch (action.pass) {
    case Pass::forward:
      return costs.forward[action.chunk];
    case Pass::backward:
      return input + weight;
    case Pass::input_gradient:
      return input;
    case Pass::weight_gradient:
      return weight;
  }
  return 0;
}

}  // namespace

Simulation simulate(const Schedule& schedule, const PipelineCosts& costs) {
  const auto ranks = static_cast<int64_t>(schedule.size()),
             chunks = static_cast<int64_t>(costs.forward.size());
  Simulation out;
  out.busy.assign(ranks, 0);
  std::vector<std::vector<double>> arrival(ranks);  // time at which an action's message arrives
  for (int64_t r = 0; r < ranks; ++r) {
    out.spans.emplace_back(schedule[r].size());
    arrival[r].assign(schedule[r].size(), 0);
  }
  std::map<std::tuple<int64_t, int64_t, bool>, double> free;  // when a link is free again
  visit_in_dependency_order(
      schedule, chunks, [&](ActionPosition at, const std::vector<ActionPosition>& needs) {
        const Action& action = schedule[at.rank][at.index];
        auto& spans = out.spans[at.rank];
        double start = at.index > 0 ? spans[at.index - 1].end : 0;
        for (const ActionPosition& need : needs) {
          const bool here = need.rank == at.rank;
          start =
              std::max(start, here ? out.spans[need.rank][need.index].end : arrival[need.rank][need.index]);
        }
        const double seconds = seconds_of(action, costs), end = start + seconds;
        spans[at.index] = {start, end};
        out.busy[at.rank] += seconds;
        out.seconds = std::max(out.seconds, end);
        const bool gradients = action.pass != Pass::forward;
        const int64_t receiver = action.chunk + (gradients ? -1 : 1);
        if (action.pass == Pass::weight_gradient || receiver < 0 || receiver >= chunks) return;
        if (receiver % ranks == at.rank) return;
        double& sent = free[{at.rank, receiver % ranks, gradients}];
        sent = std::max(sent, end) +
               (gradients ? costs.gradients : costs.activations)[action.chunk] / costs.bandwidth;
        arrival[at.rank][at.index] = sent + costs.latency;
      });
  return out;
}

double ideal_bubble(PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  const bool zero_bubble = kind == PipelineSchedule::kZeroBubble && ranks > 1;
  const int64_t slots = (zero_bubble ? 3 : chunks) * micro_batches;
  return static_cast<double>(ranks - 1) / static_cast<double>(slots + ranks - 1);
}

}  // namespace hero
