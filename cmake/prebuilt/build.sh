#!/usr/bin/env bash
# Builds what `gpu-check --prebuilt` takes to a machine with a GPU, libtelens.so and the programs:
# cmake/prebuilt/build.sh PREFIX DEPENDENCIES [JOBS] [TARGETS]
#
# DEPENDENCIES is what `make portable-dependencies` built: its libraries are linked in, so that
# nothing but torch and CUDA is needed there. TARGETS as TELENS_CUDA_TARGETS, 90a (Hopper) by default.
# torch here and there must be of one version; PREFIX is then good for any Python. What it was built
# of lies beside the library: gpu-check refuses what does not fit. PREFIX appears, or is replaced,
# when all of it is there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ -d "$2/lib" ] || { echo "no libraries in $2: run make portable-dependencies first" >&2; exit 1; }
dependencies=$(cd "$2" && pwd)
jobs=${3:-$(nproc)}
targets=${4:-90a}
build=$root/build-prebuilt
describe=(env "PYTHONPATH=$root/benchmarks" "${PYTHON:-python3}" -m gpu_checks.prebuilt)

# Before anything is compiled: what changes meanwhile makes the library stale.
sources=$("${describe[@]}" digest)

PKG_CONFIG_PATH=$dependencies/lib/pkgconfig cmake -S "$root" -B "$build" -G Ninja \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$dependencies" -DTELENS_CUDA=ON \
  -DTELENS_CUDA_TARGETS="$targets" -DTELENS_PYTHON=OFF -DTELENS_BENCHMARKS=OFF \
  -DTELENS_CUDA_LINES=ON  # so that a sanitizer names the line
cmake --build "$build" --parallel "$jobs" --target lib/libtelens.so gpt telens_command

mkdir -p "$(dirname "$1")"
prefix=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
partial=$prefix.partial
rm -rf "$partial"
mkdir -p "$partial"/{lib,bin}
cp "$build/lib/libtelens.so" "$partial/lib"
cp "$build"/bin/{gpt,telens} "$partial/bin"
strip --strip-unneeded "$partial"/{lib,bin}/*

# What is not torch's, CUDA's or the C library's may be missing there.
known='^(libtelens|libtorch|libc10|libcud|libcublas|libgomp|libstdc|libgcc_s|libm|libc|libdl|libpthread|ld-linux)'
needed=$(readelf -d "$partial"/{lib,bin}/* | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u)
if strangers=$(grep -Ev "$known" <<<"$needed"); then
  echo "needs libraries that another machine may lack:" $strangers >&2
  exit 1
fi

torch=$(sed -n 's/^LIBTORCH_ROOT:PATH=//p' "$build/CMakeCache.txt")
"${describe[@]}" describe "$partial" --sources "$sources" --targets "$targets" --torch "$torch"
rm -rf "$prefix"
mv "$partial" "$prefix"
du -sm "$prefix"
