// SPDX-License-Identifier: Apache-2.0
// What the other end of a stream can show.
#pragma once

#include <cstdio>

namespace tessera::examples {

struct Terminal {
  bool interactive = false;  // a bar may be drawn over: a terminal, and not a dumb one
  bool color = false;        // and the user did not set NO_COLOR
  int columns = 0;           // 0: no limit

  static Terminal Of(std::FILE* stream);
  // Where text is laid out in lines of its own: what there is, at most 100; 80 where there is no limit.
  int text_columns() const { return columns == 0 ? 80 : columns < 100 ? columns : 100; }
};

}  // namespace tessera::examples
