package engine

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// TestDeadlineStatus checks that lists and DeleteCollection return the same 504 if their context has ended.
func TestDeadlineStatus(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := f.List(ctx, f.cron(""), read.ListOptions{})
	f.expectStatus(err, 504, metav1.StatusReasonTimeout,
		"Timeout: request did not complete within the allotted timeout")
	_, err = f.DeleteCollection(ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{}, verb.Caller{})
	f.expectStatus(err, 504, metav1.StatusReasonTimeout,
		"Timeout: request did not complete within the allotted timeout")
	equal(t, "objects left", names(f.list(f.cron(""), read.ListOptions{})), []string{"c000", "c001", "c002"})
}
