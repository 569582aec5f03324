package crd

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// crdStatus computes the status of a CRD while the CRD is written. A new CRD is therefore established as soon as its
// create returns. In upstream, four controllers write this status later: for names, establishing, approval and
// non-structural schemas.
type crdStatus struct {
	catalog  func(context.Context) (*catalog.Catalog, error)
	now      func() time.Time
	managers merge.ManagedFields
}

func (s crdStatus) prepareCreate(ctx context.Context, obj object.Tree) error {
	obj["spec"] = crdvalidation.RoundTrip(object.TreeAt(obj, "spec"))
	status := object.Tree{"acceptedNames": object.Tree{"kind": "", "plural": ""}, "conditions": nil}
	addStoredVersion(status, obj)
	return s.complete(ctx, obj, status, true)
}

// prepareUpdate completes the status again on each update. Each update can therefore accept names that have become
// free. Writes of /status change the status, except for the accepted names, which only the server changes.
func (s crdStatus) prepareUpdate(ctx context.Context, obj, old object.Tree, sub string) error {
	if sub != "" {
		status := object.Copy(object.TreeAt(obj, "status"))
		if names, ok := object.TreeAt(old, "status")["acceptedNames"]; ok {
			status["acceptedNames"] = names
		} else {
			delete(status, "acceptedNames")
		}
		return s.complete(ctx, obj, status, !sameNames(requestedNames(obj), acceptedNames(status)))
	}
	obj["spec"] = crdvalidation.RoundTrip(object.TreeAt(obj, "spec"))
	status := object.Copy(object.TreeAt(old, "status"))
	addStoredVersion(status, obj)
	if !object.Equal(obj["spec"], old["spec"]) {
		object.SetGeneration(obj, object.Generation(old)+1)
	}
	return s.complete(ctx, obj, status, true)
}

func requestedNames(crd object.Tree) resource.Names {
	return namesOf(object.TreeAt(crd, "spec", "names"))
}

func acceptedNames(status object.Tree) resource.Names {
	return namesOf(object.TreeAt(status, "acceptedNames"))
}

// addStoredVersion adds the storage version to status.storedVersions.
func addStoredVersion(status, obj object.Tree) {
	stored := object.Strings(status, "storedVersions")
	for _, version := range object.TreesAt(obj, "spec", "versions") {
		if name := object.String(version, "name"); object.IsTrue(version, "storage") {
			if !slices.Contains(stored, name) {
				object.SetStrings(status, "storedVersions", append(stored, name))
			}
			return
		}
	}
}

// complete sets the server's conditions in status and makes it the status of obj. If checkNames is true, it also
// checks the names for conflicts and sets the accepted names.
func (s crdStatus) complete(ctx context.Context, obj, status object.Tree, checkNames bool) error {
	before := object.Copy(status)
	obj["status"] = status
	w := statusWriter{status: status, generation: object.Generation(obj), now: s.now()}
	w.approval(obj)
	if checkNames {
		if err := s.acceptNames(ctx, obj, w); err != nil {
			return err
		}
	}
	w.establish(obj)
	w.nonStructural(obj)
	if checkNames {
		w.observe()
	}
	return s.recordManagers(obj, before)
}

// acceptNames accepts the requested names of obj that are free, and sets the condition NamesAccepted.
func (s crdStatus) acceptNames(ctx context.Context, obj object.Tree, w statusWriter) error {
	a := allocation{requested: requestedNames(obj), accepted: acceptedNames(w.status)}
	if !sameNames(a.requested, a.accepted) {
		catalog, err := s.load(ctx)
		if err != nil {
			return err
		}
		a.conflicts = nameConflicts(catalog, obj, a.requested)
		a.run()
		w.status["acceptedNames"] = treeOf(a.result)
	}
	if a.reason == "" {
		w.set("NamesAccepted", "True", "NoConflicts", "no conflicts found")
		return nil
	}
	w.set("NamesAccepted", "False", a.reason, a.message)
	if object.Condition(w.status, "Established") == nil {
		w.set("Established", "False", "NotAccepted", "not all names are accepted")
	}
	return nil
}

func (s crdStatus) load(ctx context.Context) (*catalog.Catalog, error) {
	if s.catalog == nil {
		return nil, errNoCatalog
	}
	catalog, err := s.catalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up the names of other kinds: %w", err)
	}
	return catalog, nil
}

// statusWriter modifies the conditions of status in place.
type statusWriter struct {
	status     object.Tree
	generation int64
	now        time.Time
}

// set writes a condition. The transition time changes only if the status of the condition changes.
func (w statusWriter) set(name, value, reason, message string) {
	c := object.Condition(w.status, name)
	if c == nil {
		c = object.Tree{"type": name}
		w.status["conditions"] = append(object.ListAt(w.status, "conditions"), c)
	}
	if object.String(c, "status") != value || object.String(c, "lastTransitionTime") == "" {
		c["lastTransitionTime"] = w.now.UTC().Format(time.RFC3339)
	}
	c["status"], c["reason"], c["message"] = value, reason, message
}

// observed lists the conditions that the server derives from the spec.
var observed = []string{"NamesAccepted", "Established", "KubernetesAPIApprovalPolicyConformant", "NonStructuralSchema"}

// observe sets the observedGeneration of the status, and of the server's own conditions.
func (w statusWriter) observe() {
	if w.generation == 0 {
		return
	}
	w.status["observedGeneration"] = w.generation
	for _, name := range observed {
		if c := object.Condition(w.status, name); c != nil {
			c["observedGeneration"] = w.generation
		}
	}
}

// establish sets the condition Established to True when the names are accepted. It never resets the condition.
func (w statusWriter) establish(obj object.Tree) {
	switch {
	case object.HasCondition(w.status, "Established") || !object.HasCondition(w.status, "NamesAccepted"):
	case !hasUsableCABundle(obj):
		w.set("Established", "False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
	default:
		w.set("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
	}
}

func hasUsableCABundle(obj object.Tree) bool {
	bundle := object.StringAt(obj, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	pem, err := base64.StdEncoding.DecodeString(bundle)
	return err == nil && crdvalidation.CheckCABundle(pem) == nil
}

// approvalReasons holds the reasons of the condition KubernetesAPIApprovalPolicyConformant.
var approvalReasons = map[apihelpers.APIApprovalState]string{
	apihelpers.APIApproved:         "ApprovedAnnotation",
	apihelpers.APIApprovalBypassed: "UnapprovedAnnotation",
	apihelpers.APIApprovalMissing:  "MissingAnnotation",
	apihelpers.APIApprovalInvalid:  "InvalidAnnotation",
}

// approval sets the condition KubernetesAPIApprovalPolicyConformant of a CRD in a protected group of Kubernetes.
func (w statusWriter) approval(obj object.Tree) {
	if !apihelpers.IsProtectedCommunityGroup(object.StringAt(obj, "spec", "group")) {
		return
	}
	annotation, _ := object.Annotation(obj, apiextensionsv1.KubeAPIApprovedAnnotation)
	state, message := apihelpers.GetAPIApprovalState(
		map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: annotation})
	value := "False"
	if state == apihelpers.APIApproved {
		value = "True"
	}
	w.set("KubernetesAPIApprovalPolicyConformant", value, approvalReasons[state], message)
}

// nonStructural sets or removes the condition NonStructuralSchema. Validation accepts a non-structural schema only in
// a CRD with preserveUnknownFields: true. A new CRD can have this setting only in v1beta1.
func (w statusWriter) nonStructural(obj object.Tree) {
	const name = "NonStructuralSchema"
	if object.Condition(w.status, name) == nil && !object.IsTrue(obj, "spec", "preserveUnknownFields") {
		return
	}
	reason, message := w.violations(obj)
	switch reason {
	case "":
		conditions := slices.DeleteFunc(object.ListAt(w.status, "conditions"), func(c any) bool {
			t, _ := c.(object.Tree)
			return object.String(t, "type") == name
		})
		w.status["conditions"] = conditions
	case "StructuralError":
		w.set(name, "Unknown", reason, message)
	default:
		w.set(name, "True", reason, message)
	}
}

func (w statusWriter) violations(obj object.Tree) (reason, message string) {
	crd, err := crdvalidation.FromTree(obj)
	if err != nil {
		return "", ""
	}
	var errs field.ErrorList
	if p := crd.Spec.PreserveUnknownFields; p != nil && *p {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i, v := range crd.Spec.Versions {
		at := v.Schema
		if crd.Spec.Validation != nil {
			at = crd.Spec.Validation
		}
		root := crd.Root(at)
		if root == nil {
			continue
		}
		found, unsupported := root.Violations(
			field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"))
		if unsupported != nil {
			return "StructuralError", fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name,
				unsupported)
		}
		errs = append(errs, found...)
	}
	if len(errs) == 0 {
		return "", ""
	}
	return "Violations", errs.ToAggregate().Error()
}

var errNoCatalog = errors.New("no catalog is configured for the built-in kinds")
