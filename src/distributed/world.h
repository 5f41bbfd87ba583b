#pragma once
// The processes of a run: the groups they form, what they tell one another, how they end.
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/group.h"
#include "distributed/launch.h"
#include "distributed/mesh.h"

namespace hero {

class Heartbeat;
struct Stores;

class World {
 public:
  /// Finds the others. RunError after `timeout` seconds, naming who did not come.
  World(const Launch& launch, double timeout);
  /// Finds the others and forms the groups.
  World(const Launch& launch, const Config& config, at::Device device);
  /// Ends this process's part in the run: in order, or telling all others to end where it leaves by an
  /// exception.
  ~World();
  World(const World&) = delete;

  /// Forms mesh and groups, as every rank must with one configuration. `device`: of the tensors that travel
  /// (Gloo on CPUs, NCCL on GPUs). RunError after parallel.timeout.
  void form(const Config& config, at::Device device);

  const Launch& launch() const { return launch_; }
  const Mesh& mesh() const { return mesh_; }
  bool first() const { return launch_.rank == 0; }

  const Group& all() const { return *all_; }
  const Group& data() const { return *data_; }
  const Group& expert() const { return *expert_; }
  const Group& replica() const { return *replica_; }  ///< who holds the same experts
  /// The pipeline ranks. Messages of every kind have a lane of their own, on which no two ranks send to each
  /// other: a backend that carries out a pair's operations one by one cannot stall. `wraps`: between the last
  /// rank and the first.
  const Group& lane(bool gradients, bool wraps) const {
    return *lanes_[2 * (gradients ? 1 : 0) + (wraps ? 1 : 0)];
  }

  /// A word to all others, under a key that is used once in a run. Thread-safe. RunError where the store has
  /// gone.
  void tell(const std::string& key, const std::string& value) const;
  /// What was told under `key`, waiting for it. Thread-safe. RunError after parallel.timeout.
  std::string hear(const std::string& key) const;

  /// Every rank gives the same `facts` (configuration, version, data); UserError on all ranks naming the
  /// first that differs from rank 0's, and how.
  /// Every rank calls it equally often.
  void agree(const std::vector<std::pair<std::string, std::string>>& facts) const;

  /// All ranks know that the run ends here: their silence is no alarm.
  void dismiss() const;

 private:
  std::unique_ptr<Group> make_group(const std::string& name, const std::vector<int64_t>& ranks) const;

  Launch launch_;
  Mesh mesh_;
  at::Device device_ = at::kCPU;
  double timeout_;  ///< seconds
  std::unique_ptr<Stores> stores_;
  std::unique_ptr<Heartbeat> heartbeat_;  ///< null: alone
  std::unique_ptr<Group> all_, data_, expert_, replica_;
  std::unique_ptr<Group> lanes_[4];
  mutable int64_t agreements_ = 0;
};

}  // namespace hero
