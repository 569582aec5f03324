package conformance_test

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/fixture/kubeapiserver"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startKubeAPIServer starts kube-apiserver with a separate etcd and blocks until it is ready. Both stop at the end of
// the test. The test is skipped if the programs are missing.
func startKubeAPIServer(t *testing.T, flags ...string) *rest.Config {
	t.Helper()
	url := kubeapiserver.New(t, storagetest.StartEtcd(t)).Start(
		append([]string{"--allow-privileged", "--enable-priority-and-fairness=false"}, flags...)...)
	return &rest.Config{Host: url, BearerToken: kubeapiserver.Token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}
