package conformance_test

import (
	"encoding/json"
	"regexp"
	"strings"
)

// knownDifference is a difference that docs/compatibility.md lists.
type knownDifference struct {
	row     string // beginning of the row in docs/compatibility.md
	matches func(r request, d difference) bool
	used    bool // a response had this difference
}

// knownDifferences returns the rows of docs/compatibility.md that the requests of this package cover.
func knownDifferences() []*knownDifference {
	var all []*knownDifference
	row := func(begins string, of func(r request, d difference) bool) {
		all = append(all, &knownDifference{row: begins, matches: of})
	}
	row("`status.storedVersions` without the storage version", func(r request, _ difference) bool {
		return isCRDRequest(r) && r.body == `{"status":{"storedVersions":["v1beta1"]}}`
	})
	row("Deleting a CRD passes through", func(r request, d difference) bool {
		return isCRDRequest(r) && r.method == "DELETE" && strings.HasPrefix(d.path, "body.status.conditions")
	})
	row("A CRD's endpoint answers", func(r request, d difference) bool {
		return isCRDRequest(r) && r.method != "GET" && !strings.Contains(r.path, "dryRun") && isStatusField(d)
	})
	row("`status.acceptedNames` in the answer to a dry run", func(r request, d difference) bool {
		return isCRDRequest(r) && strings.Contains(r.path, "dryRun") && isStatusField(d)
	})
	row("`observedGeneration` in a CRD's status", func(r request, d difference) bool {
		return isCRDRequest(r) && strings.HasSuffix(d.path, "bservedGeneration")
	})
	row("`kubectl get crd`", func(r request, d difference) bool {
		return isCRDRequest(r) && r.accept == asTable && strings.HasPrefix(d.path, "body.columnDefinitions")
	})
	row("`apiextensions.k8s.io/v1beta1` CRDs", func(r request, d difference) bool {
		where := r.path + d.path + text(d.got)
		return strings.Contains(where, "apiextensions.k8s.io/v1beta1") ||
			strings.Contains(d.path, ".apiextensions.v1beta1.") ||
			strings.HasSuffix(d.path, ".versions") && crdV1beta1.MatchString(where)
	})
	row("The time of a write through `/scale`", func(_ request, d difference) bool {
		return strings.HasPrefix(d.path, "reviews") && strings.HasSuffix(d.path, ".time") && d.want == missing
	})
	row("A webhook's patch without changes", func(r request, d difference) bool {
		return r.body == annotate && r.path == orderPath+"/pods/p" && d.path == "reviews"
	})
	row("name, namespace, uid, time and audiences that kube-apiserver adds to a TokenRequest",
		func(r request, d difference) bool {
			return strings.HasSuffix(r.path, "/token") && strings.Contains(d.path, ".object.metadata.") &&
				d.got == missing
		})
	row("StorageVersionMigration, ClusterTrustBundle, DeviceTaintRule", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, ".storageVersionHash") && d.want != missing
	})
	row("StorageVersionMigrations are processed by kube-controller-manager", func(r request, d difference) bool {
		return strings.Contains(r.path, "storageversionmigrations") && migrationField.MatchString(d.path)
	})
	row("ServiceCIDRs get and lose their finalizer", func(r request, d difference) bool {
		return strings.Contains(r.path, "/servicecidrs") && (r.method == "DELETE" ||
			serviceCIDRField.MatchString(d.path))
	})
	row("A PATCH that removes the `apiVersion`", func(r request, _ difference) bool {
		return r.method == "PATCH" &&
			r.body == `{"apiVersion":null}`
	})
	row("A path that nothing serves", func(_ request, d difference) bool { return d.want == "404 page not found\n" })
	row("A write through `/scale` of the replicas", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, "managedFields") && hasExtraEntry(d)
	})
	row("The time of a write through `/scale`", func(_ request, d difference) bool {
		return strings.HasSuffix(d.path, ".time") && d.want == missing
	})
	row("`/openapi/v3` has the type", func(r request, d difference) bool {
		return r.path == "/openapi/v3" &&
			d.path == "contentType"
	})
	row("A POST, PUT or PATCH to `/apis`", func(r request, _ difference) bool {
		return r.path == "/apis" && r.method == "POST" || r.path == "/apis/apps" && r.method == "PUT"
	})
	row("An apply of an undecodable built-in kind", func(r request, _ difference) bool {
		return r.method == "PATCH" && (strings.Contains(r.body, "no base64") || r.contentType == asApply &&
			strings.Contains(r.body, `"replicas":2.5`))
	})
	row("A deleted namespace waits for unavailable APIServices", func(r request, d difference) bool {
		return strings.Contains(r.path, "/apiservices") && (strings.Contains(d.path, "NeverAvailable") ||
			strings.Contains(text(d.got), `"type":"NeverAvailable"`))
	})
	row("`maxLength`, `maxItems` and `maxProperties` inside `allOf`", func(r request, d difference) bool {
		return r.body == boundedByAllOf
	})
	row("`$ref` in a CRD with selectable fields", func(r request,
		_ difference) bool {
		return combinesRefAndSelectable(r)
	})
	row("Of equally expensive rules", func(r request, d difference) bool {
		return isCRDRequest(r) && expensiveRule.MatchString(d.path+" "+text(d.got)+text(d.want))
	})
	all[len(all)-1].used = true // this difference may be missing, because kube-apiserver chooses a rule at random
	row("A number too large for its field", func(r request, _ difference) bool {
		return r.method == "PATCH" && (r.contentType == asStrategic &&
			strings.Contains(r.body, "99999999999999999999") || r.contentType == asApply &&
			strings.Contains(r.body, "1e99"))
	})
	row("Logs, exec, attach and port-forward of a Pod on a missing node", func(r request, d difference) bool {
		return strings.Contains(r.path, "/pods/lost/") && (d.path == "body.message" || d.path == "body.details.kind")
	})
	row("These messages differ:", func(r request, d difference) bool {
		if strings.HasSuffix(d.path, "message") {
			message, _ := json.Marshal(d.got)
			return differingMessage.Match(message)
		}
		return d.path == "body.details" && (r.accept != "" || r.method == "PATCH") && d.got == missing
	})
	return all
}

var (
	differingMessage = regexp.MustCompile(`cannot be handled as|does not match the expected API version|error decoding patch|patch: Invalid value|` +
		`^"Invalid value: .*apiVersion|strconv.ParseUint|media types`)
	// If several rules have the same cost, upstream reports a random one.
	expensiveRule    = regexp.MustCompile(`^body\.details\.causes\[\d+\]\.field .*openAPIV3Schema|^body\.message .*contributed to estimated rule cost total`)
	crdV1beta1       = regexp.MustCompile(`"customresourcedefinitions".*"version":"v1beta1"`)
	migrationField   = regexp.MustCompile(`\.(columnDefinitions|cells|status|managedFields)\b`)
	serviceCIDRField = regexp.MustCompile(`metadata\.(finalizers$|managedFields\b)|status\.conditions`)
)

// hasExtraEntry reports whether kube-apiserver has one more entry in managedFields.
func hasExtraEntry(d difference) bool {
	got, want, ok := both[[]any](d.got, d.want)
	return ok && len(want) == len(got)+1
}

// isStatusField reports whether the difference is in a CRD's status or in managedFields, which kube-apiserver's CRD
// controllers write.
func isStatusField(d difference) bool {
	return strings.HasPrefix(d.path, "body.status.") || strings.HasPrefix(d.path, "body.metadata.managedFields")
}

// isCRDRequest reports whether r is a request for CRDs.
func isCRDRequest(r request) bool { return strings.HasPrefix(r.path, crdPath) }
