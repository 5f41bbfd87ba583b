#pragma once
// Kernels recorded once and launched together (CUDA graphs). libhero.so does not know CUDA: libhero_cuda.so
// brings the recorder when it is loaded.
#include <functional>
#include <memory>

namespace hero {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Launches everything that was recorded, on the current stream, on the tensors of the recording.
  virtual void replay() = 0;
};

/// Runs `work` a few times, then records it without running it. All of that on one device, with the same
/// shapes every time, reading no device value on the host; what `work` reads and writes must outlive the
/// graph.
using GraphRecorder = std::unique_ptr<DeviceGraph> (*)(const std::function<void()>& work);

/// Set by libhero_cuda.so.
void set_graph_recorder(GraphRecorder recorder);
std::unique_ptr<DeviceGraph> record_graph(const std::function<void()>& work);

}  // namespace hero
