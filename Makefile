# TELens. `make demo` and `make test` each work by themselves on a fresh Debian or Ubuntu machine.
#
#   make demo       train a small language model in FP8 and show what was seen inside its GEMMs
#   make test       one build, and the C++, Python, command and structure tests
#   make test-more  sanitizers, Paddle, packages, benchmarks
#   make help       the other targets
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# A compilation with LibTorch takes up to 2 GB.
CORES  := $(shell nproc)
MEMORY := $(shell awk '/MemAvailable/ {print int($$2 / 2000000) + 1}' /proc/meminfo)
JOBS   ?= $(shell echo $$(( $(CORES) < $(MEMORY) ? $(CORES) : $(MEMORY) )))
PREFIX ?= $(CURDIR)/dist/telens
# CUDA=ON or CUDA=OFF: build with or without CUDA kernels (TELENS_CUDA). If unset, build/ keeps its
# setting. CUDA_TARGETS: with CUDA, the GPU targets to build for (TELENS_CUDA_TARGETS); unset: all.
CUDA   ?=
CUDA_TARGETS ?=
PYTHON := $(CURDIR)/.venv/bin/python
# The Python of a GPU machine, with its own torch.
GPU_PYTHON ?= python3
GPU_OUT    ?= build-gpu/results
GPU_COPIES ?=
CPP_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

# `make demo`: configuration, number of steps, folder of the run.
DEMO_CONFIG ?= configs/log_all_statistics.yaml
DEMO_STEPS  ?= 300
DEMO_RUN    := build/demo
# The final loss must be this many nats below the bigram entropy of the text.
DEMO_BELOW  ?= 0.1
FUZZ_SECONDS ?= 600
FUZZ_FILES   ?= 20000
FUZZ_DUMPS   ?= 5000
FUZZ_STATES  ?= 2000

DOCS_VENV := build/docs-venv

.PHONY: docs help setup setup-debian setup-build command-first configure build demo test test-more \
        test-structure test-cpp test-python test-samples test-long test-package test-cuda-build \
        test-clients test-trackers test-architectures test-tables test-paddle wheels \
        wheel-libraries wheel-aarch64 test-wheels bench bench-quick benchmarks portable-dependencies \
        gpu-prebuilt gpu-check gpu-rehearsal faults fuzz fuzz-files memcheck format lint tidy asan \
        tsan tsan-quick install clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup:  ## install what is missing: Debian packages through apt, Python packages into .venv
	@cmake/setup/setup.sh

setup-debian:
	@cmake/setup/setup.sh debian

setup-build: setup-debian
	@cmake/setup/setup.sh build

# Compiles the command, which needs no LibTorch, on a new machine while uv downloads torch. The
# objects remain valid when build/ is configured again with LibTorch, which the file without-torch
# requests.
# A failure here is only a warning: the build compiles the command again and reports the error.
command-first: setup-debian
	@[ -f build/build.ninja -o -f .venv/telens-python-packages.txt ] || { \
	  mkdir -p build/setup; touch build/setup/without-torch; \
	  cmake/setup/progress.sh 'compiling what needs no LibTorch' build/setup/command.log \
	    sh -c 'cmake --preset release -DTELENS_TORCH=OFF -DTELENS_PYTHON=OFF && \
	      nice cmake --build build --parallel $(JOBS) --target telens_command' || \
	    echo 'warning: that failed (build/setup/command.log); it is built with the rest' >&2; }

CUDA_OPTIONS = $(if $(CUDA),-DTELENS_CUDA=$(CUDA) \
  $(if $(CUDA_TARGETS),'-DTELENS_CUDA_TARGETS=$(CUDA_TARGETS)',-UTELENS_CUDA_TARGETS))
configure:
	@$(MAKE) --no-print-directory --jobs 2 setup-build command-first
	@[ -f build/build.ninja -a ! -f build/setup/without-torch -a -z "$(CUDA)" ] || { \
	  cmake --preset release -DTELENS_TORCH=ON -DTELENS_PYTHON=ON $(CUDA_OPTIONS) && \
	  rm -f build/setup/without-torch; }

build: configure  ## compile all but benchmarks into build/ (CUDA=ON: for GPUs too)
	@cmake --build build --parallel $(JOBS)

demo: configure  ## train a small language model in FP8, watch its GEMMs, show what was seen
	@cmake --build build --parallel $(JOBS) --target gpt telens_command
	@rm -rf $(DEMO_RUN)
	build/bin/gpt --config $(DEMO_CONFIG) --recipe delayed --steps $(DEMO_STEPS) \
	  --log-dir $(DEMO_RUN) --below-bigrams $(DEMO_BELOW)
	build/bin/telens info $(DEMO_RUN)
	build/bin/telens stats $(DEMO_RUN) --top 20
	build/bin/telens plot $(DEMO_RUN) --tensor gradient --stat underflows%
	build/bin/telens plot $(DEMO_RUN) --tensor gradient --stat underflows% \
	  --out $(DEMO_RUN)/underflows.html
	@echo
	@echo 'next: build/bin/telens diagnose $(DEMO_RUN)'
	@echo '      build/bin/telens report $(DEMO_RUN) --out $(DEMO_RUN)/report.html'
	@echo '      docs/getting_started.md: watch a model of your own'

docs:  ## build the site of docs/ into build/docs; a broken link fails
	@[ -x $(DOCS_VENV)/bin/mkdocs ] || { python3 -m venv $(DOCS_VENV) && \
	  $(DOCS_VENV)/bin/pip install --quiet mkdocs==1.6.1 mkdocs-material==9.8.2; }
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo 'wrote build/docs/index.html'

test: setup  ## one build, C++, Python, command and structure tests, short samples
	@tests/run.sh test $(JOBS)

test-more: setup  ## the other checks of CI: sanitizers, demo, Paddle, packages, benchmarks
	@tests/run.sh test-more $(JOBS)

test-structure: setup  ## include arrows, formatting, machine paths
	@$(PYTHON) -m pytest -q tests/structure

test-cpp: setup build  ## the C++ tests and those of the command
	@ctest --preset release --parallel $(JOBS)

# Runs one test file more than there are processors, because many tests wait for a subprocess.
# GOMP_SPINCOUNT=0: waiting OpenMP threads yield the processor.
PYTEST = GOMP_SPINCOUNT=0 $(PYTHON) -m pytest -q --durations=5 -n $$(( $(JOBS) + 1 )) \
  --dist loadfile
test-python: setup build  ## the Python tests, except long ones
	@$(PYTEST) -m "not long" tests/python

test-samples: setup build  ## the tests of the samples, except long ones
	@$(PYTEST) -m "not long" tests/samples

test-long: setup build  ## the Python tests and samples that take half a minute or more each
	@$(PYTEST) -m long tests/python tests/samples

CLIENT_TESTS ?= tests/python/test_run_as_te.py tests/python/test_model_clients.py \
  tests/python/test_megatron.py tests/python/test_safe_conversion.py \
  tests/python/test_attach_frameworks.py tests/python/test_attach_torchao.py \
  tests/python/test_attach_bitsandbytes.py

# Only these tests import from build/clients. They use torch and the other packages of .venv.
test-clients: setup build  ## install Lightning, Megatron-Core in build/clients, train by their code
	@$(PYTHON) -m pip install -q --no-deps --upgrade --target build/clients \
	  -r tests/python/clients/requirements.txt
	@$(PYTHON) -m pip install -q --no-deps --upgrade --target build/clients/megatron-core-0.19.2 \
	  --python-version 3.12 --ignore-requires-python --only-binary=:all: megatron-core==0.19.2
	@$(PYTHON) -m pip install -q --no-deps --upgrade --target build/clients/trl \
	  -r tests/python/clients/trl.txt
	@TELENS_CLIENTS=required $(PYTHON) -m pytest -q $(CLIENT_TESTS)

# In a folder of their own, because their dependencies replace packages of .venv.
test-trackers: setup build  ## install wandb, trackio, MLflow in build/trackers (350 MB), record with them
	@$(PYTHON) -m pip install -q --upgrade --target build/trackers -r tests/python/trackers/requirements.txt
	@$(PYTHON) -m pytest -q tests/python/test_attach_trackers.py

# Resumable: classes in build/architectures.jsonl are skipped.
test-architectures: setup build  ## telens.watch on a tiny model of each file of transformers
	@OMP_NUM_THREADS=1 PYTHONPATH=build/python $(PYTHON) tests/architectures/campaign.py \
	  build/architectures.jsonl --table tests/architectures/results.md

# In a folder of their own because pandas stores strings differently if pyarrow is installed.
test-tables: setup build  ## install pyarrow, DuckDB in build/tables (80 MB), test what reads runs
	@$(PYTHON) -m pip install -q --no-deps --upgrade --target build/tables \
	  -r tests/tables/requirements.txt
	@PYTHONPATH=build/tables $(PYTHON) -m pytest -q tests/tables tests/python/test_run_questions.py

test-package: setup build wheel-libraries  ## find_package(telens), pip install, the wheels
	@$(PYTHON) -m pytest -q tests/package

# Static libraries for the wheels, without what only tests use.
wheel-libraries: setup-build
	@cmake/setup/setup.sh wheels
	@cmake/portable/build.sh --libraries dist/portable $(JOBS)

wheels: wheel-libraries  ## build telens-cli, telens and telens-core into dist/wheels
	@cmake --preset wheels
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PYTHON) packaging/build_wheels.py build-wheels

# Installs Debian's cross compiler and QEMU, 300 MB.
wheel-aarch64: wheel-libraries  ## cross-compile telens-cli for aarch64 into dist/wheels, start it in QEMU
	@cmake/setup/setup.sh aarch64
	@cmake/portable/build.sh --libraries --target aarch64 dist/portable-aarch64 $(JOBS)
	@PKG_CONFIG_LIBDIR=dist/portable-aarch64/lib/pkgconfig cmake --preset aarch64
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PYTHON) packaging/build_wheels.py build-aarch64 telens-cli \
	  --architecture aarch64 --libraries dist/portable-aarch64
	@qemu-aarch64-static build-aarch64/wheel/telens --version

# Versions of torch to test telens and telens-core with, such as 2.11; if empty, only telens-cli is tested.
TORCH ?=
test-wheels: setup build wheels  ## build the wheels, test them in environments (TORCH="versions")
	@$(PYTHON) packaging/smoke_matrix.py dist/wheels --torch $(TORCH)

test-paddle: setup build  ## telens.paddle's tests in their own environment (PaddlePaddle: 850 MB)
	@cmake/setup/paddle.sh
	@OMP_NUM_THREADS=1 build-paddle/venv/bin/python -m pytest -q --durations=5 -n $(JOBS) \
	  --dist loadfile tests/paddle

asan: setup  ## the C++ tests that need no LibTorch, under AddressSanitizer and UBSan
	@[ -f build-asan/build.ninja ] || cmake --preset asan
	@cmake --build --preset asan --parallel $(JOBS)
	@ctest --preset asan --parallel $(JOBS)

# Only tests without LibTorch: LibTorch is not instrumented.
TSAN_TESTS ?= threads_quick threads_slow
tsan: setup  ## the C++ tests of threads of our own that need no LibTorch, under ThreadSanitizer
	@[ -f build-tsan/build.ninja ] || cmake --preset tsan
	@cmake --build --preset tsan --parallel $(JOBS) --target $(TSAN_TESTS)
	@ctest --preset tsan --parallel $(JOBS) \
		--label-regex '^($(subst $(eval) ,|,$(strip $(TSAN_TESTS))))$$'

tsan-quick:  ## those of them that take seconds, as CI does
	@$(MAKE) --no-print-directory tsan TSAN_TESTS=threads_quick

MEMCHECK ?=
memcheck: setup build  ## the C++ tests with LibTorch under valgrind (MEMCHECK="names")
	@tests/memcheck.sh $(MEMCHECK)

benchmarks: setup build
	@cmake --build build --parallel $(JOBS) --target telens_benchmarks

bench: benchmarks  ## every benchmark against its target; writes benchmarks/results/<machine>.json
	@$(PYTHON) benchmarks/run.py

bench-quick: benchmarks  ## every benchmark, briefly, judging nothing
	@$(PYTHON) benchmarks/run.py --quick

# Needs no GPU. The C++ tests of the CPU must also pass in a build with CUDA kernels. Uses build/,
# so only the CUDA sources are compiled; `make build CUDA=OFF` restores the build.
test-cuda-build:  ## compile and link the kernels for GPUs into build/, run the C++ tests there
	@$(MAKE) --no-print-directory setup build CUDA=ON
	@TELENS_CUDA=ON $(PYTHON) -m pytest -q tests/python/test_cuda_build.py
	@printf '%s\n' build/tests/*_test | xargs -P $(JOBS) -I{} sh -c \
		'{} --gtest_brief=1 >{}.log 2>&1 || \
		 { cat {}.log; echo "failed in a build with CUDA: {}"; exit 1; }'

portable-dependencies:  ## build into dist/portable what a machine without package registries lacks
	@PYTHON=$(PYTHON) cmake/portable/build.sh dist/portable $(JOBS)

gpu-prebuilt: portable-dependencies  ## build into dist/prebuilt what gpu-check won't compile
	@PYTHON=$(PYTHON) cmake/prebuilt/build.sh dist/prebuilt dist/portable $(JOBS)

GPU_CHECK = $(GPU_PYTHON) benchmarks/gpu_check.py --out $(GPU_OUT) --dependencies dist/portable \
  --prebuilt dist/prebuilt $(GPU_COPIES:%=--copies %)
gpu-check:  ## on a machine with a GPU: build, CUDA tests, benchmarks, sanitizers; JSON in GPU_OUT
	@$(GPU_CHECK)

gpu-rehearsal:  ## what each ten minutes of gpu-check would do, and how much they carry; no GPU
	@$(GPU_CHECK) --rehearse

FAULT_SEEDS ?= 101 102 103
faults: setup build  ## plant faults in trainings, count which `telens diagnose` finds (FAULT_SEEDS)
	@PYTHONPATH=build/python OMP_NUM_THREADS=1 $(PYTHON) samples/faults/campaign.py build/faults \
	  --seeds $(FAULT_SEEDS)
	@PYTHONPATH=build/python $(PYTHON) samples/faults/judge.py build/faults --verbose

fuzz: setup  ## made-up configs and runs for their readers (FUZZ_SECONDS each; Clang), fuzz-files
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(JOBS)
	@$(MAKE) --no-print-directory fuzz-files

fuzz-files: setup build  ## read FUZZ_FILES damaged run files, FUZZ_DUMPS dumps, FUZZ_STATES states
	@[ -f build-campaign/build.ninja ] || cmake --preset campaign
	@cmake --build build-campaign --parallel $(JOBS) --target all_commands write_run write_histograms
	@nice -n 10 $(PYTHON) tests/fuzz/campaign.py --build build-campaign --python build/python \
	  --files $(FUZZ_FILES)
	@OMP_NUM_THREADS=1 PYTHONPATH=build/python nice -n 10 $(PYTHON) tests/fuzz/dump_campaign.py \
	  --dumps $(FUZZ_DUMPS) --states $(FUZZ_STATES) --progress build-fuzz-dumps.json

format: setup  ## clang-format and ruff over the whole tree
	@clang-format -i $(CPP_FILES)
	@.venv/bin/ruff format -q .
	@.venv/bin/ruff check -q --fix .

TIDY_SINCE ?=
tidy: setup  ## clang-tidy over C++ files that differ from origin's main branch, or TIDY_SINCE
	@tests/structure/clang_tidy_changed.sh $(TIDY_SINCE)

lint: tidy  ## the same, and ruff over all
	@.venv/bin/ruff check .

install: build  ## install the library, its headers and the command into PREFIX
	@cmake --install build --prefix $(PREFIX)

clean:  ## remove what was built, keep .venv
	rm -rf build build-* dist
