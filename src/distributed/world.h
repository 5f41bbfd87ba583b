#pragma once
// The processes of a run: process groups, the shared store, and shutdown.
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

/// Messages between pipeline ranks. Each kind has a process group of its own, in which no two ranks send to
/// each other: a backend that serializes the operations of a pair cannot deadlock.
enum class Channel {
  kActivations,
  kWrappedActivations,  ///< from the last rank to the first
  kGradients,
  kWrappedGradients,   ///< from the first rank to the last
  kEmbeddings,         ///< from the first rank to the last, for multi-token prediction modules
  kEmbeddingGradients  ///< from the last rank to the first
};

class World {
 public:
  /// Joins the rendezvous. RunError after `timeout` seconds, naming the missing ranks.
  World(const Launch& launch, double timeout);
  /// Joins the rendezvous and creates the process groups.
  World(const Launch& launch, const Config& config, at::Device device);
  /// Leaves the run. If destroyed by stack unwinding, reports a failure, which aborts all ranks.
  ~World();
  World(const World&) = delete;

  /// Creates mesh and process groups. Every rank must call it with the same configuration. `device`: of the
  /// tensors to communicate (Gloo on CPUs, NCCL on GPUs). RunError after parallel.timeout.
  void init_process_groups(const Config& config, at::Device device);

  const Launch& launch() const { return launch_; }
  const Mesh& mesh() const { return mesh_; }
  bool is_rank_zero() const { return launch_.rank == 0; }

  const Group& all() const { return *all_; }
  const Group& data() const { return *data_; }
  const Group& expert() const { return *expert_; }
  const Group& replica() const { return *replica_; }  ///< ranks that hold the same experts
  /// The pipeline ranks. Only channels that the configuration needs exist.
  const Group& channel(Channel channel) const { return *channels_[static_cast<size_t>(channel)]; }

  /// Remembers for restarts by the launcher that this launch may write to its run; see opened_before.
  void set_opened() const;
  /// Whether an earlier start of this launch has called set_opened. True if the launcher hosts no store: then
  /// it is unknown.
  bool opened_before() const;

  /// Sets a key of the store. Each key may be used once per run. Thread-safe. RunError if the store is
  /// unreachable.
  void set(const std::string& key, const std::string& value) const;
  /// Waits for `key` and returns its value. Thread-safe. RunError after parallel.timeout in which no other
  /// rank hashed a file.
  std::string get(const std::string& key) const;

  /// Collective. Checks that every rank passes the same named values (configuration, version, data).
  /// UserError on all ranks naming the first difference from rank 0.
  void check_same_on_all_ranks(const std::vector<std::pair<std::string, std::string>>& values) const;

  /// Call when all ranks are about to exit: from then on a missing heartbeat is not an error.
  void stop_heartbeat() const;

 private:
  std::unique_ptr<Group> make_group(const std::string& name, const std::vector<int64_t>& ranks) const;

  Launch launch_;
  Mesh mesh_;
  at::Device device_ = at::kCPU;
  double timeout_;  ///< seconds
  std::unique_ptr<Stores> stores_;
  std::unique_ptr<Heartbeat> heartbeat_;  ///< null: single process
  std::unique_ptr<Group> all_, data_, expert_, replica_;
  std::unique_ptr<Group> channels_[6];
  mutable int64_t checks_ = 0;
};

}  // namespace hero
