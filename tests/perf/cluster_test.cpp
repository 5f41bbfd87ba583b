#include "perf/cluster.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "io/error.h"

namespace hero {
namespace cluster_test {

std::string error_of(const std::string& file, const std::map<std::string, FieldValue>& given) {
  try {
    read_cluster(file, given);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, ProjectFiles) {
  const Cluster h200 = read_cluster("configs/clusters/h200-256.toml", {});
  EXPECT_EQ(h200.gpus, 256);
  EXPECT_EQ(h200.gpus_per_node, 8);
  EXPECT_EQ(h200.teraflops, 989);
  EXPECT_EQ(h200.bandwidth_node_gbs, 450);
  EXPECT_EQ(read_cluster("configs/clusters/paper.toml", {}).gpus, 128);
}

TEST(Cluster, FlagsOverrideFile) {
  const Cluster c =
      read_cluster("configs/clusters/h200-256.toml", {{"gpus", int64_t{64}}, {"efficiency", 0.5}});
  EXPECT_EQ(c.gpus, 64);
  EXPECT_EQ(c.efficiency, 0.5);
  EXPECT_EQ(c.teraflops, 989);
}

TEST(Cluster, FlagsOnly) {
  std::map<std::string, FieldValue> given = {{"gpus", int64_t{16}},         {"gpus_per_node", int64_t{8}},
                                             {"teraflops", 100.0},          {"memory_gib", 80.0},
                                             {"bandwidth_node_gbs", 300.0}, {"bandwidth_network_gbs", 25.0}};
  EXPECT_EQ(read_cluster("", given).gpus, 16);
  given["gpus"] = int64_t{12};
  EXPECT_EQ(error_of("", given), "--gpus: found 12, expected a multiple of gpus_per_node = 8");
  given["gpus"] = int64_t{4};  // part of a node
  EXPECT_EQ(error_of("", given), "");
  given["reserved_gib"] = 80.0;
  EXPECT_EQ(error_of("", given), "--reserved-gib: found 80.0, expected less than memory_gib = 80.0");
  given["reserved_gib"] = -1.0;
  EXPECT_EQ(error_of("", given), "--reserved-gib: found -1.0, expected a finite number of at least 0");
  given.erase("reserved_gib");
  given.erase("teraflops");
  EXPECT_EQ(error_of("", given),
            "--teraflops: found nothing, expected a finite number above 0, or a --cluster file");
}

TEST(Cluster, InvalidFiles) {
  const std::string path = testing::TempDir() + "cluster.toml";
  const auto file_error = [&](const std::string& text) {
    std::ofstream(path) << text;
    const std::string found = error_of(path, {});
    EXPECT_EQ(found.rfind(path, 0), 0u) << found;
    return found.substr(std::min(path.size(), found.size()));
  };
  EXPECT_EQ(file_error("gpus = 8\ngpu_per_node = 8\n"),
            ":2: gpu_per_node: unknown key; did you mean gpus_per_node?");
  EXPECT_EQ(file_error("teraflops = \"many\"\n"),
            ":1: teraflops: found 'many', expected a finite number above 0");
  EXPECT_EQ(file_error("gpus = 8.5\n"), ":1: gpus: found 8.5, expected an integer from 1 to 1048576");
  EXPECT_EQ(file_error("efficiency = 1.5\n"),
            ":1: efficiency: found 1.5, expected a finite number above 0 and below 1");
  EXPECT_EQ(file_error("gpus = 8\n"),
            ": gpus_per_node: found nothing, expected an integer from 1 to 1048576");
  std::remove(path.c_str());
}

}  // namespace cluster_test
}  // namespace hero
