# Each verb with its ## line is shown by `make help`.
.DEFAULT_GOAL := help
.PHONY: help demo test million torture torture-bugs check cross fmt fuzz services services-down

# Pinned tools; tools/go.mod keeps them out of everyone else's module graph.
tool := go tool -modfile=tools/go.mod

FUZZTIME ?= 30s

# Of make torture. Seed 0 is a random one, which is printed.
DURATION ?= 60s
SEED ?= 0
SINK ?= nats
RELAYS ?= 3
LANES ?= 16
LEASE ?= 5s

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## see events flow from PostgreSQL to a broker; ARGS="--duration 5s --json" are its flags
	@scripts/services install postgres
	@go run ./cmd/commitrelay demo $(ARGS)

test: ## run all tests with the race detector; starts the servers they need
	scripts/services up
	eval "$$(scripts/services env)" && go test -race -count=1 -timeout 30m ./...

million: ## drain a million events by relays that come and go, and see that a relay stays small: 5 minutes
	@scripts/services up postgres
	eval "$$(scripts/services env postgres)" && COMMITRELAY_TEST_EVENTS=1000000 go test -race -count=1 -timeout 60m -v -run '^TestProcesses$$/^(Memory|Backlog)$$' ./cmd/commitrelay

torture: ## break relays at random for DURATION (60s); SEED, SINK=nats|rabbitmq|kafka, RELAYS, LANES, LEASE: docs/torture.md
	@scripts/services install postgres
	@if [ '$(SINK)' != nats ]; then scripts/services up '$(SINK)'; eval "$$(scripts/services env '$(SINK)')"; fi; \
	dir=$$(mktemp -d) && trap 'rm -rf -- "$$dir"' EXIT && go build -o "$$dir/torture" ./internal/torture/run && \
	"$$dir/torture" -duration '$(DURATION)' -seed '$(SEED)' -sink '$(SINK)' -relays '$(RELAYS)' -lanes '$(LANES)' -lease '$(LEASE)' $(ARGS)

torture-bugs: ## plant bugs and have the torture find each, by 5 seeds: 20 minutes
	@scripts/services install postgres
	COMMITRELAY_TORTURE_SEEDS=5 go test -count=1 -timeout 60m -v -run '^TestPlantedBugs$$' ./internal/torture

check: ## formatting, vet, linters, modernizers, go.mod, shell scripts
	@unformatted=$$($(tool) gofumpt -l .) && [ -z "$$unformatted" ] || { echo "run make fmt for:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go -C bench vet ./...
	$(tool) golangci-lint run ./...
	go fix -diff ./...
	go mod tidy -diff
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/services scripts/services.d/*.sh scripts/services.d/kafka/run scripts/compose-rabbitmqctl .ci/run; else echo "shellcheck is not installed: shell scripts not checked"; fi

cross: ## build for other systems
	GOOS=darwin go build ./...
	GOOS=windows go build ./...

fmt: ## format the code and apply the modernizers
	$(tool) gofumpt -w .
	go fix ./...

fuzz: ## run each fuzz test for FUZZTIME (30s)
	@grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u | while read -r dir; do \
		for name in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | cut -d ' ' -f 2); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" || exit 1; \
		done; \
	done

services: ## start the servers that the tests need
	scripts/services up

services-down: ## stop them and remove their data
	scripts/services down
