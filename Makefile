# Everything that a newcomer needs: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
JOBS ?= 4
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Hundreds of servers start in the tests: what is compiled is kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test tests web web-if-there web-check lint types docs map walks bench bench-mcp bench-clients bench-chats bench-machines bench-waiting compliance fuzz soak dist lowest format clean

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 22

demo: $(READY) web-if-there  ## Open a chat in the browser, in which a tool stops in the middle and asks
	@$(BIN)/midcall demo

test: $(READY)   ## Lint, types, the whole test suite with its coverage, the docs and their examples
	@$(MAKE) --no-print-directory -j 4 lint types web-check tests

tests: web-if-there
	@scripts/programs
	rm -rf .cache/coverage
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

web: $(READY)    ## Build the web client into the package (needs Node.js)
	@$(BIN)/python scripts/web.py build

web-if-there: $(READY)
	@$(BIN)/python scripts/web.py build --optional

web-check: web-if-there
	@$(BIN)/python scripts/web.py check --optional

lint: $(READY)   ## Style, by ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## Strict types of src, by mypy
	$(BIN)/mypy

docs: $(READY)   ## Build the documentation into site/
	$(BIN)/zensical build --clean --strict

map: $(READY)    ## Write the map of rooms and files into CONTRIBUTING.md
	@$(BIN)/python scripts/map.py

walks: $(READY)  ## Count the files that a call passes through, in real servers
	@$(BIN)/python scripts/walks.py

bench: $(READY)  ## Measure; writes the figures to docs/topics/performance.md
	$(BIN)/python -m bench

bench-mcp: $(READY)  ## Measure MCP beside other servers (needs npm and wrk); writes the figures there too
	$(BIN)/python -m bench.peers

bench-clients: $(READY)  ## Measure the client beside others; writes the figures there too
	$(BIN)/python -m bench.callers

bench-chats: $(READY)  ## Measure 200 chats that stream at once; writes the figures there too
	$(BIN)/python -m bench.chats

bench-machines: $(READY)  ## Measure state machines beside others; writes the figures there too
	$(BIN)/python -m bench.machines

bench-waiting: $(READY)  ## Measure what waiting calls cost (ten minutes); writes the figures to docs/topics/scale.md
	$(BIN)/python -m bench.waiting

compliance: $(READY)  ## The official MCP conformance suites, clients and servers with midcall (needs npm)
	$(BIN)/python compliance/run.py
	$(BIN)/python compliance/clients.py
	$(BIN)/python compliance/agents.py
	$(BIN)/python -m pytest tests/activations/test_claudecode.py tests/activations/test_claudecode_restart.py
	$(BIN)/python compliance/foreign.py

fuzz: $(READY)   ## Let mcp-fuzzer loose on a server, over HTTP and stdio
	$(BIN)/python fuzzing/run.py

soak: $(READY)   ## 2,000 schedules of crashes, and four workers that are killed and frozen (long)
	$(BIN)/python -m soak
	$(BIN)/python -m soak.workers

dist: $(READY)   ## Build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

lowest:          ## The tests with the lowest versions that pyproject.toml allows (needs uv)
	uv venv --quiet --clear --python $(PYTHON) .cache/lowest
	uv pip compile --quiet --resolution lowest-direct --extra postgres --extra keyring pyproject.toml -o .cache/lowest.txt
	uv pip install --quiet --python .cache/lowest --editable . --group dev --no-binary claude-agent-sdk --constraint .cache/lowest.txt
	.cache/lowest/bin/python -m pytest -n $(JOBS) --dist loadfile

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/web.py format --optional

clean:           ## Remove what was built
	rm -rf $(VENV) site dist web/node_modules .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml scripts/setup
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@
