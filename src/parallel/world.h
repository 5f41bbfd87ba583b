#pragma once
// The processes of a run: the groups they form, what they tell one another, how they end.
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group.h"
#include "parallel/launch.h"
#include "parallel/mesh.h"

namespace hero {

class Heartbeat;
struct Stores;

class World {
 public:
  /// Finds the others, forms the groups. `device`: of the tensors that travel (Gloo on CPUs, NCCL on GPUs).
  /// RunError after parallel.timeout, naming who did not come.
  World(const Launch& launch, const Config& config, at::Device device);
  /// Ends this process's part in the run: in order, or telling all others to end where it leaves by an
  /// exception.
  ~World();
  World(const World&) = delete;

  const Launch& launch() const { return launch_; }
  const Mesh& mesh() const { return mesh_; }
  bool first() const { return launch_.rank == 0; }

  const Group& all() const { return *all_; }
  const Group& data() const { return *data_; }
  const Group& expert() const { return *expert_; }
  const Group& replica() const { return *replica_; }  ///< who holds the same experts
  const Group& pipeline() const { return *pipeline_; }

  /// A word to all others, under a key that is used once in a run. Thread-safe. RunError where the store has
  /// gone.
  void tell(const std::string& key, const std::string& value) const;
  /// What was told under `key`, waiting for it. Thread-safe. RunError after parallel.timeout.
  std::string hear(const std::string& key) const;

  /// Every rank gives the same `facts` (configuration, version, data); UserError on all ranks naming the
  /// first that differs from rank 0's, and how.
  /// Every rank calls it equally often.
  void agree(const std::vector<std::pair<std::string, std::string>>& facts) const;

 private:
  std::unique_ptr<Group> make_group(const std::string& name, const std::vector<int64_t>& ranks) const;

  Launch launch_;
  Mesh mesh_;
  at::Device device_;
  double timeout_;  ///< seconds
  std::unique_ptr<Stores> stores_;
  std::unique_ptr<Heartbeat> heartbeat_;  ///< null: alone
  std::unique_ptr<Group> all_, data_, expert_, replica_, pipeline_;
  mutable int64_t agreements_ = 0;
};

}  // namespace hero
