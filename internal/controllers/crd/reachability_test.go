package crd

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestReportsAreWritten checks that a report is kept until it is written, and that a report about a CRD that does not
// exist is dropped.
func TestReportsAreWritten(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	failures := 3
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("the server is not available")
	})
	r := NewReachability()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx, client, nil) })
	defer running.Wait()
	defer stop()
	r.Report("gone.example.com", nil)
	r.Report("gone.example.com", io.ErrUnexpectedEOF)
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 10*time.Second, true,
		func(context.Context) (bool, error) {
			_, waits := r.latest.Load("gone.example.com")
			return !waits && len(client.Actions()) > 3, nil
		})
	if err != nil {
		t.Errorf("the report is not written: %v", err)
	}
}
