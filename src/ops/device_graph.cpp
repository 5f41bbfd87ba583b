#include "ops/device_graph.h"

#include <c10/util/Exception.h>

namespace hero {
namespace {

GraphRecorder& the_recorder() {
  static GraphRecorder recorder = nullptr;
  return recorder;
}

}  // namespace

void set_graph_recorder(GraphRecorder recorder) { the_recorder() = recorder; }

std::unique_ptr<DeviceGraph> record_graph(const std::function<void()>& work) {
  TORCH_CHECK(the_recorder(), "record_graph: libhero_cuda.so is not loaded");
  return the_recorder()(work);
}

}  // namespace hero
