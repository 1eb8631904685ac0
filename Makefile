# SPDX-License-Identifier: Apache-2.0
# The few commands that a newcomer needs; CMake does the work. `make demo` and `make test` set everything up themselves:
# Debian packages (when root), the model (into the cache folder), the build.
BUILD ?= build
JOBS ?= $(shell nproc)
WERROR ?= OFF
PREFIX ?= /usr/local
DEMO_ARGS ?=
BENCH_ARGS ?= --peer llama.cpp

CMAKE = cmake -G Ninja -DKN_MODEL="$$(tools/fetch-model --path)" -DKN_MODEL_GEMMA="$$(f=$$(tools/fetch-model --gemma --path); [ ! -f "$$f" ] || echo "$$f")"
CTEST = ctest --output-on-failure -j2

.PHONY: setup-tests test-clients help demo profile test test-long test-release test-asan test-tsan build build-asan build-clang setup model model-gemma check bench bench-peers install clean

help:
	@echo 'make demo         set up, build, and show a prefix that is fetched instead of recomputed'
	@echo 'make test         set up, build, run all tests, then unit, kernel, fuzz and fault tests under ASan and UBSan'
	@echo 'make test-long    10,000 random films through the HEVC encoder and foreign decoders (a quarter of an hour), 64 clients for two minutes'
	@echo 'make test-tsan    the threaded parts under TSan: queues, scheduler, fetches, the server under stress'
	@echo 'make build        $(BUILD)/kinema, libkinema.so; libkinema_x265.so where libx265 is installed'
	@echo 'make model        download the demo model; its path is the last line'
	@echo 'make profile      learn how the demo model can be coded small (some minutes, once); its path is the last line'
	@echo 'make model-gemma  download Gemma 3 270M too (optional, under the Gemma Terms of Use); its tests run when it is there'
	@echo 'make check        layers, symbols, headers, banned functions, ...; clang with warnings as errors'
	@echo 'make bench-peers  build llama.cpp and its server for the benchmarks (minutes, once)'
	@echo 'make bench        prefill and decode speed beside llama.cpp'
	@echo 'make install      into $(PREFIX) (PREFIX=..., DESTDIR=...)'
	@echo 'make clean        remove the build folders; the cache folder stays'

setup:
	@tools/setup

# Clients of the server's tests, in environments under the cache folder: OpenAI's Python client and a parser of metrics; lm-evaluation-harness.
test-clients: setup
	@tools/test-venv >/dev/null
	@tools/test-venv lm-eval >/dev/null

# Also libx265, which is GPL and which only comparing needs.
setup-tests:
	@tools/setup --tests

model: setup
	@tools/fetch-model

model-gemma: setup
	@tools/fetch-model --gemma

build: setup
	@$(CMAKE) -S . -B $(BUILD) -DKN_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

# Learned once from installed texts, some minutes; kept in the cache folder.
profile: build model
	@tools/build-profile $(BUILD)/kinema "$$(tools/fetch-model --path)"

demo: build model profile
	@$(BUILD)/kinema demo -m "$$(tools/fetch-model --path)" $(DEMO_ARGS)

test: test-release test-asan

test-release: setup-tests test-clients build model
	@cd $(BUILD) && $(CTEST)

# KN_LONG_COUNT=20000 KN_LONG_FIRST=50000 make test-long takes other cases.
test-long: build test-clients model
	@cd $(BUILD) && ctest --output-on-failure -C long -L '^long$$'

# Debug is -O1 here: fast enough for the suite under sanitizers.
build-asan: setup-tests
	@$(CMAKE) -S . -B $(BUILD)-asan -DCMAKE_BUILD_TYPE=Debug -DKN_SANITIZE=address,undefined >/dev/null
	@cmake --build $(BUILD)-asan -j $(JOBS)

test-asan: build-asan test-clients model
	@cd $(BUILD)-asan && $(CTEST) -L '^(unit|kernel|fuzz|fault|stress)$$'

# Only what these tests need is built.
TSAN_TESTS = threads_test ring_test call_test loop_test sched_test fetch_test publish_test store_watch_test engine_test \
             store_threads_test hevc_avcodec_test device_cpu_test device_cpu_queue_test pool_test

test-tsan: setup test-clients
	@$(CMAKE) -S . -B $(BUILD)-tsan -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DKN_SANITIZE=thread >/dev/null
	@cmake --build $(BUILD)-tsan -j $(JOBS) --target kinema tiny_gguf $(TSAN_TESTS)
	@cd $(BUILD)-tsan && $(CTEST) -R "/($$(echo $(TSAN_TESTS) serve_stress_test | tr ' ' '|'))$$"

build-clang: setup
	@$(CMAKE) -S . -B $(BUILD)-clang -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DKN_WERROR=ON >/dev/null
	@cmake --build $(BUILD)-clang -j $(JOBS)

check: build build-clang
	@tools/check --build $(BUILD)

bench-peers: setup model
	@tools/build-peers

bench: build model
	@$(BUILD)/kinema bench engine -m "$$(tools/fetch-model --path)" $(BENCH_ARGS)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-clang
