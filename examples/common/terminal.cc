// SPDX-License-Identifier: Apache-2.0
#include "examples/common/terminal.h"

#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tessera::examples {
namespace {

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

Terminal Terminal::Of(std::FILE* stream) {
  Terminal terminal;
  const int fd = fileno(stream);
  // mpirun gives its processes a terminal of their own even where the output goes to a file.
  if (isatty(fd) == 0 || !Environment("OMPI_COMM_WORLD_RANK").empty()) return terminal;
  struct winsize size = {};
  terminal.columns = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  terminal.interactive = Environment("TERM") != "dumb" && !Environment("TERM").empty();
  terminal.color = terminal.interactive && Environment("NO_COLOR").empty();
  return terminal;
}

}  // namespace tessera::examples
