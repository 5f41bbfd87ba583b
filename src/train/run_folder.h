#pragma once
// How a run begins: its folder, its configuration, its data, and where it goes on.
#include <memory>
#include <utility>

#include "checkpoint/training_state.h"
#include "data/sampler.h"
#include "distributed/world.h"
#include "train/trainer.h"

namespace hero {

/// Holds a run folder for this process: a second one that opens the same folder is refused.
class RunLock {
 public:
  RunLock() = default;
  explicit RunLock(const std::filesystem::path& run);
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~RunLock();

 private:
  int descriptor_ = -1;
};

struct Run {
  RunLock lock;
  Config config;
  at::Device device = at::kCPU;  ///< what train.device means here
  RunInputs inputs;
  std::unique_ptr<TokenStream> stream;
  std::filesystem::path checkpoint;  ///< to go on from; empty: from the start
  std::filesystem::path init_from;   ///< model folder whose weights begin the run; empty: initialised
  bool new_history = false;          ///< those are a baseline's, and this run's routers have a history
};

/// Makes or reopens the folder. A folder that already holds a run needs `resume`; a resumed run keeps its
/// configuration, and what the command line says otherwise is refused, except train.steps, train.threads,
/// train.device, train.cuda_graph, train.routing_every, parallel.* and checkpoint.*. UserError for all of
/// that and for unfit data. Of several processes (`world`) rank 0 does so, the others read what it found;
/// UserError on all where they were started with other configurations, programs or data.
Run open_run(const TrainOptions& options, const World* world = nullptr);

}  // namespace hero
