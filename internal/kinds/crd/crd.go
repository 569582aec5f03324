// Package crd defines the kind CustomResourceDefinition: its versions v1 and v1beta1, and the status that is computed
// in each write of a CRD. Package crdvalidation validates the spec.
package crd

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Config holds the dependencies and settings of CustomResourceDefinition.
type Config struct {
	Catalog func(context.Context) (*catalog.Catalog, error) // nil means that writes of CRDs fail
	Now     func() time.Time
	// NoFieldSelectors drops selectableFields from CRDs, except in an update of a CRD that already has some.
	NoFieldSelectors bool
}

// Definition returns the Definition of CustomResourceDefinition, without item limits.
func Definition(c Config) *resource.Definition {
	d := &resource.Definition{
		Group: apiextensionsv1.GroupName,
		Names: resource.Names{
			Plural: "customresourcedefinitions", Singular: "customresourcedefinition",
			Kind: "CustomResourceDefinition", ListKind: "CustomResourceDefinitionList",
			ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		},
		Prefix: definition.CRDPrefix,
		Verbs:  []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
	}
	d.Behavior = behavior(c, d)
	d.Storage = crdVersion(d, apiextensionsv1.SchemeGroupVersion, &apiextensionsv1.CustomResourceDefinition{},
		&apiextensionsv1.CustomResourceDefinitionList{})
	d.Storage.Validate = validateCRD
	d.Storage.Type.Decoder = crdvalidation.Decode
	d.Versions = []*resource.Version{d.Storage, legacyCRDs(d)}
	return d
}

// crdVersion returns a version of CustomResourceDefinition with the Go types of obj and list.
func crdVersion(d *resource.Definition, gv schema.GroupVersion, obj, list runtime.Object) *resource.Version {
	g := &resource.GoType{New: define.Constructor(reflect.TypeOf(obj).Elem()),
		NewList: define.Constructor(reflect.TypeOf(list).Elem()), OpenAPI: openapi.GetOpenAPIDefinitions}
	return &resource.Version{
		Definition: d, GroupVersion: gv, APIVersion: gv.String(), Served: true, Status: true,
		Columns: crdColumns(), Type: g, Parseable: sync.OnceValues(g.Parseable),
	}
}

func behavior(c Config, d *resource.Definition) resource.Behavior {
	s := crdStatus{catalog: c.Catalog, now: c.Now, managers: crdManagedFields(d)}
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
	for _, version := range object.TreesAt(obj, "spec", "versions") {
		delete(version, "selectableFields")
	}
}

func hasSelectableFields(obj object.Tree) bool {
	return slices.ContainsFunc(object.TreesAt(obj, "spec", "versions"), func(version object.Tree) bool {
		return version["selectableFields"] != nil
	})
}

// crdColumns returns the columns for kubectl get crd. Name and Created At exist in all releases. The columns for -o
// wide are those that v1.37 added.
func crdColumns() []resource.Column {
	created := resource.AgeColumn("date")
	created.Name, created.Age = "Created At", false
	return []resource.Column{
		resource.NameColumn(),
		wide(define.PathColumn("Scope", "Cluster/Namespaced", "spec", "scope")),
		wide(define.CellColumn("Versions", "Served versions", servedVersions)),
		created,
		wide(define.PathColumn("Group", "API group", "spec", "group")),
		wide(define.PathColumn("Kind", "CustomResource kind", "spec", "names", "kind")),
		wide(define.CellColumn("ShortNames", "Short names", func(t object.Tree) any {
			return strings.Join(object.Strings(object.TreeAt(t, "spec", "names"), "shortNames"), ",")
		})),
		wide(resource.Column{Name: "Established", Type: "boolean", Description: "Established status",
			Cell: func(t object.Tree) any {
				return object.HasCondition(object.TreeAt(t, "status"), "Established")
			}}),
	}
}

// wide returns c with a priority that makes kubectl get show the column only with -o wide.
func wide(c resource.Column) resource.Column {
	c.Priority = 1
	return c
}

func servedVersions(t object.Tree) any {
	var all []string
	for _, version := range object.TreesAt(t, "spec", "versions") {
		if !object.IsTrue(version, "served") {
			continue
		}
		name := object.String(version, "name")
		if object.IsTrue(version, "storage") {
			name += "(storage)"
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// defaultCRD sets the defaults of apiextensions.k8s.io/v1, as upstream's SetDefaults_CustomResourceDefinition does.
func defaultCRD(obj object.Tree) {
	spec := object.EnsureTree(obj, "spec")
	names := object.EnsureTree(spec, "names")
	kind := object.String(names, "kind")
	if object.String(names, "singular") == "" {
		object.SetString(names, "singular", strings.ToLower(kind))
	}
	if object.String(names, "listKind") == "" && kind != "" {
		names["listKind"] = kind + "List"
	}
	if object.TreeAt(spec, "conversion") == nil {
		spec["conversion"] = object.Tree{"strategy": "None"}
	}
	if conversion := object.TreeAt(spec, "conversion"); isEmptyWebhook(object.TreeAt(conversion, "webhook")) {
		delete(conversion, "webhook")
	}
	if service := object.TreeAt(spec, "conversion", "webhook", "clientConfig", "service"); service != nil &&
		service["port"] == nil {
		service["port"] = int64(443)
	}
}

// isEmptyWebhook reports whether a conversion webhook has no fields. Upstream does not retain such a webhook, because
// its internal version stores the webhook's fields next to the strategy.
func isEmptyWebhook(webhook object.Tree) bool {
	return webhook["clientConfig"] == nil && webhook["conversionReviewVersions"] == nil
}

// validateCRD validates obj, a CRD that is about to be stored. form is the object that the client sent. The spec is
// validated in the sent form, because the stored form has no empty fields.
func validateCRD(form, obj, old object.Tree, sub string) field.ErrorList {
	sent := maps.Clone(obj)
	if sub == "" {
		sent["spec"] = form["spec"]
	}
	crd, err := crdvalidation.FromTree(sent)
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
	oldCRD, err := crdvalidation.FromTree(old)
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
	status := object.Copy(object.EnsureTree(obj, "status"))
	if object.Condition(status, "Terminating") != nil {
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
