#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules between folders that no compiler checks; prints one line per fault and fails if there is one.

    tests/check_layering.py [ROOT]

* A library folder includes only the folders that EDGES allows it, by their path from the root.
* Outside libraries have their place (PLACES): Eigen, CUDA, NCCL, MPI and JSON each in few files, never in a header.
* Headers of tensor, autograd and nn stay cheap (SLOW_HEADERS), and every header starts with #pragma once.
* Every source file names its licence in its first lines.
"""
import os
import re
import subprocess
import sys
import tempfile

EDGES = {
    "tensor": {"tensor"},
    "autograd": {"autograd", "tensor"},
    "comm": {"comm", "tensor"},
    "io": {"io", "tensor"},
    "optim": {"optim", "tensor"},
    "nn": {"nn", "autograd", "tensor"},
    "zero": {"zero", "nn", "optim", "comm", "io", "autograd", "tensor"},
}
# Outside headers -> the files of the library that may include them.
PLACES = [
    (r"(unsupported/)?Eigen/", r"tensor/ops/gemm_(cpu|tile)\w*\.(cc|h|inc)"),
    (r"cuda|cublas|cudnn|cub/|thrust/|nvtx3/|cooperative_groups|curand|nv/target|mma\.h", r".*\.(cu|cuh|cc)"),
    (r"nccl", r"comm/nccl\w*\.cc"),
    (r"mpi\.h|mpi-ext\.h", r"comm/mpi\w*\.cc"),
    (r"nlohmann/", r"(io|zero)/.*(\.cc|_fwd\.h)"),
    (r"absl/", r"(autograd|comm|io|optim|nn|zero)/.*"),
    (r"(gtest|gmock|benchmark)/", r"$^"),
]
SLOW_HEADERS = {"iostream", "sstream", "functional"}
CHEAP_FOLDERS = {"tensor", "autograd", "nn"}
CODE = (".h", ".cuh", ".inc", ".cc", ".cu")
LICENSED = CODE + (".py", ".sh", "meson.build", "meson_options.txt", "meson.options", "setup", ".ci/run")
SPDX = "SPDX-License-Identifier: Apache-2.0"
INCLUDE = re.compile(r'^\s*#\s*(?:include|include_next|import)\s*(?:"([^"]*)"|<([^>]*)>|(\S.*))')


def files(root):
    """Tracked files and new ones that are not ignored; without git, all but the build folders and hidden ones."""
    try:
        command = ["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
        if out:
            return sorted(f for f in set(out.split("\0")) if f and os.path.isfile(os.path.join(root, f)))
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, folders, names in os.walk(root):
        at_top = os.path.samefile(folder, root)
        skipped = (".", "__pycache__") + (("build", "runs") if at_top else ())
        folders[:] = [f for f in folders if f == ".ci" or not f.startswith(skipped)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def check_include(path, quoted, angled, other):
    """The fault of one #include of the library file `path`, or None."""
    folder = path.split("/")[0]
    if other is not None:
        return f"includes the macro {other.strip()}; write the file's name"
    if quoted is not None:
        target = quoted.split("/")[0]
        if ".." in quoted.split("/"):
            return f'includes "{quoted}"; write its path from the root'
        if "/" in quoted and target in EDGES[folder]:
            return None
        if target in EDGES:
            allowed = ", ".join(sorted(EDGES[folder] - {folder})) or "no other folder"
            return f'includes "{quoted}", but {folder} may include only itself and {allowed}'
        if target in ("tests", "bench", "examples"):
            return f'includes "{quoted}", but the library may not include {target}'
    name = angled if angled is not None else quoted
    if path.endswith(".h") and folder in CHEAP_FOLDERS and name in SLOW_HEADERS:
        return f"includes <{name}>, which is too slow for a header of {folder}"
    for pattern, place in PLACES:
        if re.match(pattern, name):
            allowed = re.fullmatch(place, path)
            return None if allowed else f"includes <{name}>, which may be included only by {place}"
    if name.split("/")[0] in EDGES:
        return f'includes <{name}>; write "{name}"'
    if quoted is not None:
        return f'includes "{quoted}"; write its path from the root, or <...> if it is not ours'
    return None


def check(root):
    faults = []
    for path in files(root):
        if not path.endswith(LICENSED):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as source:
            lines = source.read().split("\n")
        if not any(SPDX in line for line in lines[:5]):
            faults.append(f'{path}:1: no "{SPDX}" in its first five lines')
        if path.endswith((".h", ".cuh")) and "#pragma once" not in (line.strip() for line in lines):
            faults.append(f"{path}:1: no #pragma once")
        if path.split("/")[0] not in EDGES or not path.endswith(CODE):
            continue
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            fault = check_include(path, *match.groups()) if match else None
            if fault:
                faults.append(f"{path}:{number}: {fault}")
    return faults


def self_test():
    def faults_of(path, text):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, os.path.dirname(path)))
            with open(os.path.join(root, path), "w", encoding="utf-8") as source:
                source.write(text)
            return check(root)

    head = f"// {SPDX}\n#pragma once\n"
    for path, line in [
        ("nn/a.h", '#include "autograd/tape.h"'),
        ("zero/hf/a.h", '#include "zero/hf/b.h"  // why'),
        ("zero/a.cc", "#include <nlohmann/json.hpp>"),
        ("nn/a.h", '// #include "zero/engine.h"'),
        ("tensor/ops/gemm_cpu.cc", "#include <Eigen/Core>"),
        ("tensor/ops/add_cuda.cu", "#include <cuda_bf16.h>"),
        ("tensor/a.cc", "#include <sstream>"),
        ("tests/a.cc", '#include "zero/engine.h"'),
    ]:
        assert faults_of(path, head + line) == [], (path, line)
    for path, line in [
        ("nn/a.h", '#include "zero/engine.h"'),
        ("nn/models/a.cc", '# include "optim/adam.h"'),
        ("tensor/a.cc", '#include "autograd/tape.h"'),
        ("tensor/a.cc", '#include "layout.h"'),
        ("tensor/ops/a.cc", '#include "../layout.h"'),
        ("tensor/a.cc", '#include "tensor/../nn/a.h"'),
        ("tensor/a.cc", "#include <nn/a.h>"),
        ("tensor/a.cc", '#include "tests/a.h"'),
        ("tensor/a.cc", "#include <Eigen/Core>"),
        ("tensor/a.cc", '#include "absl/strings/str_cat.h"'),
        ("tensor/a.h", "#include <cuda_runtime.h>"),
        ("autograd/a.h", "#include <functional>"),
        ("autograd/a.h", "#include HEADER"),
    ]:
        assert len(faults_of(path, head + line)) == 1, (path, line)
    assert len(faults_of("bench/a.h", "")) == 2, "no licence, no #pragma once"


def main():
    if sys.argv[1:] == ["--self_test"]:
        return self_test()
    faults = check(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    print("\n".join(faults) if faults else "layering: no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
