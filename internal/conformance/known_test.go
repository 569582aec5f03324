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
	row("`status.storedVersions` without the storage version", func(r request, _ difference) bool {
		return aboutCRD(r) && r.body == `{"status":{"storedVersions":["v1beta1"]}}`
	})
	row("Deleting a CRD passes through", func(r request, d difference) bool {
		return aboutCRD(r) && r.method == "DELETE" && strings.HasPrefix(d.path, "body.status.conditions")
	})
	row("A CRD's endpoint answers", func(r request, d difference) bool {
		return aboutCRD(r) && r.method != "GET" && !strings.Contains(r.path, "dryRun") && ofStatus(d)
	})
	row("`status.acceptedNames` in the answer to a dry run", func(r request, d difference) bool {
		return aboutCRD(r) && strings.Contains(r.path, "dryRun") && ofStatus(d)
	})
	row("`observedGeneration` in a CRD's status", func(r request, d difference) bool {
		return aboutCRD(r) && strings.HasSuffix(d.path, "bservedGeneration")
	})
	row("`kubectl get crd`", func(r request, d difference) bool {
		return aboutCRD(r) && r.accept == asTable && strings.HasPrefix(d.path, "body.columnDefinitions")
	})
	row("`apiextensions.k8s.io/v1beta1` CRDs", func(r request, d difference) bool {
		of := r.path + d.path + text(d.ours)
		return strings.Contains(of, "apiextensions.k8s.io/v1beta1") || strings.Contains(d.path, ".apiextensions.v1beta1.") || strings.HasSuffix(d.path, ".versions") && crdV1beta1.MatchString(of)
	})
	row("The time of a write through `/scale`", func(_ request, d difference) bool {
		return strings.HasPrefix(d.path, "reviews") && strings.HasSuffix(d.path, ".time") && d.theirs == missing
	})
	row("A webhook's patch without changes", func(r request, d difference) bool {
		return r.body == noted && r.path == orderPath+"/pods/p" && d.path == "reviews"
	})
	row("name, namespace, uid, time and audiences that kube-apiserver adds to a TokenRequest", func(r request, d difference) bool {
		return strings.HasSuffix(r.path, "/token") && strings.Contains(d.path, ".object.metadata.") && d.ours == missing
	})
	row("StorageVersionMigration, ClusterTrustBundle, DeviceTaintRule", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, ".storageVersionHash") && d.theirs != missing
	})
	row("StorageVersionMigrations are processed by kube-controller-manager", func(r request, d difference) bool {
		return strings.Contains(r.path, "storageversionmigrations") && migrated.MatchString(d.path)
	})
	row("ServiceCIDRs get and lose their finalizer", func(r request, d difference) bool {
		return strings.Contains(r.path, "/servicecidrs") && (r.method == "DELETE" || looked.MatchString(d.path))
	})
	row("A PATCH that removes the `apiVersion`", func(r request, _ difference) bool { return r.method == "PATCH" && r.body == `{"apiVersion":null}` })
	row("A path that nothing serves", func(_ request, d difference) bool { return d.theirs == "404 page not found\n" })
	row("A write through `/scale` of the replicas", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, "managedFields") && scaledTwice(d)
	})
	row("The time of a write through `/scale`", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, ".time") && d.theirs == missing
	})
	row("`/openapi/v3` has the type", func(r request, d difference) bool { return r.path == "/openapi/v3" && d.path == "contentType" })
	row("A POST, PUT or PATCH to `/apis`", func(r request, _ difference) bool {
		return r.path == "/apis" && r.method == "POST" || r.path == "/apis/apps" && r.method == "PUT"
	})
	row("An apply of an undecodable built-in kind", func(r request, _ difference) bool {
		return r.method == "PATCH" && (strings.Contains(r.body, "no base64") || r.contentType == asApply && strings.Contains(r.body, `"replicas":2.5`))
	})
	row("A deleted namespace waits for unavailable APIServices", func(r request, d difference) bool {
		return strings.Contains(r.path, "/apiservices") && (strings.Contains(d.path, "NeverAvailable") || strings.Contains(text(d.ours), `"type":"NeverAvailable"`))
	})
	row("`maxLength`, `maxItems` and `maxProperties` inside `allOf`", func(r request, d difference) bool {
		return r.body == boundedByAllOf
	})
	row("`$ref` in a CRD with selectable fields", func(r request, _ difference) bool { return refersBySelectableField(r) })
	row("Of equally expensive rules", func(r request, d difference) bool {
		return aboutCRD(r) && contributes.MatchString(d.path+" "+text(d.ours)+text(d.theirs))
	})
	all[len(all)-1].used = true // it differs by chance
	row("A number too large for its field", func(r request, _ difference) bool {
		return r.method == "PATCH" && (r.contentType == asStrategic && strings.Contains(r.body, "99999999999999999999") || r.contentType == asApply && strings.Contains(r.body, "1e99"))
	})
	row("Logs, exec, attach and port-forward of a Pod on a missing node", func(r request, d difference) bool {
		return strings.Contains(r.path, "/pods/lost/") && (d.path == "body.message" || d.path == "body.details.kind")
	})
	row("These messages differ:", func(r request, d difference) bool {
		if strings.HasSuffix(d.path, "message") {
			said, _ := json.Marshal(d.ours)
			return ownWords.Match(said)
		}
		return d.path == "body.details" && (r.accept != "" || r.method == "PATCH") && d.ours == missing
	})
	return all
}

var (
	ownWords = regexp.MustCompile(`cannot be handled as|does not match the expected API version|error decoding patch|patch: Invalid value|` +
		`^"Invalid value: .*apiVersion|strconv.ParseUint|media types`)
	// Upstream names any of several rules of the same cost.
	contributes = regexp.MustCompile(`^body\.details\.causes\[\d+\]\.field .*openAPIV3Schema|^body\.message .*contributed to estimated rule cost total`)
	crdV1beta1  = regexp.MustCompile(`"customresourcedefinitions".*"version":"v1beta1"`)
	migrated    = regexp.MustCompile(`\.(columnDefinitions|cells|status|managedFields)\b`)
	looked      = regexp.MustCompile(`metadata\.(finalizers$|managedFields\b)|status\.conditions`)
)

// scaledTwice: kube-apiserver has an entry more.
func scaledTwice(d difference) bool {
	ours, theirs, ok := both[[]any](d.ours, d.theirs)
	return ok && len(theirs) == len(ours)+1
}

// ofStatus: what kube-apiserver's loops write to the status of a CRD, and that they have.
func ofStatus(d difference) bool {
	return strings.HasPrefix(d.path, "body.status.") || strings.HasPrefix(d.path, "body.metadata.managedFields")
}

func aboutCRD(r request) bool { return strings.HasPrefix(r.path, crdPath) }
