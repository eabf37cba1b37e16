# `make` prints what there is. The work is done by scripts/, which say more.

SHELL := bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
INFO    := turnpike/internal/buildinfo
LDFLAGS  = -s -w -X $(INFO).Version=$(VERSION) -X $(INFO).Commit=$(COMMIT)

# Suites that need more than the Go toolchain: the engine (Postgres and NATS in containers), Postgres binaries, the agent
# CLIs, or the right to make namespaces. `make test` runs them with all the others, `make test-unit` leaves them out.
REAL := testenv store devpg agent/confine agent/runner agent/driver/claude agent/driver/codex agent/driver/opencode \
	agent/driver/pi agent/killtest agent/agenttest agent/sandbox/container chaos e2e

.PHONY: help
help: ## Print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install what is missing, by apt and npm; asks first on a terminal (YES=1 does not)
	@scripts/deps.sh all

.PHONY: build
build: ## Build bin/dispatcher, bin/worker and bin/launcher
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: demo
demo: build ## From nothing to a finished, recorded turn; nothing to configure, no key needed
	@scripts/deps.sh postgres agents
	@scripts/demo.sh

.PHONY: agents
agents: ## Install the pinned agent CLIs under .cache/agents
	@scripts/agents.sh

.PHONY: provider
provider: ## Run the scripted model provider that tests and the demo use
	@go run ./internal/agent/agenttest/provider

.PHONY: test
test: deps ## Run every test, on real parts; ARGS adds flags or packages
	@scripts/test.sh $(ARGS)

.PHONY: test-unit
test-unit: ## Run the tests that need neither engine nor agent CLI
	@go test $$(go list ./... | grep -v $(foreach s,$(REAL),-e '^turnpike/internal/$(s)$$'))

.PHONY: test-kill
test-kill: ## Kill each of the real agents 50 times at random moments; KILLS and SEED choose
	@scripts/agents.sh >/dev/null
	@go test -race -timeout 120m -count 1 -v -run '^TestKills$$' ./internal/agent/killtest \
		-kills $(or $(KILLS),50) -seed $(or $(SEED),0)

.PHONY: chaos
chaos: ## Break an installation by the plan of SEED (1) while TURNS turns (1500) run, and check what is on record
	@scripts/engine.sh up
	@go test -timeout 60m -count 1 -v -run '^TestChaos$$' ./internal/chaos -seed $(or $(SEED),1) -turns $(or $(TURNS),1500)

.PHONY: fuzz
fuzz: ## Run every fuzz target, one after the other, for FUZZTIME in all (10m)
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: ## Check formatting, vet, the import map and golangci-lint
	@scripts/lint.sh

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what the programs call
	@go build -C tools -o ../.cache/bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@.cache/bin/govulncheck ./...

.PHONY: bench
bench: ## Measure the queue beside its peers and print the table; ROUNDS and ARGS choose (see docs/performance.md)
	@scripts/bench.sh $(if $(ROUNDS),-rounds $(ROUNDS)) $(ARGS)

.PHONY: bench-scale
bench-scale: ## Show a fleet that beats, a backlog of a million and a history of five million; ARGS chooses (see docs/performance.md)
	@scripts/deps.sh postgres
	@cd bench && go run ./scale $(ARGS)

.PHONY: bench-start
bench-start: ## Measure what starting a confined turn costs, beside bubblewrap and a container; ARGS adds flags
	@scripts/bench-start.sh $(ARGS)

.PHONY: test-escape
test-escape: ## Play every attack under every placement and print the table; fails where it is not as recorded
	@scripts/test-escape.sh $(ARGS)

.PHONY: engine-up
engine-up: ## Start a container engine and build or pull the images, where missing
	@scripts/engine.sh up

.PHONY: engine-down
engine-down: ## Stop the engine that engine-up started
	@scripts/engine.sh down

.PHONY: images
images: build ## Build the images that compose.yaml runs
	@scripts/build-images.sh

.PHONY: clean
clean: ## Remove what was built and cached here, and containers that crashed tests left
	rm -rf bin .cache
	@docker ps -aq --filter label=turnpike.testenv 2>/dev/null | xargs -r docker rm -fv >/dev/null
