#!/usr/bin/env bash
# Builds the libraries that TELens uses besides CUDA and torch into one relocatable prefix:
#   cmake/portable/build.sh [--libraries] [--target aarch64] PREFIX [JOBS]
#
# The libraries are static and position-independent, and hide their symbols. They come from Debian's
# source packages, because Debian's own archives are absent, not position-independent, or depend on
# many other libraries. Wheels and machines without package registries use them.
#
# --libraries       only the libraries; otherwise also GoogleTest and the Python packages that tests
#                   compare with
# --target aarch64  cross-compiles; needs the packages in cmake/setup/debian-aarch64-packages.txt
#
# Downloads are stored in PREFIX/../portable-sources.
set -euo pipefail
libraries_only=
target=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --libraries) libraries_only=1 ;;
    --target) target=$2 && shift ;;
    *) echo "$0 $1: expected --libraries or --target aarch64" >&2 && exit 2 ;;
  esac
  shift
done
[[ $target =~ ^(aarch64)?$ ]] || { echo "$0 --target $target: expected aarch64" >&2; exit 2; }
prefix=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-$(nproc)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(mkdir -p "$prefix/../portable-sources" && cd "$prefix/../portable-sources" && pwd)
builds=$sources/build-$(basename "$prefix")
python=${PYTHON:-python3}
max_megabytes=60
# Removes this machine's folder from the file names in assertions.
relative=-ffile-prefix-map=$sources=.

cmake_options=()
tools=
if [ -n "$target" ]; then
  tools=$target-linux-gnu-
  cmake_options+=(-DCMAKE_TOOLCHAIN_FILE="$here/$target.cmake")
  export CHOST=${tools%-}
fi
if command -v ccache >/dev/null; then
  cmake_options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

# Configures apt-get to download sources from the repositories of this machine. The package lists are
# separate from the system's lists, so root is not required.
apt_options=()
prepare_apt() {
  local file own=$sources/apt
  mkdir -p "$sources/lists/partial" "$own"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    case $file in
      *.list) [ ! -e "$file" ] || sed -n 's/^deb /deb-src /p' "$file" >"$own/${file##*/}" ;;
      *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"$own/${file##*/}" ;;
    esac
  done
  apt_options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$own"
    -o "Dir::State::Lists=$sources/lists" -o APT::Sandbox::User=root)
  apt-get "${apt_options[@]}" -qq update
}
# fetch PACKAGE: downloads and unpacks the newest version. Tries older versions if the repository
# lists a version but does not contain it.
fetch() {
  local version
  while read -r version; do
    (cd "$sources" && apt-get "${apt_options[@]}" -qq --download-only source "$1=$version") || continue
    dpkg-source --no-check -x "$(ls -t "$sources/$1"_*.dsc | head -1)" "$sources/$1.partial"
    mv "$sources/$1.partial" "$sources/$1"
    return
  done < <(apt-cache "${apt_options[@]}" showsrc --only-source "$1" | sed -n 's/^Version: //p' |
    sort -urV)
  echo "apt cannot fetch the source of the Debian package $1 in any listed version" >&2
  return 1
}
# download PACKAGE: unpacks the source to $sources/PACKAGE and installs its license.
download() {
  if [ ! -d "$sources/$1" ]; then
    [ ${#apt_options[@]} -gt 0 ] || prepare_apt
    rm -rf "$sources/$1.partial" "$sources/$1"_*.dsc
    fetch "$1"
  fi
  install -D -m 644 "$sources/$1/debian/copyright" "$prefix/share/licenses/$1.txt"
}

# build PACKAGE [CMAKE OPTION...]: does nothing if the package is installed. Compiler flags hide the
# symbols, because CMake ignores its visibility settings for static libraries of projects that
# require an old CMake (CMP0063).
build() {
  local package=$1 stamp=$prefix/.built/$1
  shift
  [ -e "$stamp" ] && return
  download "$package"
  echo "== $package"
  mkdir -p "$builds/$package"
  # Runs in the build folder: HDF5's checks read files that they write to the current folder.
  cd "$builds/$package"
  cmake -S "$sources/$package" -B . -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_PREFIX_PATH="$prefix" -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_C_FLAGS="-fvisibility=hidden $relative" \
    -DCMAKE_CXX_FLAGS="-fvisibility=hidden -fvisibility-inlines-hidden $relative ${cxx_flags:-}" \
    -DBUILD_TESTING=OFF "${cmake_options[@]}" "$@" >"$builds/$package.log"
  cmake --build . --parallel "$jobs" >>"$builds/$package.log"
  cmake --install . --prefix "$prefix" >>"$builds/$package.log"
  cd "$here"
  mkdir -p "$prefix/.built" && touch "$stamp"
}

# zlib's CMake script requires Windows files that Debian's source lacks, so this uses its configure script.
build_zlib() {
  [ -e "$prefix/.built/zlib" ] && return
  download zlib
  echo "== zlib"
  mkdir -p "$builds"
  rm -rf "$builds/zlib"
  cp -a "$sources/zlib" "$builds/zlib"
  (cd "$builds/zlib" && CFLAGS="-O2 -fPIC -fvisibility=hidden $relative" ./configure --static \
    --prefix="$prefix" && make -s -j "$jobs" install) >"$builds/zlib.log"
  mkdir -p "$prefix/.built" && touch "$prefix/.built/zlib"
}

build_zlib
build fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
# yaml-cpp's CMake script requests visible symbols.
cxx_flags=-UYAML_CPP_USE_VISIBILITY build yaml-cpp -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF
build pcre2 -DPCRE2_BUILD_TESTS=OFF -DPCRE2_BUILD_PCRE2GREP=OFF
build cli11 -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
build nlohmann-json3 -DJSON_BuildTests=OFF
# Installs only the header. The server accepts only local connections, so it does not need TLS or
# compression.
build cpp-httplib -DHTTPLIB_COMPILE=OFF -DHTTPLIB_USE_OPENSSL_IF_AVAILABLE=OFF \
  -DHTTPLIB_USE_ZLIB_IF_AVAILABLE=OFF -DHTTPLIB_USE_BROTLI_IF_AVAILABLE=OFF
# The command's pages contain this script.
install -D -m 644 -t "$prefix/share/javascript/chart.js" /usr/share/javascript/chart.js/chart.min.js
install -D -m 644 /usr/share/doc/libjs-chart.js/copyright "$prefix/share/licenses/chart.js.txt"
# Excludes the sorting algorithms, which take minutes to compile and are not used.
build highway -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_CONTRIB=OFF
# Highway's math functions are headers, which a build without contrib does not install.
download highway
install -D -m 644 -t "$prefix/include/hwy/contrib/math" "$sources"/highway/hwy/contrib/math/*-inl.h
[ -n "$libraries_only" ] || build googletest
# Builds only the serial C library. Its code contains the configured prefix, so the prefix is neutral.
build hdf5 -DCMAKE_INSTALL_PREFIX=/usr -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_BUILD_HL_LIB=OFF -DHDF5_BUILD_FORTRAN=OFF \
  -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=ON \
  -DHDF5_EXTERNALLY_CONFIGURED=OFF

# A static program contains parts of glibc and of the compiler's libraries.
install -D -m 644 /usr/share/doc/libc6/copyright "$prefix/share/licenses/glibc.txt"
install -D -m 644 /usr/share/doc/libgcc-s1/copyright "$prefix/share/licenses/gcc.txt"

# Wheels for the Python of the machines with GPUs.
wheels=$prefix/wheels
if [ -z "$libraries_only" ] && [ ! -e "$prefix/.built/wheels" ]; then
  mkdir -p "$wheels"
  while read -r requirement; do
    [ -n "$requirement" ] || continue
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
      --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
      --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$wheels" "$requirement"
  done < <(sed 's/#.*//' "$here/wheels.txt")
  touch "$prefix/.built/wheels"
fi

# libtelens.so links these archives. They must be position-independent, and must hide their symbols,
# because h5py loads another HDF5 into the same process. To check both, all archives are linked into
# one shared library.
archives=$(ls "$prefix"/lib/*.a | grep -Ev '/lib(gtest|gmock)')
everything=$builds/everything.so
"${CXX:-${tools}g++}" -shared -o "$everything" -Wl,-z,text -Wl,--whole-archive $archives \
  -Wl,--no-whole-archive -ldl -lpthread
# Excludes weak symbols: they are templates of the standard library.
visible=$("${tools}nm" -D --defined-only "$everything" | awk '$2 ~ /^[TDBRi]$/ {print $3}')
if [ -n "$visible" ]; then
  echo "libraries in $prefix/lib export symbols that must be hidden:" $(head -5 <<<"$visible") >&2
  exit 1
fi

# Removes files that are not used, among them HDF5's settings, which contain the prefix.
rm -rf "$prefix"/share/{doc,man} "$prefix"/bin "$prefix"/share/cmake/hdf5* \
  "$prefix"/lib/{libhdf5.settings,pkgconfig/hdf5*.pc}
# The prefix is relocatable: text files must not contain its path.
find "$prefix" -name '*.pc' -exec sed -i "s|$prefix|\${pcfiledir}/../..|g" {} +
if grep -rIlF --exclude-dir=wheels "$prefix" "$prefix"; then
  echo "these files contain the path $prefix, which does not exist on other machines" >&2
  exit 1
fi

megabytes=$(du -sm "$prefix" | cut -f1)
echo "$prefix: $megabytes MB"
if [ "$megabytes" -gt "$max_megabytes" ]; then
  echo "larger than $max_megabytes MB; remove a library or a wheel from cmake/portable" >&2
  exit 1
fi
