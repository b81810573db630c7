# IPAM Guard. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --dirty --match 'v*' 2>/dev/null)
LDFLAGS := -s -w -X github.com/ipam-guard/ipam-guard/internal/version.version=$(VERSION)

# Packages to lint and test.
PKGS ?= ./...
# More flags of go test.
TESTFLAGS ?=
# Control plane binaries to build; etcd, kube-apiserver and
# kube-controller-manager when empty.
BINARIES ?=
# Binaries that a real node takes.
NODE := etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
# What runs in pods is built so; all else of a real cluster too, to build once.
STATIC := CGO_ENABLED=0
# Flags of the demo, such as ARGS="--handles 100000 --leaks 0.9".
ARGS ?=

TOOLS := bin/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint
CONTROLLER_GEN := $(TOOLS)/controller-gen
KUSTOMIZE := $(TOOLS)/kustomize
CYCLONEDX := $(TOOLS)/cyclonedx-gomod
GOVULNCHECK := $(TOOLS)/govulncheck

##@ Use

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-zA-Z0-9_-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Sweep a leaking cluster on a real control plane.
	go run ./cmd/demo $(ARGS)

.PHONY: build
build: ## Build the manager and the kubectl plugin into bin.
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/manager ./cmd/kubectl-ipam_guard

.PHONY: build-installer
build-installer: $(KUSTOMIZE) ## Write dist/install.yaml, all of config/default in one file.
	mkdir -p dist
	$(KUSTOMIZE) build config/default > dist/install.yaml

# Name of the image that docker-build makes.
IMAGE ?= ipam-guard:$(or $(VERSION),latest)

# Flags of the release, such as RELEASE="-version v1.2.3 -platforms linux/amd64".
RELEASE ?=

.PHONY: release
release: $(KUSTOMIZE) $(CYCLONEDX) ## Build all that a release consists of into dist/release.
	mkdir -p dist
	cd internal/release && go run . -out dist/release $(RELEASE)

.PHONY: docker-build
docker-build: ## Build the manager's image.
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

.PHONY: clean
clean: ## Remove what was built, but not control plane and tools.
	rm -rf dist
	find bin -maxdepth 1 -type f -delete 2>/dev/null || true

##@ Develop

.PHONY: controlplane
controlplane: ## Build the control plane from Go modules, once.
	go run ./internal/controlplane/build $(BINARIES)

.PHONY: generate
generate: $(CONTROLLER_GEN) ## Generate deep copies and definitions from Go types.
	$(CONTROLLER_GEN) object crd:crdVersions=v1,maxDescLen=0 paths=./internal/calico \
	  output:crd:artifacts:config=internal/calico/crd

.PHONY: docs
docs: ## Generate docs/configuration.md and docs/metrics.md from code.
	go test -count=1 ./internal/reference -run Pages -update

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code.
	$(GOLANGCI_LINT) fmt

.PHONY: cluster
cluster: $(KUSTOMIZE) ## Bring up a real cluster of one node, with IPAM Guard. Needs root.
	@cd e2e && go run ./cluster/cmd/preflight
	@go run ./internal/controlplane/build $(NODE) >/dev/null
	@cd e2e && $(STATIC) go run -trimpath ./cluster/cmd/cluster up

.PHONY: cluster-down
cluster-down: ## End that cluster.
	@cd e2e && $(STATIC) go run -trimpath ./cluster/cmd/cluster down

##@ Test

.PHONY: test
test: lint vet unit integration ## Lint, vet and run all tests.

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Lint.
	$(GOLANGCI_LINT) run $(PKGS)

.PHONY: vet
vet: ## Vet, and check that go.mod is tidy.
	go vet $(PKGS)
	go mod tidy -diff

.PHONY: unit
unit: ## Run the tests that need no control plane.
	go test -race -short -timeout 15m $(TESTFLAGS) $(PKGS)

# One package at a time: each starts control planes of its own.
.PHONY: integration
integration: controlplane ## Run the tests that use a control plane.
	go test -race -p 1 -timeout 30m $(TESTFLAGS) $$(go list -test -f '{{if .ForTest}}{{.ForTest}} {{join .Deps " "}}{{end}}' $(PKGS) \
	  | awk '/internal\/controlplane( |$$)/ { print $$1 }' | sort -u)

# A module of its own, for cert-manager's controllers bring much along.
.PHONY: e2e
e2e: controlplane $(KUSTOMIZE) ## Install on a control plane, with cert-manager, and test that.
	go run ./internal/controlplane/build kubectl
	cd e2e && go vet ./... && go test -count=1 -timeout 20m $(TESTFLAGS) ./...

.PHONY: e2e-cluster
e2e-cluster: $(KUSTOMIZE) ## Install on a real node, as pods, and test that. Needs root.
	cd e2e && go run ./cluster/cmd/preflight
	go run ./internal/controlplane/build $(NODE)
	cd e2e && $(STATIC) IPAM_GUARD_CLUSTER=1 go test -trimpath -count=1 -v -timeout 15m $(TESTFLAGS) ./cluster

# Without the race detector, which makes it ten times as slow; unit runs a part with it.
.PHONY: explore
explore: ## Explore interleavings, and that each safety rule is missed without it.
	go test -count=1 -v -timeout 30m ./internal/explore $(TESTFLAGS) | grep -v '^=== '

.PHONY: release-test
release-test: $(KUSTOMIZE) $(CYCLONEDX) ## Build a release for this platform twice, compare, and install it.
	cd internal/release && go vet ./... && go mod tidy -diff && go test -count=1 -timeout 20m $(TESTFLAGS) ./...

.PHONY: monitoring-test
monitoring-test: ## Try alerts and dashboard on Prometheus's own engine.
	cd internal/monitoring && go vet ./... && go mod tidy -diff && go test $(TESTFLAGS) ./...

.PHONY: vulnerabilities
vulnerabilities: $(GOVULNCHECK) ## Look for known vulnerabilities; asks vuln.go.dev.
	$(GOVULNCHECK) ./...

# How long to fuzz each target.
FUZZTIME ?= 30s

# Before Go 1.27 fuzzing that found nothing may end as failed at its time limit
# (https://go.dev/issue/75804): what it finds, it writes down.
.PHONY: fuzz
fuzz: ## Fuzz each parser and decoder for FUZZTIME.
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' $$file); do \
	    echo "== $$(dirname $$file) $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$(dirname $$file) | tee "$$log" \
	      || if grep -qx ' *context deadline exceeded' "$$log" && ! grep -q 'Failing input' "$$log"; \
	        then echo "== nothing found by the time limit"; else exit 1; fi; \
	  done; \
	done

# A Kubernetes release to test against.
KUBERNETES ?= v1.30.14

.PHONY: compatibility
compatibility: $(KUSTOMIZE) ## Run the tests that use a control plane on that of KUBERNETES=v1.x.y.
	assets=$$(go run ./internal/controlplane/build -kubernetes $(KUBERNETES)); \
	export KUBEBUILDER_ASSETS=$$assets; \
	go test -count=1 -p 1 -timeout 30m $(TESTFLAGS) ./controllers/... ./internal/feed ./internal/manager ./internal/calico ./internal/explain ./cmd/kubectl-ipam_guard ./webhook; \
	cd e2e && go test -count=1 -timeout 20m $(TESTFLAGS) .

.PHONY: bench-sweep
bench-sweep: controlplane ## Compare the sweeper with a bare loop of deletes.
	go test -run '^$$' -bench Sweep -benchtime 1x -timeout 30m ./controllers/sweeper

.PHONY: bench-check
bench-check: controlplane ## Measure the plugin's check: CPU and memory up to 300,000 handles.
	go test -run '^$$' -bench Check -benchtime 3x -timeout 30m ./internal/check

# Handles of bench-scale.
N ?= 300000

.PHONY: bench-scale
bench-scale: controlplane ## Measure a manager on a cluster of N=300000 handles.
	go test -run '^$$' -bench Scale -benchtime 1x -timeout 60m ./internal/manager -scale.handles=$(N)

.PHONY: scale-test
scale-test: ## Fill the inventory with a million handles, and check its size.
	go test -count=1 -run AMillion ./internal/inventory -scale -v

.PHONY: bench-admission
bench-admission: controlplane ## Measure what admission adds to a request.
	go test -run '^$$' -bench Admission -benchtime 1x -timeout 30m ./webhook

##@ Tools

# Tools are built from versions that internal/tools/go.mod pins.
$(TOOLS)/%: internal/tools/go.mod internal/tools/go.sum
	@echo "build $*"
	cd internal/tools && GOWORK=off go build -mod=readonly -o ../../$@ $$(go list -f '{{.ImportPath}}' tool | grep -E '/$*(/v[0-9]+)?$$')

.PHONY: tools
tools: $(GOLANGCI_LINT) $(CONTROLLER_GEN) $(KUSTOMIZE) $(CYCLONEDX) $(GOVULNCHECK) ## Build the tools.
