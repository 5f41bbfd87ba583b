# The commands of every day; `make` lists them.
JOBS ?= $(shell nproc)
BIN := .venv/bin
CTEST := $(BIN)/ctest --test-dir build --output-on-failure -j $(JOBS)
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --durations 10

.PHONY: help install configure build program demo test test-sets test-all fuzz bench lint format clean
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Debian packages and .venv; does nothing the second time
	@scripts/install.sh

configure: install
	@$(BIN)/cmake -S . -B build -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING >/dev/null

build: configure ## build/hero, build/libhero.so and the tests (JOBS=n; default: all cores)
	@$(BIN)/ninja -C build -j $(JOBS)

program: configure
	@$(BIN)/ninja -C build -j $(JOBS) hero

demo: program ## corpus, baseline and HERO training, comparison report in runs/demo (DATA="path ..." for your own text)
	@scripts/demo.sh $(DATA)

test: build ## C++ tests, then Python tests; minutes
	@failed=0; $(CTEST) -LE long || failed=1; $(PYTEST) -m "not long" || failed=1; exit $$failed

test-sets: build ## all tests but the long ones, once with each instruction set that this processor has
	@scripts/test_sets.sh

test-all: build ## all tests, the long ones too, once more with each instruction set, and the fuzzers
	@failed=0; $(CTEST) || failed=1; $(PYTEST) || failed=1; scripts/test_sets.sh || failed=1; scripts/fuzz.sh || failed=1; exit $$failed

fuzz: install ## libFuzzer on the readers of model folders (SECONDS=n for each; default: 30)
	@scripts/fuzz.sh $(SECONDS)

bench: build ## every target on CPUs, measured: docs/results/cpu.md; hours, alone on the machine (QUICK=1: a trial)
	@$(BIN)/python bench/run.py $(if $(QUICK),--quick)

lint: configure ## format, include order, ruff and mypy on Python, and clang-tidy on what changed (BASE=commit; default: the last one)
	@BASE=$(BASE) scripts/lint.sh

format: install ## clang-format on all C++ files, ruff on all of Python's
	@git ls-files -z -c -o --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(BIN)/clang-format -i
	@$(BIN)/ruff check --fix --quiet && $(BIN)/ruff format --quiet

clean: ## remove the build folder
	@rm -rf build
