# The few targets that people type. CI is .ci/run, which `make check` runs.

FUZZTIME ?= 30s

.PHONY: trellis cluster test bench fuzz lint check sweep crashtest oracle peers cert-manager

trellis:
	go build -trimpath -o bin/trellis ./cmd/trellis

# Controllers, scheduler and nodes: a module of its own, in one static file.
cluster:
	cd cluster && CGO_ENABLED=0 go build -trimpath -o ../bin/trellis-cluster ./cmd/trellis-cluster

test:
	go test ./...
	cd cluster && go test ./...

bench:
	go test -run '^$$' -bench . -benchmem ./...

# Each fuzz target for FUZZTIME.
fuzz:
	.ci/fuzz $(FUZZTIME)

lint:
	.ci/lint

check:
	.ci/run

# Grows every list and map of every kind and measures what a request costs. It takes hours; SWEEP_ONLY names a part of the cases.
sweep:
	SWEEP=all go test -count=1 -timeout 24h -v -run 'TestSweep$$' ./internal/robustness

# Kills a server at random a thousand times while it writes, and a fake disk ten thousand times.
crashtest:
	CRASHTEST=1000 go test -count=1 -timeout 2h -v ./internal/crashtest
	CRASHTEST=10000 go test -count=1 -timeout 2h ./internal/storage/embedded

# The programs that tests compare with: see peers/README.md.
peers: oracle cert-manager
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/ k8s.io/kubernetes/cmd/kube-controller-manager \
		k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubemark k8s.io/sample-apiserver

# Those of them that CI has.
oracle:
	mkdir -p bin/peers
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/etcd go.etcd.io/etcd/server/v3
	cd peers && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../bin/peers/ k8s.io/kubernetes/cmd/kube-apiserver

# The operator that a test runs, and the objects of its chart.
cert-manager:
	mkdir -p bin/peers
	cd peers/cert-manager && for p in controller webhook cainjector; do \
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../../bin/peers/cert-manager-$$p github.com/cert-manager/cert-manager/cmd/$$p || exit; done
	cd peers/cert-manager && CGO_ENABLED=0 go run -trimpath . "$$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)" > ../../bin/peers/cert-manager.yaml
