#include "distributed/mesh.h"

#include "io/error.h"

namespace hero {
namespace {

std::vector<int64_t> strided_ranks(int64_t first, int64_t count, int64_t stride) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

}  // namespace

std::vector<int64_t> Mesh::data_ranks() const { return strided_ranks(rank - data_rank(), data, 1); }
std::vector<int64_t> Mesh::expert_ranks() const { return strided_ranks(rank - expert_rank(), expert, 1); }
std::vector<int64_t> Mesh::replica_ranks() const {
  return strided_ranks(rank - data_rank() + expert_rank(), data / expert, expert);
}
std::vector<int64_t> Mesh::pipeline_ranks() const { return strided_ranks(data_rank(), pipeline, data); }

Mesh make_mesh(const Config& config, int64_t rank, int64_t size) {
  const auto& p = config.parallel;
  const auto processes = std::to_string(size) + (size == 1 ? " process" : " processes");
  if (size % p.pipeline != 0) {
    throw UserError("parallel.pipeline: found " + std::to_string(p.pipeline) +
                    ", expected a divisor of the " + processes);
  }
  const int64_t data = size / p.pipeline;
  if (p.data != 0 && p.data != data) {
    throw UserError("parallel.data: found " + std::to_string(p.data) + ", expected " + std::to_string(data) +
                    ": the " + processes + " by parallel.pipeline = " + std::to_string(p.pipeline));
  }
  Config filled = config;
  filled.parallel.data = data;
  check(filled);
  return {.data = data, .pipeline = p.pipeline, .expert = p.expert, .rank = rank};
}

}  // namespace hero
