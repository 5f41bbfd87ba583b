#pragma once
// CUDA graphs: kernels captured once and launched together. libhero.so is independent of CUDA;
// libhero_cuda.so registers the recorder when it is loaded.
#include <functional>
#include <memory>

namespace hero {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Launches the captured work on the current stream, on the tensors used during capture.
  virtual void replay() = 0;
};

/// Runs `work` a few times as warm-up, then captures it without running it. `work` must use one device and
/// fixed shapes, and must not read device values on the host; all tensors that it accesses must outlive the
/// graph.
using GraphRecorder = std::unique_ptr<DeviceGraph> (*)(const std::function<void()>& work);

/// Called by libhero_cuda.so.
void set_graph_recorder(GraphRecorder recorder);
std::unique_ptr<DeviceGraph> record_graph(const std::function<void()>& work);

}  // namespace hero
