package conformance_test

import (
	"encoding/json"
	"regexp"
	"strings"
)

// known is a difference that docs/compatibility.md lists.
type known struct {
	row  string // how its row there begins
	of   func(r request, d difference) bool
	used bool
}

// knownDifferences are the rows of the page that the requests come upon.
func knownDifferences() []*known {
	var all []*known
	row := func(begins string, of func(r request, d difference) bool) {
		all = append(all, &known{row: begins, of: of})
	}
	row("a CRD's endpoint |", func(r request, d difference) bool {
		return aboutCRD(r) && r.method != "GET" && !strings.Contains(r.path, "dryRun") && ofStatus(d)
	})
	row("`status.acceptedNames` in the answer to a dry run", func(r request, d difference) bool {
		return aboutCRD(r) && strings.Contains(r.path, "dryRun") && ofStatus(d)
	})
	row("`observedGeneration` in a CRD's status", func(r request, d difference) bool {
		return aboutCRD(r) && strings.HasSuffix(d.path, "bservedGeneration")
	})
	row("deletion of a CRD |", func(r request, d difference) bool {
		return aboutCRD(r) && strings.HasPrefix(d.path, "body.status.conditions")
	})
	row("`kubectl get crd` |", func(r request, d difference) bool {
		return aboutCRD(r) && r.accept == asTable && strings.HasPrefix(d.path, "body.columnDefinitions")
	})
	row("`apiextensions.k8s.io/v1beta1` CRDs", func(r request, d difference) bool {
		return strings.Contains(r.path+d.path, "apiextensions.k8s.io/v1beta1") || strings.HasSuffix(d.path, ".versions") && strings.Contains(short(d.ours), "v1beta1")
	})
	row("StorageVersionMigration, ClusterTrustBundle, DeviceTaintRule", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, ".storageVersionHash") && d.theirs != missing
	})
	row("StorageVersionMigration | kube-controller-manager", func(r request, _ difference) bool {
		return strings.Contains(r.path, "storageversionmigrations")
	})
	row("RBAC kinds |", func(r request, _ difference) bool { return strings.HasSuffix(r.path, "selfsubjectrulesreviews") })
	row("a PATCH that takes the `apiVersion` out", func(r request, _ difference) bool { return r.method == "PATCH" && r.body == `{"apiVersion":null}` })
	row("a path below `/apis` that no kind serves", func(_ request, d difference) bool { return d.theirs == "404 page not found\n" })
	row("the words for:", func(_ request, d difference) bool {
		said, _ := json.Marshal(d.ours)
		return strings.HasSuffix(d.path, "message") && ownWords.Match(said)
	})
	return all
}

var ownWords = regexp.MustCompile(`cannot be handled as|does not match the expected API version|error decoding patch|patch: Invalid value|^"Invalid value: .*apiVersion|strconv.ParseUint`)

// ofStatus: what kube-apiserver's loops write to the status of a CRD, and that they have.
func ofStatus(d difference) bool {
	return strings.HasPrefix(d.path, "body.status.") || strings.HasPrefix(d.path, "body.metadata.managedFields")
}

func aboutCRD(r request) bool { return strings.HasPrefix(r.path, crdPath) }
