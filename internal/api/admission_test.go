package api

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// noting is a plugin that annotates each write, and keeps the dry runs that the options tell of.
type noting struct{ dryRuns [][]string }

func (n *noting) Admit(_ context.Context, r *admission.Request) error {
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

func (n *noting) Name() string { return "Noting" }

func (n *noting) Handles(*admission.Request) bool { return true }

func (n *noting) Validate(context.Context, *admission.Request) error { return nil }

// What admission has to say of a write is in its audit record, and admission gets the options of the verb.
func TestAdmissionIsAudited(t *testing.T) {
	h, read := recorded(t)
	plugin := &noting{}
	h.server.engine.Admission = admission.Plugins{plugin}
	h.want(200, "PATCH", crontabs+"/a?dryRun=All", `{"spec":{"replicas":7}}`, "Content-Type: application/merge-patch+json")
	h.want(200, "DELETE", crontabs+"/a?dryRun=All", "")
	if len(plugin.dryRuns) != 2 || !slices.Equal(plugin.dryRuns[0], []string{"All"}) || !slices.Equal(plugin.dryRuns[1], []string{"All"}) {
		t.Errorf("options with dryRun %q", plugin.dryRuns)
	}
	var seen []string
	for _, e := range read() {
		if said := e.Annotations["example.com/seen"]; said != "" {
			seen = append(seen, said)
		}
	}
	if !slices.Equal(seen, []string{"UPDATE", "DELETE"}) {
		t.Errorf("annotations %q", seen)
	}
}
