package merge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
)

// maxConflictBytes limits the text of the conflicts in a response. Upstream lists all conflicts.
const maxConflictBytes = 1 << 20

// conflictError returns upstream's error for conflicts. It always lists them in the same order.
func conflictError(conflicts merge.Conflicts, managers *owners) error {
	conflicts = slices.Clone(conflicts)
	slices.SortStableFunc(conflicts, func(a, b merge.Conflict) int {
		return cmp.Or(strings.Compare(a.Manager, b.Manager), byLevel(a.Path, b.Path))
	})
	var causes []metav1.StatusCause
	for size, i := 0, 0; i < len(conflicts) && size < maxConflictBytes; i++ {
		cause := metav1.StatusCause{
			Type:    metav1.CauseTypeFieldManagerConflict,
			Message: "conflict with " + managers.describe(conflicts[i].Manager),
			Field:   conflicts[i].Path.String(),
		}
		causes = append(causes, cause)
		size += len(cause.Message) + len(cause.Field)
	}
	return apierrors.NewApplyConflict(causes, conflictMessage(conflicts, len(causes), managers))
}

// byLevel compares paths in the order of fieldpath.Set.Iterate. At each level, paths that end at this level precede
// longer paths.
func byLevel(a, b fieldpath.Path) int {
	for i := range min(len(a), len(b)) {
		switch aEnds, bEnds := i == len(a)-1, i == len(b)-1; {
		case aEnds && !bEnds:
			return -1
		case bEnds && !aEnds:
			return 1
		}
		if c := a[i].Compare(b[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// conflictMessage returns upstream's message, but lists only some conflicts. The parameter first is their number.
func conflictMessage(conflicts merge.Conflicts, first int, managers *owners) string {
	if len(conflicts) == 1 {
		return fmt.Sprintf("Apply failed with 1 conflict: conflict with %v: %v",
			managers.describe(conflicts[0].Manager), conflicts[0].Path)
	}
	var lines []string
	for i, c := range conflicts[:first] {
		if i == 0 || c.Manager != conflicts[i-1].Manager {
			lines = append(lines, fmt.Sprintf("conflicts with %v:", managers.describe(c.Manager)))
		}
		lines = append(lines, fmt.Sprintf("- %v", c.Path))
	}
	return fmt.Sprintf("Apply failed with %d conflicts: %s", len(conflicts), strings.Join(lines, "\n"))
}

func (o *owners) describe(id string) string {
	mgr := o.owners[id]
	if mgr == nil {
		return fmt.Sprintf("%q", id)
	}
	s := fmt.Sprintf("%q", mgr.manager)
	if mgr.subresource != "" {
		s = fmt.Sprintf("%s with subresource %q", s, mgr.subresource)
	}
	if mgr.operation == operationUpdate {
		s += " using " + mgr.apiVersion
	}
	return s
}
