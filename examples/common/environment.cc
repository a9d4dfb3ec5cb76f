// SPDX-License-Identifier: Apache-2.0
#include "examples/common/environment.h"

#include <cstdint>
#include <fstream>
#include <thread>

#include <sys/utsname.h>
#include <unistd.h>

#include "tensor/cpu_isa.h"
#include "tensor/error.h"
#include "tensor/thread_pool.h"

namespace tessera::examples {
namespace {

#if defined(__clang__)
constexpr char kCompiler[] = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr char kCompiler[] = "g++ " __VERSION__;
#else
constexpr char kCompiler[] = "unknown";
#endif

}  // namespace

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string LocalTime(std::time_t time) {
  std::tm local = {};
  localtime_r(&time, &local);
  char text[48];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %z", &local);
  return text;
}

std::vector<Row> EnvironmentRows() {
  utsname system = {};
  std::vector<Row> rows = {
      {"version", Str("Tessera ", TESSERA_VERSION, ", compiled by ", kCompiler)},
      {"processor", Str(CpuName(), ", ", std::thread::hardware_concurrency(), " hardware threads, ", NumThreads(),
                        " used; instruction set ", Name(ActiveIsa()))},
  };
  if (uname(&system) == 0) {
    const int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    rows.emplace_back("machine", Str(system.nodename, ", ", system.sysname, " ", system.release, " ", system.machine,
                                     ", ", Bytes(bytes), " of memory"));
  }
  return rows;
}

}  // namespace tessera::examples
