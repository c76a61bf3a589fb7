# Everything sets itself up: a virtual environment in this folder, packages from the package index.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes of tests: many of them wait for others, so there may be more than cores.
JOBS ?= 2
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
# Images of Python set it: each command would then compile all its modules again, for 3 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all soak test-tensorrt test-cuda test-gpu test-frameworks test-notebook test-viewers test-networks fuzz lint check coverage mutants bench reports figures docs links pictures lock audit dist image pin clean

demo: $(DEMO)
	@$(BIN)/trtcal run samples/classifier/trtcal.toml
	@echo "Open $(CURDIR)/reports/classifier/report.html in a browser."

# Browser tests need a Chromium (Debian: chromium), tests of devices an sshd (openssh-server); without it they
# are skipped, and listed as such.
test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -rs -m "not slow"

# What `make test` leaves out: all kinds of networks, graphs, pages, browsers, servers, clusters.
test-all: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -rs -m slow

# Full counts: every small graph on three targets and with three mixed plans, a model of over 2 GiB, ten
# times as many examples, and mutated inputs of every format, MINUTES of each. Takes hours.
soak: $(READY)
	WHOLE_ZOO=1 TRTCAL_LARGE=1 EXAMPLES=10 $(BIN)/python -m pytest -n 2 -rs
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# TensorRT's own packages, 8.6 (with python3.10) to 11 and RTX: downloads 0.6 GB, needs cc, no GPU.
test-tensorrt: $(READY)
	$(BIN)/python -m tests.tensorrt.check

# The tests of our PyCUDA code with PyCUDA itself on a stand-in of the driver: compiles it in 2 minutes; cc, no GPU.
test-cuda: $(READY)
	$(BIN)/python -m tests.cuda.check

# All that waits for a GPU, in stages that are not run twice. DRY=1 shows them, PACK=folder makes what a
# machine without a network needs, WHEELS=folder/part1 takes it there, STAGES="kernel pycuda" chooses.
test-gpu:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu $(if $(DRY),--dry) $(addprefix --wheels ,$(WHEELS)) \
	  $(addprefix --pack ,$(PACK)) $(addprefix --only ,$(STAGES))

# Models of TensorFlow, Keras and PyTorch, and TVM, in an environment of their own: downloads 2 GB, no GPU.
test-frameworks: $(READY)
	$(BIN)/python -m tests.frameworks.check

# How results look in JupyterLab, which goes into an environment of its own: downloads 0.2 GB, needs a Chromium.
test-notebook: $(READY)
	$(BIN)/python -m tests.browser.notebook

# Exports in Model Explorer and Netron, in a browser, with these packages (0.5 GB).
test-viewers: $(READY)
	$(BIN)/python -m tests.viewers.check

# The networks that other packages ship, through every command: downloads 0.3 GB, takes about two hours.
test-networks: $(READY)
	$(BIN)/python -m tests.packages.check

# Mutated inputs of every format, MINUTES of each, every day others: `make test` has a few of each.
MINUTES ?= 10
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vulture

# Everything that needs no running network; a commit is checked by the same (.pre-commit-config.yaml).
check: lint
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_tests.py tests/test_style.py tests/test_docs.py tests/test_api.py tests/release/test_lock.py -k "not in_order"

# The suite with branch coverage; fails below `fail_under` in pyproject.toml.
coverage: $(READY)
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

# Mutants of the statistics, limits and calibrators that no test notices: `mutmut browse` shows them.
mutants: $(READY)
	$(BIN)/mutmut run
	$(BIN)/mutmut results

bench: $(READY)
	$(BIN)/python -m benchmarks.int8_speed

# The gallery: every sample run anew, its page and data kept. Status 1 is a verdict: DO NOT SHIP.
reports: $(READY)
	rm -f reports/history.sqlite*
	for run in digits/trouble:digits-trouble digits/glitch:digits-glitch \
	    digits/trtcal:digits classifier/trtcal:classifier detector/trtcal:detector vit/trtcal:vit; do \
	  $(BIN)/trtcal run samples/$${run%%:*}.toml || [ $$? = 1 ] || exit 1; \
	  $(BIN)/trtcal report reports/$${run##*:} -o reports/$${run##*:}.html || exit 1; \
	done

# The figures of docs/concepts, from what trtcal computes; `python -m docs.compiled` asks TensorRT-RTX anew.
figures: $(READY)
	$(BIN)/python -m docs.figures

# The versions and hashes that CI installs, the newest that pyproject.toml allows.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
	  --extra dev --extra rtx --custom-compile-command 'make lock' -o requirements.lock pyproject.toml

# Known vulnerabilities of the locked packages; asks the package index's advisories.
audit: $(READY)
	$(BIN)/python -m tests.release.audit

# A release in dist/: sdist, wheel and SBOM, and the demo run from the wheel in a bare environment.
dist: $(READY)
	$(BIN)/python -m tests.release.dist

# The image of docker/Dockerfile. `make pin` writes the digests that its base images have today.
image:
	docker build -f docker/Dockerfile -t trtcal --build-arg COMMIT="$$(git describe --always --dirty --abbrev=12 --exclude='*')" .

pin: $(READY)
	$(BIN)/python -m tests.release.pin

# The site, in docs/_build/html; a warning, a broken link or anchor is an error. The reference is made from the code.
docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -n -q -E -b html docs docs/_build/html

# The links to other sites, if there is a network.
links: $(READY)
	$(BIN)/python -m tests.docs.links

# The README's pictures of the gallery; needs a Chromium.
pictures: $(READY)
	$(BIN)/python -m tests.browser.pictures

# The demo needs trtcal with TensorRT-RTX; all else adds the tools of tests and documents to it.
$(DEMO): pyproject.toml requirements.lock .ci/install
	$(PYTHON) -m venv $(VENV)
	sh .ci/install $(BIN)/python demo
	touch $(DEMO)

$(READY): pyproject.toml requirements.lock .ci/install
	$(PYTHON) -m venv $(VENV)
	sh .ci/install $(BIN)/python
	touch $(DEMO) $(READY)

clean:
	rm -rf docs/_build docs/reference $(VENV) .venv-tensorrt .venv-cuda .venv-frameworks .venv-notebook .venv-viewers .venv-networks reports/*/
