// SPDX-License-Identifier: Apache-2.0
// Tests whose ranks are processes: every process runs the same tests and each test its own rank. Rank 0 reports; a failure
// on any rank fails the test there too.
//
//   mpirun -n 4 comm_mpi_test [--gtest_filter=...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "comm/mpi_group.h"
#include "tests/comm/contract.h"

namespace tessera::comm::testing {
namespace {

constexpr int64_t kShortMessage = 1000;  // so that everything goes in parts

// Between the tests, for what all processes must know.
std::unique_ptr<MpiGroup> all_group;
std::unique_ptr<Communicator> all;

class ToStderr : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { name_ = Str(test.test_suite_name(), ".", test.name()); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {  // under the lock that names tests
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s: %s:%d: %s\n", all->rank(), name_.c_str(),
                 result.file_name() != nullptr ? result.file_name() : "?", result.line_number(), result.message());
  }
  std::string name_;
};

}  // namespace

std::vector<WorldOptions> ContractWorlds() {
  std::vector<WorldOptions> worlds;
  for (const int size : {1, 2, 3, 4}) worlds.push_back({.size = size, .ledger = true});
  worlds.push_back({.size = 2, .ledger = true, .stream = StreamKind::kWorker});
  worlds.push_back({.size = 4, .ledger = true, .stream = StreamKind::kWorker});
  worlds.push_back({.size = 4});
  worlds.push_back({.size = 3, .stream = StreamKind::kWorker, .short_messages = true});
  return worlds;
}

std::string ContractWorldName(const WorldOptions& options) {
  return Str("Processes", options.size, options.ledger ? "Ledger" : "", options.short_messages ? "InParts" : "",
             options.stream == StreamKind::kInline ? "Inline" : "Worker");
}

Outcome OnContractWorld(const WorldOptions& options, World::Body body) {
  std::string error;
  char aborted = 'n';
  if (all->rank() < options.size) {
    MpiOptions mpi{.timeout_s = options.timeout_s};
    if (options.short_messages) mpi.longest_message_bytes = kShortMessage;
    std::optional<MpiGroup> group;
    try {
      group.emplace(options.size, mpi);
      std::unique_ptr<Communicator> comm = group->Rank();
      if (options.ledger) comm = std::make_unique<Ledger>(std::move(comm), group->board());
      Stream stream(options.stream);
      body(*comm, stream);
      stream.Synchronize();
    } catch (const AbortedError& caught) {
      error = caught.what();
      aborted = 'y';
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    if (group && error.empty()) group->family().MarkFinished();
    if (group && !error.empty()) group->family().MarkFailed(error);
    if (group) group->family().AwaitAllFinished();
  }
  Outcome outcome;
  const char failed = ::testing::Test::HasFailure() ? 'y' : 'n';
  const std::vector<std::string> texts = all->AllGatherBytes(std::string{aborted, failed} + error);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank][1] == 'y' && all->rank() == 0 && rank > 0)
      ADD_FAILURE() << "rank " << rank << " says why on stderr";
    if (rank >= static_cast<size_t>(options.size)) continue;
    outcome.aborted.push_back(texts[rank][0] == 'y');
    outcome.errors.push_back(texts[rank].substr(2));
  }
  return outcome;
}

int RunAllProcesses(int argc, char** argv) {
  const MpiProcess& process = StartMpi(60);
  all_group = std::make_unique<MpiGroup>(process.size, MpiOptions{.timeout_s = 120});
  all = all_group->Rank();
  ::testing::InitGoogleTest(&argc, argv);
  if (process.rank > 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new ToStderr);
  }
  int status = RUN_ALL_TESTS();
  for (const std::string& theirs : all->AllGatherBytes(std::to_string(status))) {
    status = std::max(status, std::atoi(theirs.c_str()));
  }
  all_group->family().MarkFinished();
  all_group->family().AwaitAllFinished();
  all.reset();
  all_group.reset();
  return status;
}

}  // namespace tessera::comm::testing

int main(int argc, char** argv) { return tessera::comm::testing::RunAllProcesses(argc, argv); }
