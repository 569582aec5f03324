package kinds

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

	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// crdStatus works out the status of CRDs in the course of the write that gives cause for it, from
// the catalog, so that a CRD is established when its create returns. What upstream's naming,
// establishing, approval and non-structural controllers would write later, it writes at once.
type crdStatus struct {
	catalog  func(context.Context) (*resource.Catalog, error)
	now      func() time.Time
	managers merge.ManagedFields
}

func (s crdStatus) prepareCreate(ctx context.Context, obj object.Tree) error {
	obj["spec"] = crdvalidation.RoundTrip(tree(obj, "spec"))
	status := object.Tree{"acceptedNames": object.Tree{"kind": "", "plural": ""}, "conditions": nil}
	addStoredVersion(status, obj)
	return s.complete(ctx, obj, status, true)
}

// prepareUpdate lets only /status write the status, which is then decided anew: a later touch gives a CRD
// the names that have become free. What a client writes into the status stays, but for the names that the CRD has: those are
// no client's to say.
func (s crdStatus) prepareUpdate(ctx context.Context, obj, old object.Tree, sub string) error {
	if sub != "" {
		status := object.Copy(tree(obj, "status"))
		copyField(status, tree(old, "status"), "acceptedNames")
		return s.complete(ctx, obj, status, !sameNames(namesOf(tree(obj, "spec", "names")), acceptedNames(status)))
	}
	obj["spec"] = crdvalidation.RoundTrip(tree(obj, "spec"))
	status := object.Copy(tree(old, "status"))
	addStoredVersion(status, obj)
	if !object.Equal(obj["spec"], old["spec"]) {
		object.SetGeneration(obj, object.Generation(old)+1)
	}
	return s.complete(ctx, obj, status, true)
}

func acceptedNames(status object.Tree) resource.Names { return namesOf(tree(status, "acceptedNames")) }

// addStoredVersion notes the storage version among those that objects may be stored at.
func addStoredVersion(status, obj object.Tree) {
	stored := object.Strings(status, "storedVersions")
	for _, v := range list(obj, "spec", "versions") {
		version, _ := v.(object.Tree)
		if name := text(version, "name"); isTrue(version, "storage") {
			if !slices.Contains(stored, name) {
				object.SetStrings(status, "storedVersions", append(stored, name))
			}
			return
		}
	}
}

// complete completes the status, which becomes obj's. names says that the names are to be judged.
func (s crdStatus) complete(ctx context.Context, obj, status object.Tree, names bool) error {
	before := object.Copy(status)
	obj["status"] = status
	w := statusWriter{status: status, generation: object.Generation(obj), now: s.now()}
	w.approval(obj)
	if names {
		if err := s.acceptNames(ctx, obj, w); err != nil {
			return err
		}
	}
	w.establish(obj)
	w.nonStructural(obj)
	if names {
		w.observe()
	}
	return s.recordManagers(obj, before)
}

// acceptNames gives obj the names that it asks for, as far as they are free.
func (s crdStatus) acceptNames(ctx context.Context, obj object.Tree, w statusWriter) error {
	a := allocation{requested: namesOf(tree(obj, "spec", "names")), accepted: acceptedNames(w.status)}
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
	if condition(w.status, "Established") == nil {
		w.set("Established", "False", "NotAccepted", "not all names are accepted")
	}
	return nil
}

func (s crdStatus) load(ctx context.Context) (*resource.Catalog, error) {
	if s.catalog == nil {
		return nil, errNoCatalog
	}
	catalog, err := s.catalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up the names of other kinds: %w", err)
	}
	return catalog, nil
}

// statusWriter changes the conditions of a status that it owns.
type statusWriter struct {
	status     object.Tree
	generation int64
	now        time.Time
}

func condition(status object.Tree, name string) object.Tree {
	for _, c := range list(status, "conditions") {
		if t, _ := c.(object.Tree); text(t, "type") == name {
			return t
		}
	}
	return nil
}

func isConditionTrue(status object.Tree, name string) bool {
	return text(condition(status, name), "status") == "True"
}

// set writes a condition; its transition time stays while its status does.
func (w statusWriter) set(name, value, reason, message string) {
	c := condition(w.status, name)
	if c == nil {
		c = object.Tree{"type": name}
		w.status["conditions"] = append(list(w.status, "conditions"), c)
	}
	if text(c, "status") != value || text(c, "lastTransitionTime") == "" {
		c["lastTransitionTime"] = rfc3339(w.now)
	}
	c["status"], c["reason"], c["message"] = value, reason, message
}

// observed are the conditions that the server judges the spec by.
var observed = []string{"NamesAccepted", "Established", "KubernetesAPIApprovalPolicyConformant", "NonStructuralSchema"}

// observe notes that the status and the conditions that the server keeps are about this generation of the spec.
func (w statusWriter) observe() {
	if w.generation == 0 {
		return
	}
	w.status["observedGeneration"] = w.generation
	for _, name := range observed {
		if c := condition(w.status, name); c != nil {
			c["observedGeneration"] = w.generation
		}
	}
}

// establish sets Established once the names are accepted; it never takes it back.
func (w statusWriter) establish(obj object.Tree) {
	switch {
	case isConditionTrue(w.status, "Established") || !isConditionTrue(w.status, "NamesAccepted"):
	case !hasUsableCABundle(obj):
		w.set("Established", "False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
	default:
		w.set("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
	}
}

func hasUsableCABundle(obj object.Tree) bool {
	pem, err := base64.StdEncoding.DecodeString(text(obj, "spec", "conversion", "webhook", "clientConfig", "caBundle"))
	return err == nil && crdvalidation.CheckCABundle(pem) == nil
}

// approvalReasons are those of the condition KubernetesAPIApprovalPolicyConformant.
var approvalReasons = map[apihelpers.APIApprovalState]string{
	apihelpers.APIApproved:         "ApprovedAnnotation",
	apihelpers.APIApprovalBypassed: "UnapprovedAnnotation",
	apihelpers.APIApprovalMissing:  "MissingAnnotation",
	apihelpers.APIApprovalInvalid:  "InvalidAnnotation",
}

// approval is the condition of a CRD in a group of Kubernetes.
func (w statusWriter) approval(obj object.Tree) {
	if !apihelpers.IsProtectedCommunityGroup(text(obj, "spec", "group")) {
		return
	}
	annotation, _ := object.Annotation(obj, apiextensionsv1.KubeAPIApprovedAnnotation)
	state, message := apihelpers.GetAPIApprovalState(map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: annotation})
	value := "False"
	if state == apihelpers.APIApproved {
		value = "True"
	}
	w.set("KubernetesAPIApprovalPolicyConformant", value, approvalReasons[state], message)
}

// nonStructural keeps the condition of a CRD that preserves unknown fields, as only the legacy form can ask for. No
// other has a schema that is not structural: validation refuses it.
func (w statusWriter) nonStructural(obj object.Tree) {
	const name = "NonStructuralSchema"
	if condition(w.status, name) == nil && !isTrue(obj, "spec", "preserveUnknownFields") {
		return
	}
	reason, message := w.violations(obj)
	switch reason {
	case "":
		conditions := slices.DeleteFunc(list(w.status, "conditions"), func(c any) bool {
			t, _ := c.(object.Tree)
			return text(t, "type") == name
		})
		w.status["conditions"] = conditions
	case "StructuralError":
		w.set(name, "Unknown", reason, message)
	default:
		w.set(name, "True", reason, message)
	}
}

func (w statusWriter) violations(obj object.Tree) (reason, message string) {
	crd, err := parseCRD(obj)
	if err != nil {
		return "", ""
	}
	var errs field.ErrorList
	if p := crd.Spec.PreserveUnknownFields; p != nil && *p {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range crd.Spec.Versions {
		v := crd.Spec.Versions[i].Schema
		if crd.Spec.Validation != nil {
			v = crd.Spec.Validation
		}
		if v == nil || v.OpenAPIV3Schema == nil {
			continue
		}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		found, unsupported := crdvalidation.NonStructural(v.OpenAPIV3Schema, path)
		if unsupported != nil {
			return "StructuralError", fmt.Sprintf("failed to check validation schema for version %s: %v", crd.Spec.Versions[i].Name, unsupported)
		}
		errs = append(errs, found...)
	}
	if len(errs) == 0 {
		return "", ""
	}
	return "Violations", errs.ToAggregate().Error()
}

var errNoCatalog = errors.New("the built-in kinds were made without a catalog")
