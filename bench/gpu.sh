#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests and measures the CUDA part on a machine with a GPU, which needs no compiler: the programs are brought there.
#
#   bench/gpu.sh pack [BUILD]   where they were built: puts them, stripped, into build-cuda/gpu/ (BUILD: build-cuda)
#   bench/gpu.sh                on the GPU machine, from the repository's root, with build-cuda/gpu/ in place
#
# Takes ten minutes at most. Logs go to $OUT, or build-cuda/gpu/ without it. Ends with one line per step; fails if a step did.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
programs=build-cuda/gpu
tests='tensor_cuda_test autograd_test'

if [ "${1:-}" = pack ]; then
  build=${2:-build-cuda}
  mkdir -p $programs
  for program in tests/tensor/tensor_cuda_test tests/autograd/autograd_test bench/gpu_bench; do
    strip -o "$programs/${program##*/}" "$build/$program" || exit 1
  done
  exec du -sh $programs
fi

# The CUDA libraries: those of Python's packages, then the toolkit's.
folders=$(python3 - <<'END' 2>/dev/null
import glob, site, sys
roots = site.getsitepackages() + [site.getusersitepackages()] + sys.path
print(":".join(dict.fromkeys(f for r in roots if r for f in sorted(glob.glob(r + "/nvidia/*/lib")))))
END
)
for toolkit in /usr/local/cuda/lib64 /usr/local/cuda/lib; do [ ! -d $toolkit ] || folders+=":$toolkit"; done
export LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
logs=${OUT:-$programs}
summary='' failed=0

step() { # NAME LIMIT_S COMMAND...: keeps its output in a log; the last lines are shown when it fails
  local name=$1 started=$SECONDS status=0 log="$logs/$1.log" counts
  timeout --kill-after=10 "$2" "${@:3}" >"$log" 2>&1 || status=$?
  counts=$(grep -E '^\[  (PASSED|FAILED|SKIPPED) *\] [0-9]+ tests?|ERROR SUMMARY|^ERROR' "$log" | tail -n 4 | tr '\n' ' ')
  if [ $status -eq 0 ]; then counts="ok      $counts"; else counts="FAILED $status $counts" failed=1; fi
  [ $status -eq 0 ] || { grep -nE 'FAILED|Failure|[Ee]rror' "$log" | head -n 40; tail -n 25 "$log"; }
  summary+=$(printf '%-28s %4d s  %s' "$name" $((SECONDS - started)) "$counts")$'\n'
}

nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader || echo 'no nvidia-smi'
ldd $programs/gpu_bench | grep -E 'cublas|not found'
for program in $tests; do step "$program" 120 $programs/"$program" --gtest_filter='*Cuda*' --gtest_brief=1; done
step gpu_bench 100 $programs/gpu_bench
cat "$logs/gpu_bench.log"
if python3 -c 'import torch' 2>/dev/null; then
  step gpu_peers 60 python3 bench/gpu_peers.py
  cat "$logs/gpu_peers.log"
fi

# Blocks of exactly the size asked for, none kept: what lies past one is nobody's.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
  filter='CudaTest.RmsNorm*:CudaTest.Linears*:CudaTest.GemmBroadcasts*:CudaTest.CopyRounds*:CudaTest.FillGives*'
  TESSERA_CUDA_CHECK=1 step memcheck 150 "$sanitizer" --tool memcheck --error-exitcode 99 --leak-check no \
    $programs/tensor_cuda_test --gtest_filter="$filter" --gtest_brief=1
  TESSERA_CUDA_CHECK=1 step racecheck 60 "$sanitizer" --tool racecheck --error-exitcode 99 \
    $programs/tensor_cuda_test --gtest_filter='CudaTest.RmsNormMay*:CudaTest.RmsNormOf*' --gtest_brief=1
else
  summary+='memcheck: no compute-sanitizer here'$'\n'
fi

printf '\n%s' "$summary"
exit $failed
