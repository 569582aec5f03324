package api

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// recordingPlugin is an admission plugin. It annotates each write and records the option dryRun of the write.
type recordingPlugin struct{ dryRuns [][]string }

func (n *recordingPlugin) Admit(_ context.Context, r *admission.Request) error {
	r.Annotate("example.com/seen", string(r.Operation))
	switch o := r.Options().(type) {
	case *metav1.CreateOptions:
		n.dryRuns = append(n.dryRuns, o.DryRun)
	case *metav1.UpdateOptions:
		n.dryRuns = append(n.dryRuns, o.DryRun)
	case *metav1.DeleteOptions:
		n.dryRuns = append(n.dryRuns, o.DryRun)
	}
	return nil
}

func (n *recordingPlugin) Name() string { return "Recording" }

func (n *recordingPlugin) Handles(*admission.Request) bool { return true }

func (n *recordingPlugin) Validate(context.Context, *admission.Request) error { return nil }

// TestAdmissionIsAudited checks that the audit event contains the annotations of admission plugins. It also checks
// that plugins get the options of the request.
func TestAdmissionIsAudited(t *testing.T) {
	h, read := withAudit(t)
	plugin := &recordingPlugin{}
	h.engine.Admission = admission.Plugins{plugin}
	h.want(200, "PATCH", crontabs+"/a?dryRun=All", `{"spec":{"replicas":7}}`,
		"Content-Type: application/merge-patch+json")
	h.want(200, "DELETE", crontabs+"/a?dryRun=All", "")
	if len(plugin.dryRuns) != 2 || !slices.Equal(plugin.dryRuns[0], []string{"All"}) ||
		!slices.Equal(plugin.dryRuns[1], []string{"All"}) {
		t.Errorf("got dryRun %q in the options, want All twice", plugin.dryRuns)
	}
	var seen []string
	for _, e := range read() {
		if value := e.Annotations["example.com/seen"]; value != "" {
			seen = append(seen, value)
		}
	}
	if !slices.Equal(seen, []string{"UPDATE", "DELETE"}) {
		t.Errorf("got annotations %q, want UPDATE and DELETE", seen)
	}
}
