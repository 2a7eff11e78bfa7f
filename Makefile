# Thin: every target that runs the product wraps one `pike-hpc` command.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev submit resume status cancel report doctor test test-cluster \
	test-together check check-code bench soak image devcluster devcluster-down clean

WORKFLOW ?= workflows/quickstart.yaml
SITE ?=
RUN ?=
ACCOUNT ?=
DRY_RUN ?=
PIKE := .venv/bin/pike-hpc
FIND := PYTHON="$(PYTHON)" sh pike_hpc/bootstrap/find_python.sh "$(SITE)"

# A misspelled DRYRUN=1 would be no dry run.
USERS := setup submit resume status cancel report doctor image
KNOWN := ACCOUNT BUILD DRY_RUN GPUS IMAGE IMAGES OUT PYTHON RUN SHELL SITE WHEELS WORKFLOW
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(v)))),$(v)))
UNKNOWN := $(filter-out $(KNOWN) MAKE% -*%,$(GIVEN))
NEAREST := import difflib, sys; a = sys.argv[1:]; m = difflib.get_close_matches(a[0].upper(), a[1:], 1)
NEAREST += ; print(*(f"; did you mean {n}?" for n in m))
ifneq ($(and $(UNKNOWN),$(filter $(USERS),$(MAKECMDGOALS))),)
$(error there is no variable $(firstword $(UNKNOWN))=$(shell $(or $(PYTHON),python3) -c '$(NEAREST)' \
	'$(firstword $(UNKNOWN))' $(filter-out SHELL,$(KNOWN)) 2>/dev/null); valid: $(filter-out SHELL,$(KNOWN)))
endif

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

INSTALL := pike_hpc.bootstrap.install
# What was typed, for the line that says how to name a site.
ASKED = $(strip make $(MAKECMDGOALS) $(filter-out SITE=%,$(MAKEOVERRIDES)))

setup: ## Make .venv and install (what `make submit` does first): [SITE=]
	@python=$$($(FIND)) && PYTHONSAFEPATH= "$$python" -m $(INSTALL) \
		$(if $(SITE),--site "$(SITE)",$(RECOGNISED) --asked '$(subst ','\'',$(ASKED))')

setup-dev:
	@python=$$($(FIND)) && PYTHONSAFEPATH= "$$python" -m $(INSTALL) --site local --extras local,dev

submit: setup ## Start or continue a run: [SITE=] [WORKFLOW=] [RUN=] [ACCOUNT=] [DRY_RUN=1]
	@$(PIKE) submit --workflow "$(WORKFLOW)" $(if $(SITE),--site "$(SITE)") \
		$(if $(RUN),--run "$(RUN)") $(if $(ACCOUNT),--account "$(ACCOUNT)") $(if $(DRY_RUN),--dry-run)

NAMED = $(if $(RUN),,$(error which run? Say: make $@ RUN=DIR))

resume: ## Continue RUN=DIR
	@$(NAMED)$(PIKE) resume "$(RUN)"

status: ## Show RUN=DIR
	@$(NAMED)$(PIKE) status "$(RUN)"

cancel: ## Stop the jobs of RUN=DIR, keep its data
	@$(NAMED)$(PIKE) cancel "$(RUN)"

report: ## Tables and page of RUN=DIR
	@$(NAMED)$(PIKE) report "$(RUN)"

# As `pike-hpc doctor` does: without SITE, the site whose login node this is.
doctor: RECOGNISED := --recognised
doctor: setup ## Try everything a run needs here: [SITE=] [ACCOUNT=] [WORKFLOW=], whose models are asked
	@$(PIKE) doctor $(if $(SITE),--site "$(SITE)") $(if $(ACCOUNT),--account "$(ACCOUNT)") \
		$(if $(filter-out file,$(origin WORKFLOW)),--workflow "$(WORKFLOW)")

test: setup-dev ## Everything, from nothing: checks, then the whole suite
	@$(MAKE) --no-print-directory check-code
	@$(MAKE) --no-print-directory -j 2 --output-sync=target test-cluster test-together
	@.venv/bin/python -m pytest -m timed --durations=10 tests/integration tests/exploits
	@.venv/bin/python -m pytest tests/gpu

# Most of the cluster's time is waiting for Slurm: others use the cores meanwhile. What waits most
# comes first, for the image is built beside it.
WAITING := $(patsubst %,tests/cluster/test_%.py,survival outages leases cluster_soak_short)
test-cluster:
	@.venv/bin/python -m pytest --durations=10 $(WAITING) \
		$(filter-out $(WAITING),$(wildcard tests/cluster/test_*.py))

# A file is one worker's, and the longest are not to be left for the end.
LONGEST := $(patsubst %,tests/integration/test_%.py,submit_run judge_hostile build_ahead judge_honest)
test-together:
	@.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not timed" \
		--durations=10 $(LONGEST) \
		$(filter-out $(LONGEST),$(wildcard tests/integration/test_*.py tests/exploits/test_*.py)) \
		$(QUICK)

QUICK := tests/unit tests/property tests/architecture tests/conformance
check: setup-dev ## Format, lint, types, import contracts, unit and property tests
	@$(MAKE) --no-print-directory check-code
	@.venv/bin/python -m pytest -n 2 --dist loadfile $(QUICK)

check-code:
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

BENCH := .venv/bin/python tests/bench
OUT ?= docs
GPUS ?= 1

bench: setup-dev ## Measure judge and mailbox here, figures to OUT=docs: [GPUS=]
	@$(BENCH)/intervals.py --processes 2 --out "$(OUT)"
	@$(BENCH)/null_constant.py --out "$(OUT)"
	@$(BENCH)/memory.py --seconds 480 --out "$(OUT)"
	@$(BENCH)/throughput.py --gpus $(GPUS) --out "$(OUT)"
	@$(BENCH)/agreement.py --out "$(OUT)"
	@$(BENCH)/identity.py --out "$(OUT)"
	@$(BENCH)/mailbox.py --out "$(OUT)"
	@$(BENCH)/agent_tick.py --out "$(OUT)"

soak: setup-dev ## 1,000 evaluations, hostile ones among them; kills; 64 workers; a disturbed cluster
	@$(BENCH)/mailbox_kills.py --out "$(OUT)"
	@$(BENCH)/memory.py --device cpu --evaluations 1000 --kinds torch,broken --hostile \
		--kill-judge 10 --out "$(OUT)"
	@$(BENCH)/many_workers.py --out "$(OUT)"
	@$(BENCH)/cluster_soak.py --out "$(OUT)"
	@$(BENCH)/cluster_soak.py --judged --out "$(OUT)"

IMAGE ?= $(if $(SITE),,eval-cpu)
IMAGES ?= $(if $(SITE),,containers)
WHEELS ?=
BUILD ?=

image: ## Pull or build one: [SITE=] [ACCOUNT=] [IMAGE=eval-cpu, eval-cuda12 or eval-cuda13] [BUILD=1] [DRY_RUN=1]
	@$(if $(PYTHON),"$(PYTHON)",.venv/bin/python) containers/build.py $(IMAGE) \
		$(if $(SITE),--site "$(SITE)") $(if $(ACCOUNT),--account "$(ACCOUNT)") \
		$(if $(IMAGES),--out "$(IMAGES)") \
		$(if $(WHEELS),--wheels "$(WHEELS)") $(if $(BUILD),--build) $(if $(DRY_RUN),--dry-run)

devcluster: ## A real Slurm, Apptainer and podman on this Debian 12 machine, as root
	@tests/cluster/rig/up.sh

devcluster-down: ## End it and remove what it made
	@tests/cluster/rig/down.sh

clean: ## Remove caches and .venv, never runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
