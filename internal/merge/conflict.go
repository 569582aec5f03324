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

// maxConflictBytes limits the text of the conflicts in an answer. Upstream lists all of them.
const maxConflictBytes = 1 << 20

// conflictError words conflicts as upstream does, in a stable order.
func conflictError(conflicts merge.Conflicts, known *owners) error {
	conflicts = slices.Clone(conflicts)
	slices.SortStableFunc(conflicts, func(a, b merge.Conflict) int {
		return cmp.Or(strings.Compare(a.Manager, b.Manager), byLevel(a.Path, b.Path))
	})
	var causes []metav1.StatusCause
	for size, i := 0, 0; i < len(conflicts) && size < maxConflictBytes; i++ {
		cause := metav1.StatusCause{
			Type:    metav1.CauseTypeFieldManagerConflict,
			Message: "conflict with " + known.print(conflicts[i].Manager),
			Field:   conflicts[i].Path.String(),
		}
		causes = append(causes, cause)
		size += len(cause.Message) + len(cause.Field)
	}
	return apierrors.NewApplyConflict(causes, conflictMessage(conflicts, len(causes), known))
}

// byLevel compares paths in the order of fieldpath.Set.Iterate: at each level, the fields that end there come before those below.
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

// conflictMessage words the first conflicts.
func conflictMessage(conflicts merge.Conflicts, first int, known *owners) string {
	if len(conflicts) == 1 {
		return fmt.Sprintf("Apply failed with 1 conflict: conflict with %v: %v", known.print(conflicts[0].Manager), conflicts[0].Path)
	}
	var lines []string
	for i, c := range conflicts[:first] {
		if i == 0 || c.Manager != conflicts[i-1].Manager {
			lines = append(lines, fmt.Sprintf("conflicts with %v:", known.print(c.Manager)))
		}
		lines = append(lines, fmt.Sprintf("- %v", c.Path))
	}
	return fmt.Sprintf("Apply failed with %d conflicts: %s", len(conflicts), strings.Join(lines, "\n"))
}

func (o *owners) print(id string) string {
	who := o.owners[id]
	if who == nil {
		return fmt.Sprintf("%q", id)
	}
	s := fmt.Sprintf("%q", who.manager)
	if who.subresource != "" {
		s = fmt.Sprintf("%s with subresource %q", s, who.subresource)
	}
	if who.operation == operationUpdate {
		s += " using " + who.apiVersion
	}
	return s
}
