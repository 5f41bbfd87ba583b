#include "distributed/loop.h"

#include <ATen/ATen.h>

#include "distributed/activity.h"
#include "distributed/world.h"

namespace hero {

void loop_over_collectives(double timeout, int64_t steps, const std::function<void(int64_t)>& after) {
  const Launch launch = read_launch();
  Config config;
  config.train.micro_batch = 1;
  config.train.global_batch = launch.world_size;
  config.parallel.timeout = timeout;
  const World world(launch, config, at::kCPU);
  const Group& all = world.all();
  const std::vector<int64_t> counts(all.size(), 2);
  for (int64_t step = 1; step <= steps; ++step) {
    set_current_step(step);
    at::Tensor sum = at::full({1000}, static_cast<double>(all.rank()));
    all.all_reduce(sum).wait();
    const at::Tensor rows = sum.narrow(0, 0, 2 * all.size());
    at::Tensor exchanged = at::empty_like(rows);
    all.all_to_all(exchanged, rows, counts, counts).wait();
    const double expected = 0.5 * static_cast<double>(all.size() * (all.size() - 1));
    TORCH_CHECK(at::equal(exchanged, at::full_like(rows, expected)));
    after(step);
  }
}

}  // namespace hero
