#!/usr/bin/env bash
# Builds what TELens needs besides CUDA and torch as one prefix that can be carried to a machine
# without package registries: cmake/portable/build.sh PREFIX [JOBS]
#
# Static, position-independent libraries with hidden symbols, from Debian's source packages (Debian's
# own archives are not position-independent, or absent), and the Python wheels of the oracles that
# tests compare with. Downloads go to PREFIX/../portable-sources and are kept.
set -euo pipefail
prefix=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-$(nproc)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(mkdir -p "$prefix/../portable-sources" && cd "$prefix/../portable-sources" && pwd)
python=${PYTHON:-python3}
max_megabytes=60

# download PACKAGE: Debian's source of a package, unpacked to $sources/PACKAGE. Sources come from
# where the machine takes its packages, through a configuration of its own.
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
# The newest version that can be had: a mirror may list a security update and not hold it.
fetch() {
  local version
  while read -r version; do
    (cd "$sources" && apt-get "${apt_options[@]}" -qq --download-only source "$1=$version") || continue
    dpkg-source --no-check -x "$(ls -t "$sources/$1"_*.dsc | head -1)" "$sources/$1.partial"
    mv "$sources/$1.partial" "$sources/$1"
    return
  done < <(apt-cache "${apt_options[@]}" showsrc --only-source "$1" | sed -n 's/^Version: //p' |
    sort -urV)
  echo "no source of the Debian package $1: none of the versions that apt lists could be fetched" >&2
  return 1
}
download() {
  [ -d "$sources/$1" ] && return
  [ ${#apt_options[@]} -gt 0 ] || prepare_apt
  rm -rf "$sources/$1.partial" "$sources/$1"_*.dsc
  fetch "$1"
}

# build PACKAGE [CMAKE OPTION...]: unless it is installed already. Hidden by plain flags: projects that
# ask for an old CMake ignore its presets of visibility in static libraries (CMP0063).
build() {
  local package=$1 stamp=$prefix/.built/$1
  shift
  [ -e "$stamp" ] && return
  download "$package"
  echo "== $package"
  mkdir -p "$sources/build-$package"
  # From the build folder: HDF5's checks look there for files that they write where they run.
  cd "$sources/build-$package"
  cmake -S "$sources/$package" -B . -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_PREFIX_PATH="$prefix" -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_C_FLAGS=-fvisibility=hidden \
    -DCMAKE_CXX_FLAGS="-fvisibility=hidden -fvisibility-inlines-hidden ${cxx_flags:-}" \
    -DBUILD_TESTING=OFF "$@" >"$sources/$package.log"
  cmake --build . --parallel "$jobs" --target install >>"$sources/$package.log"
  cd "$here"
  mkdir -p "$prefix/.built" && touch "$stamp"
}

# Debian's zlib lacks the Windows files that its CMake script names.
if [ ! -e "$prefix/.built/zlib" ]; then
  download zlib
  echo "== zlib"
  (cd "$sources/zlib" && CFLAGS="-O2 -fPIC -fvisibility=hidden" ./configure --static \
    --prefix="$prefix" && make -s -j "$jobs" install) >"$sources/zlib.log"
  mkdir -p "$prefix/.built" && touch "$prefix/.built/zlib"
fi
build fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
# Whose own CMake script asks for visible symbols.
cxx_flags=-UYAML_CPP_USE_VISIBILITY build yaml-cpp -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF
build pcre2 -DPCRE2_BUILD_TESTS=OFF -DPCRE2_BUILD_PCRE2GREP=OFF
build cli11 -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
build nlohmann-json3 -DJSON_BuildTests=OFF
# As a header. What it serves goes to the same machine: no TLS, nothing compressed.
build cpp-httplib -DHTTPLIB_COMPILE=OFF -DHTTPLIB_USE_OPENSSL_IF_AVAILABLE=OFF \
  -DHTTPLIB_USE_ZLIB_IF_AVAILABLE=OFF -DHTTPLIB_USE_BROTLI_IF_AVAILABLE=OFF
# What the command's pages contain, which is not compiled.
install -D -m 644 -t "$prefix/share/javascript/chart.js" /usr/share/javascript/chart.js/chart.min.js
# Not its sorting algorithms, which take minutes to compile and which nobody here calls.
build highway -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_CONTRIB=OFF
# Its elementary functions are headers, which belong to no library.
download highway
install -D -m 644 -t "$prefix/include/hwy/contrib/math" "$sources"/highway/hwy/contrib/math/*-inl.h
build googletest
# The C library alone: no command-line tools, no Fortran, no parallel HDF5.
build hdf5 -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_BUILD_HL_LIB=OFF -DHDF5_BUILD_FORTRAN=OFF \
  -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=ON \
  -DHDF5_EXTERNALLY_CONFIGURED=OFF

# Wheels for the Python of the machines with GPUs.
wheels=$prefix/wheels
if [ ! -e "$prefix/.built/wheels" ]; then
  mkdir -p "$wheels"
  while read -r requirement; do
    [ -n "$requirement" ] || continue
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
      --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
      --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$wheels" "$requirement"
  done < <(sed 's/#.*//' "$here/wheels.txt")
  touch "$prefix/.built/wheels"
fi

# What goes into libtelens.so must be position-independent, and must not offer its symbols to others:
# h5py brings another HDF5 into the same process. Tried by linking all of it into a shared library.
archives=$(ls "$prefix"/lib/*.a | grep -Ev '/lib(gtest|gmock)')
"${CXX:-g++}" -shared -o "$sources/everything.so" -Wl,-z,text -Wl,--whole-archive $archives \
  -Wl,--no-whole-archive -ldl -lpthread
# Weak symbols are templates of the standard library, which every program has.
visible=$(nm -D --defined-only "$sources/everything.so" | awk '$2 ~ /^[TDBRi]$/ {print $3}')
if [ -n "$visible" ]; then
  echo "symbols that should be hidden, in $prefix/lib:" $(head -5 <<<"$visible") >&2
  exit 1
fi

# HDF5's own description of itself names the folder, and nobody here reads it.
rm -rf "$prefix"/share/{doc,man} "$prefix"/bin "$prefix"/share/cmake/hdf5* "$prefix"/lib/libhdf5.settings
# Nothing may name the folder: what is carried is found from where it lies.
find "$prefix" -name '*.pc' -exec sed -i "s|$prefix|\${pcfiledir}/../..|g" {} +
if grep -rIlF --exclude-dir=wheels "$prefix" "$prefix"; then
  echo "these files name $prefix and would not be found elsewhere" >&2
  exit 1
fi

# Nothing larger than can be carried.
megabytes=$(du -sm "$prefix" | cut -f1)
echo "$prefix: $megabytes MB"
if [ "$megabytes" -gt "$max_megabytes" ]; then
  echo "larger than $max_megabytes MB: leave something out of cmake/portable" >&2
  exit 1
fi
