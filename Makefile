# Development commands; `make` lists them.
JOBS ?= $(shell nproc)
BIN := .venv/bin
CTEST := $(BIN)/ctest --test-dir build --output-on-failure -j $(JOBS)
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --durations 10

.PHONY: help install configure build program demo test test-sets test-track test-all fuzz faults sanitize peers bench lint format clean
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## install Debian packages and .venv; skips what is already installed
	@scripts/install.sh

configure: install
	@$(BIN)/cmake -S . -B build -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING \
	  -DHERO_WERROR=$(if $(WERROR),ON,OFF) >/dev/null

build: configure ## build hero, libhero.so and the tests in build/ (JOBS=n; default: all cores)
	@$(BIN)/ninja -C build -j $(JOBS)

program: configure
	@$(BIN)/ninja -C build -j $(JOBS) hero

demo: program ## train and compare a baseline and a HERO model in runs/demo (DATA="path ..." for your own text)
	@scripts/demo.sh $(DATA)

test: build ## run C++ and Python tests except the long ones; takes minutes
	@failed=0; $(CTEST) -LE long || failed=1; $(PYTEST) -m "not long" || failed=1; exit $$failed

test-sets: build ## run the same tests once per instruction set of this CPU
	@scripts/test_sets.sh

test-track: install ## run the tests of hero_moe.track against wandb, MLflow and trackio, installed in .venv-track
	@scripts/test_track.sh

test-all: build ## run all tests including the long ones, on slower instruction sets too, test-track, the fuzzers and a few faults
	@failed=0; $(CTEST) || failed=1; $(PYTEST) || failed=1; scripts/test_sets.sh --without-best || failed=1; scripts/test_track.sh || failed=1; scripts/fuzz.sh || failed=1; scripts/faults.sh --quick || failed=1; exit $$failed

fuzz: install ## fuzz all parsers of files and requests (SECONDS=n each, default: 30; TARGETS="a b")
	@scripts/fuzz.sh $(or $(SECONDS),30) $(TARGETS)

faults: build ## kill, cut off and fill the disk of training runs, resume and compare them; about an hour
	@scripts/faults.sh

sanitize: install ## build with sanitizers in build/address and build/thread and run the tests; hours
	@failed=0; for kind in address thread; do scripts/sanitize.sh $$kind || failed=1; done; exit $$failed

peers: install ## install vLLM, llama.cpp and torchtitan in .venv-*, for the comparisons in make bench; 7 GB
	@scripts/install_peers.sh

bench: configure ## run all CPU benchmarks, write docs/results/cpu.md; hours on an idle machine (QUICK=1: the essential ones, 20 minutes)
	@$(BIN)/ninja -C build -j $(JOBS) hero bench/all
	@$(BIN)/python bench/run.py $(if $(QUICK),--quick)

lint: configure ## check formatting and includes, run ruff, mypy, clang-tidy on changed files (BASE=commit; default: HEAD)
	@BASE=$(BASE) scripts/lint.sh

format: install ## format C++ with clang-format and Python with ruff
	@git ls-files -z -c -o --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(BIN)/clang-format -i
	@$(BIN)/ruff check --fix --quiet && $(BIN)/ruff format --quiet

clean: ## remove the build folder
	@rm -rf build
