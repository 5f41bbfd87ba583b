#include "ops/device_graph.h"

#include <c10/util/Exception.h>

namespace hero {
namespace {

GraphRecorder& registered_recorder() {
  static GraphRecorder recorder = nullptr;
  return recorder;
}

}  // namespace

void set_graph_recorder(GraphRecorder recorder) { registered_recorder() = recorder; }

std::unique_ptr<DeviceGraph> record_graph(const std::function<void()>& work) {
  TORCH_CHECK(registered_recorder(), "record_graph: libhero_cuda.so is not loaded");
  return registered_recorder()(work);
}

}  // namespace hero
