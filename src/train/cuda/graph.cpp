// CUDA graphs for ops/device_graph.h; part of libhero_cuda.so. As PyTorch's documentation requires ("CUDA
// semantics", "CUDA Graphs"): warm-up and capture on one non-default stream, memory of the capture from a
// private pool.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "ops/device_graph.h"

namespace hero {
namespace {

constexpr int kWarmUps = 3;

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(const std::function<void()>& work) {
    c10::cuda::device_synchronize();
    {
      const c10::cuda::CUDAStreamGuard on_side_stream(c10::cuda::getStreamFromPool());
      for (int i = 0; i < kWarmUps; ++i) work();
      c10::cuda::device_synchronize();
      c10::cuda::CUDACachingAllocator::emptyCache();
      graph_.capture_begin();
      work();
      graph_.capture_end();
    }
    c10::cuda::device_synchronize();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

const bool registered = []() noexcept {
  set_graph_recorder([](const std::function<void()>& work) -> std::unique_ptr<DeviceGraph> {
    return std::make_unique<CudaGraph>(work);
  });
  return true;
}();

}  // namespace
}  // namespace hero
