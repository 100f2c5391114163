# Every target sets up what it needs in .venv: from a fresh clone, python3 (>= 3.10, with venv) and a C++20 compiler
# are enough. ARGS reaches the program: make demo ARGS="--model gpt --budget 0.5", make test ARGS="-k pool".

# The torch that is built against, here and in CI. Only .venv gets it: `pip install .` takes the torch it finds.
TORCH := torch==2.13.0

PYTHON := .venv/bin/python
READY := .venv/ready
SOURCES := $(wildcard dtr_alloc/csrc/*.h dtr_alloc/csrc/*.cpp runtime/csrc/*.h runtime/csrc/*.cpp)
ARGS :=

.PHONY: demo test test-all perf lint format clean

demo: $(READY)
	.venv/bin/dtr-alloc demo $(ARGS)

# Minutes; what CI runs.
test: $(READY)
	.venv/bin/pytest -q -m "not slow" $(ARGS)

test-all: $(READY)
	.venv/bin/pytest -q $(ARGS)

perf: $(READY)
	$(PYTHON) perf/op_overhead.py --out perf/results/op_overhead.json
	$(PYTHON) perf/eviction.py --out perf/results/eviction.json
	$(PYTHON) perf/decision_cost.py --out perf/results/decision_cost.json
	$(PYTHON) perf/soak.py --out perf/results/soak.json

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
	rm -rf .venv build *.egg-info dtr_alloc/*.so

# A changed C++ file is compiled alone; a changed requirement, or the first time, installs anew.
$(READY): pyproject.toml setup.py Makefile $(SOURCES)
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
	$(PYTHON) -m pip install -q --disable-pip-version-check $(TORCH) numpy ninja 'setuptools>=77' wheel
	$(PYTHON) -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
