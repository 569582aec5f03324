# The targets for developers. `make check` runs CI, which is .ci/run.

FUZZTIME ?= 30s
KILLS ?= 1000
FAULTTIME ?= 1h
SOAK ?= 2h

.PHONY: trellis cluster test bench fuzz lint check sweep crashtest soak oracle peers cert-manager

trellis:
	go build -trimpath -o bin/trellis ./cmd/trellis

# Builds the program with controllers, scheduler and nodes from a separate module, as one static binary.
cluster:
	cd cluster && CGO_ENABLED=0 go build -trimpath -o ../bin/trellis-cluster ./cmd/trellis-cluster

test:
	go test ./...
	cd cluster && go test ./...

bench:
	go test -run '^$$' -bench . -benchmem ./...

# Runs each fuzz target for FUZZTIME.
fuzz:
	.ci/fuzz $(FUZZTIME)

lint:
	.ci/lint

check:
	.ci/run

# Grows every list and map of every kind and measures the cost of a request. It takes hours. SWEEP_ONLY selects some of
# the cases.
sweep:
	SWEEP=all go test -count=1 -timeout 24h -v -run 'TestSweep$$' ./internal/robustness

# Kills a writing server KILLS times at random moments, and a fake disk ten times as often. Causes random faults for
# FAULTTIME in three replicas over three members of etcd, which needs root and bin/peers/etcd. Prints a report at the
# end, and keeps it in bin/crashtest.txt.
crashtest:
	.ci/crashtest $(KILLS) $(FAULTTIME)

# Uses servers on both stores for the time SOAK, and measures their memory, goroutines and descriptors.
soak:
	SOAK=$(SOAK) go test -count=1 -timeout 24h -v ./internal/crashtest/soak

# Builds the programs with which tests compare Trellis: see peers/README.md.
peers: oracle cert-manager
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/ k8s.io/kubernetes/cmd/kube-controller-manager \
		k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubemark k8s.io/sample-apiserver

# Builds the subset of these programs that CI uses.
oracle:
	mkdir -p bin/peers
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/etcd go.etcd.io/etcd/server/v3
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/ k8s.io/kubernetes/cmd/kube-apiserver

# Builds the operator that a test runs, and renders the objects of its chart.
cert-manager:
	mkdir -p bin/peers
	cd peers/cert-manager && for p in controller webhook cainjector; do \
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../../bin/peers/cert-manager-$$p github.com/cert-manager/cert-manager/cmd/$$p || exit; done
	cd peers/cert-manager && CGO_ENABLED=0 go run -trimpath . "$$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)" > ../../bin/peers/cert-manager.yaml
