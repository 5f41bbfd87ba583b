#include "perf/cluster.h"

#include <algorithm>

#include "config/toml_file.h"
#include "io/error.h"

namespace hero {
namespace {

constexpr double kMaxGpus = 1 << 20;

Field positive_integer(const char* key, int64_t* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 1, .max = kMaxGpus};
}
Field positive(const char* key, double* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 0, .above_min = true};
}
Field non_negative(const char* key, double* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 0};
}

void require_all(const std::vector<Field>& list, const std::string& file) {
  for (const Field& field : list) {
    if (assign(field, read(field))) continue;
    throw UserError(file.empty() ? cluster_flag(field.key) + ": found nothing, expected " + expected(field) +
                                       ", or a --cluster file"
                                 : file + ": " + field.key + ": found nothing, expected " + expected(field));
  }
}

}  // namespace

std::vector<Field> cluster_fields(Cluster& c) {
  return {positive_integer("gpus", &c.gpus, "total number of GPUs"),
          positive_integer("gpus_per_node", &c.gpus_per_node, "GPUs per node"),
          positive("teraflops", &c.teraflops, "TFLOP/s per GPU: dense matrix products in train.dtype"),
          {.key = "efficiency",
           .value = &c.efficiency,
           .help = "fraction of the TFLOP/s that matrix products reach",
           .min = 0,
           .max = 1,
           .above_min = true,
           .below_max = true},
          positive("memory_gib", &c.memory_gib, "memory per GPU in GiB"),
          non_negative("reserved_gib", &c.reserved_gib, "GiB per GPU not available to tensors"),
          non_negative("bandwidth_memory_gbs", &c.bandwidth_memory_gbs,
                       "GPU memory bandwidth in GB/s, for non-matmul work; 0: ignore non-matmul work"),
          positive("bandwidth_node_gbs", &c.bandwidth_node_gbs, "GB/s per GPU within a node, one direction"),
          positive("bandwidth_network_gbs", &c.bandwidth_network_gbs,
                   "GB/s per GPU between nodes, one direction"),
          non_negative("latency_node_us", &c.latency_node_us, "latency within a node in microseconds"),
          non_negative("latency_network_us", &c.latency_network_us, "latency between nodes in microseconds")};
}

std::string cluster_flag(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

Cluster read_cluster(const std::string& file, const std::map<std::string, FieldValue>& given) {
  Cluster cluster;
  const auto list = cluster_fields(cluster);
  for (const TomlEntry& entry : file.empty() ? std::vector<TomlEntry>{} : read_toml(file)) {
    const std::string where = file + ":" + std::to_string(entry.line) + ": " + entry.key;
    const Field* field = find_field(list, entry.key);
    if (!field) throw UserError(where + ": unknown key; did you mean " + nearest_key(list, entry.key) + "?");
    if (!entry.value || !assign(*field, *entry.value))
      throw UserError(where + ": found " + entry.display + ", expected " + expected(*field));
  }
  for (const auto& [key, value] : given) {
    const Field* field = find_field(list, key);
    if (!assign(*field, value))
      throw UserError(cluster_flag(key) + ": found " + literal(value) + ", expected " + expected(*field));
  }
  require_all(list, file);
  if (cluster.gpus > cluster.gpus_per_node && cluster.gpus % cluster.gpus_per_node != 0) {
    throw UserError((file.empty() ? "--gpus" : file + ": gpus") + ": found " + std::to_string(cluster.gpus) +
                    ", expected a multiple of gpus_per_node = " + std::to_string(cluster.gpus_per_node));
  }
  if (cluster.reserved_gib >= cluster.memory_gib) {
    throw UserError((file.empty() ? "--reserved-gib" : file + ": reserved_gib") + ": found " +
                    literal(cluster.reserved_gib) +
                    ", expected less than memory_gib = " + literal(cluster.memory_gib));
  }
  return cluster;
}

}  // namespace hero
