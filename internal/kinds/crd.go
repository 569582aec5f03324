package kinds

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// customResourceDefinitions returns the Definition of CustomResourceDefinition.
func customResourceDefinitions(c Config) *resource.Definition {
	d := &resource.Definition{
		Group: apiextensionsv1.GroupName,
		Names: resource.Names{
			Plural: "customresourcedefinitions", Singular: "customresourcedefinition",
			Kind: "CustomResourceDefinition", ListKind: "CustomResourceDefinitionList",
			ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		},
		Prefix:     resource.CRDPrefix,
		Verbs:      []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		Behavior:   crds(c),
		ItemLimits: limits("CustomResourceDefinition"),
	}
	d.Storage = crdVersion(d, apiextensionsv1.SchemeGroupVersion, &apiextensionsv1.CustomResourceDefinition{},
		&apiextensionsv1.CustomResourceDefinitionList{})
	d.Storage.Validate = validateCRD
	d.Storage.Type.Decoder = crdvalidation.Decode
	d.Versions = []*resource.Version{d.Storage, legacyCRDs(d)}
	return d
}

// crdVersion returns a version of CustomResourceDefinition with the Go types of obj and list.
func crdVersion(d *resource.Definition, gv schema.GroupVersion, obj, list runtime.Object) *resource.Version {
	g := &resource.GoType{New: constructor(reflect.TypeOf(obj).Elem()),
		NewList: constructor(reflect.TypeOf(list).Elem()), OpenAPI: openapi.GetOpenAPIDefinitions}
	return &resource.Version{
		Definition: d, GroupVersion: gv, APIVersion: gv.String(), Served: true, Status: true,
		Columns: crdColumns(), Type: g, Parseable: sync.OnceValues(g.Parseable),
	}
}

func crds(c Config) resource.Behavior {
	s := crdStatus{catalog: c.Catalog, now: c.Now, managers: crdManagedFields()}
	b := resource.Behavior{
		Default:       defaultCRD,
		PrepareCreate: s.prepareCreate,
		PrepareUpdate: s.prepareUpdate,
		Warnings:      crdWarnings,
		Guards:        s.guards,
		BeforeDelete:  s.beforeDelete,
		AtomicLists:   []string{"spec.versions"},

		PreconditionFailed: "precondition failed", // upstream's message for namespaces starts with a capital letter
	}
	if c.NoFieldSelectors {
		b.PrepareCreate = func(ctx context.Context, obj object.Tree) error {
			dropSelectableFields(obj)
			return s.prepareCreate(ctx, obj)
		}
		b.PrepareUpdate = func(ctx context.Context, obj, old object.Tree, sub string) error {
			if !hasSelectableFields(old) {
				dropSelectableFields(obj)
			}
			return s.prepareUpdate(ctx, obj, old, sub)
		}
	}
	return b
}

func dropSelectableFields(obj object.Tree) {
	for _, v := range list(obj, "spec", "versions") {
		version, _ := v.(object.Tree)
		delete(version, "selectableFields")
	}
}

func hasSelectableFields(obj object.Tree) bool {
	return slices.ContainsFunc(list(obj, "spec", "versions"), func(v any) bool {
		version, _ := v.(object.Tree)
		return version["selectableFields"] != nil
	})
}

// crdColumns returns the columns for kubectl get crd. Name and Created At exist in all releases. The columns for -o
// wide are those that v1.37 added.
func crdColumns() []resource.Column {
	created := ageColumn()
	created.Name, created.Type, created.Age = "Created At", "date", false
	return []resource.Column{
		nameColumn(),
		wide(pathColumn("Scope", "Cluster/Namespaced", "spec", "scope")),
		wide(cellColumn("Versions", "Served versions", servedVersions)),
		created,
		wide(pathColumn("Group", "API group", "spec", "group")),
		wide(pathColumn("Kind", "CustomResource kind", "spec", "names", "kind")),
		wide(cellColumn("ShortNames", "Short names", func(t object.Tree) any {
			return strings.Join(object.Strings(tree(t, "spec", "names"), "shortNames"), ",")
		})),
		wide(resource.Column{Name: "Established", Type: "boolean", Description: "Established status",
			Cell: func(t object.Tree) any {
				return isConditionTrue(tree(t, "status"), "Established")
			}}),
	}
}

func servedVersions(t object.Tree) any {
	var all []string
	for _, v := range list(t, "spec", "versions") {
		version, _ := v.(object.Tree)
		if !isTrue(version, "served") {
			continue
		}
		name := text(version, "name")
		if isTrue(version, "storage") {
			name += "(storage)"
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// defaultCRD sets the defaults of apiextensions.k8s.io/v1, as upstream's SetDefaults_CustomResourceDefinition does.
func defaultCRD(obj object.Tree) {
	spec := child(obj, "spec")
	names := child(spec, "names")
	kind := text(names, "kind")
	if text(names, "singular") == "" {
		object.SetString(names, "singular", strings.ToLower(kind))
	}
	if text(names, "listKind") == "" && kind != "" {
		names["listKind"] = kind + "List"
	}
	if tree(spec, "conversion") == nil {
		spec["conversion"] = object.Tree{"strategy": "None"}
	}
	if conversion := tree(spec, "conversion"); isEmptyWebhook(tree(conversion, "webhook")) {
		delete(conversion, "webhook")
	}
	if service := tree(spec, "conversion", "webhook", "clientConfig", "service"); service != nil &&
		service["port"] == nil {
		service["port"] = int64(443)
	}
}

// isEmptyWebhook reports whether a conversion webhook has no fields. Upstream does not retain such a webhook, because
// its internal version stores the webhook's fields next to the strategy.
func isEmptyWebhook(webhook object.Tree) bool {
	return webhook["clientConfig"] == nil && webhook["conversionReviewVersions"] == nil
}

// parseCRD converts a CRD to the type that is validated.
func parseCRD(t object.Tree) (crdvalidation.CRD, error) {
	return crdvalidation.FromTree(t)
}

// validateCRD validates obj, a CRD that is about to be stored. form is the object that the client sent. The spec is
// validated in the sent form, because the stored form has no empty fields.
func validateCRD(form, obj, old object.Tree, sub string) field.ErrorList {
	sent := maps.Clone(obj)
	if sub == "" {
		sent["spec"] = form["spec"]
	}
	crd, err := parseCRD(sent)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validateInternalCRD(crd, obj, old, sub)
}

// validateInternalCRD validates a CRD. crd and obj are two forms of this CRD.
func validateInternalCRD(crd crdvalidation.CRD, obj, old object.Tree, sub string) field.ErrorList {
	errs := validateUpstream(crd, old, sub)
	if len(errs) == 0 {
		errs = scalePaths(obj, old)
	}
	if len(errs) == 0 {
		errs = declaredConversion(obj, old)
	}
	return errs
}

func validateUpstream(crd crdvalidation.CRD, old object.Tree, sub string) field.ErrorList {
	if old == nil {
		return crdvalidation.Create(crd)
	}
	oldCRD, err := parseCRD(old)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if sub == "status" {
		return crdvalidation.Status(crd, oldCRD)
	}
	return crdvalidation.Update(crd, oldCRD)
}

// beforeDelete marks a deleted CRD. A finalizer retains the CRD until its objects are deleted, and the condition
// Terminating prevents the creation of new objects. As in upstream, the generation does not change.
func (s crdStatus) beforeDelete(_ context.Context, obj object.Tree) error {
	status := object.Copy(child(obj, "status"))
	if condition(status, "Terminating") != nil {
		return nil
	}
	finalizers := object.Finalizers(obj)
	if !slices.Contains(finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		object.SetFinalizers(obj, append(slices.Clip(finalizers), apiextensionsv1.CustomResourceCleanupFinalizer))
	}
	if g := object.Generation(obj); g > 1 {
		object.SetGeneration(obj, g-1)
	}
	delete(object.Metadata(obj), "deletionGracePeriodSeconds")
	w := statusWriter{status: status, generation: object.Generation(obj), now: s.now()}
	w.set("Terminating", "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
	obj["status"] = status
	return nil
}

func rfc3339(t time.Time) string { return metav1.NewTime(t).UTC().Format(time.RFC3339) }
