#!/bin/sh
# Asks the real card what only it can tell: is a granule seen through two addresses one piece of memory (coherence),
# and what do the driver's memory calls cost and refuse (costs). Needs nvcc and an NVIDIA GPU; under two minutes.
#
#   bench/probe_gpu.sh OUTPUT_FOLDER [trials]
#
# Writes coherence.json, costs.json and what was printed (probe.log) to the folder.
# Exit: 0 all required cases passed, 1 one failed, 2 it could not be built or run.
set -u
if [ $# -lt 1 ]; then
  echo "usage: $0 OUTPUT_FOLDER [trials]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
out=$1
trials=${2:-10000}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
build=$(mktemp -d) || exit 2
trap 'rm -rf "$build"' EXIT
arch=${DYMEM_CUDA_ARCH:-sm_90}

compile() {
  "${NVCC:-nvcc}" -std=c++20 -O2 -arch="$arch" "$here/probe/$1.cu" -o "$build/$1" -ldl >"$build/$1.log" 2>&1
}
compile coherence &
first=$!
compile costs
second_code=$?
wait $first
first_code=$?
if [ $first_code -ne 0 ] || [ $second_code -ne 0 ]; then
  cat "$build/coherence.log" "$build/costs.log" >&2
  echo "probe_gpu: nvcc failed (see above); is CUDA 12.8 or newer installed, and is arch $arch right?" >&2
  exit 2
fi

PROBE_DRIVER=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
PROBE_COMMIT=${DYMEM_COMMIT:-$(git -C "$here" rev-parse --short HEAD 2>/dev/null)}
# Loading a kernel at its first launch would wait for kernels that wait for it.
CUDA_MODULE_LOADING=EAGER
export PROBE_DRIVER PROBE_COMMIT CUDA_MODULE_LOADING

code=0
for probe in coherence costs; do
  if [ $probe = coherence ]; then set -- "$out" "$trials"; else set -- "$out"; fi
  timeout 150 "$build/$probe" "$@" >"$build/$probe.out" 2>&1
  this=$?
  cat "$build/$probe.out"
  [ $this -gt $code ] && code=$this
done
cat "$build/coherence.out" "$build/costs.out" >"$out/probe.log"
if [ $code -gt 1 ]; then code=2; fi
exit $code
