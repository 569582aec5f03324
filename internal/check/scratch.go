package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// scratch is the server's engine with an empty store in memory.
type scratch struct {
	engine         *engine.Engine
	namespaces     map[string]bool
	webhookSkipped bool // an object needed a conversion webhook, which was not called
}

func newScratch(ctx context.Context) (*scratch, error) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		return nil, err
	}
	s := &scratch{namespaces: map[string]bool{}}
	s.engine, err = engine.Open(ctx, engine.Config{
		Store: store, Webhook: s.skipConversion,
		Kinds: func(live *catalog.Live) []*resource.Definition {
			return kinds.Definitions(kinds.Config{Catalog: live.Current, Head: store.Head})
		},
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return s, nil
}

// skipConversion is called in place of conversion webhooks. It only changes apiVersion.
func (s *scratch) skipConversion(_ context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree,
	error) {
	s.webhookSkipped = true
	out := make([]object.Tree, len(objects))
	for i, t := range objects {
		out[i] = maps.Clone(t)
		out[i]["apiVersion"] = to.GroupVersion.String()
	}
	return out, nil
}

func (s *scratch) close() {
	s.engine.Close()
	_ = s.engine.Store.Close() // the store is in memory
}

// create creates the object t. It returns the stored object and the warnings for the client.
func (s *scratch) create(ctx context.Context, t object.Tree) (object.Tree, []string, error) {
	target, err := s.target(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	// only a server sets these fields, and manifests that were read from a server contain them
	for _, k := range []string{"resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "generation",
		"managedFields", "selfLink"} {
		delete(object.Metadata(t), k)
	}
	caller, warnings := newCaller(target.Version)
	// Other objects depend on the objects of two kinds. Several other objects in the files may have the same name.
	kind := target.Version.Definition.Names.Kind
	caller.DryRun = kind != "CustomResourceDefinition" && kind != "Namespace"
	o, err := s.engine.Create(ctx, target, verb.Body{Tree: t}, caller)
	if err != nil {
		return nil, *warnings, err
	}
	created, err := o.Packed().Tree(o.Revision)
	return created, *warnings, err
}

// update replaces the stored object that has the same name as t.
func (s *scratch) update(ctx context.Context, t object.Tree) ([]string, error) {
	target, err := s.target(ctx, t)
	if err != nil {
		return nil, err
	}
	target.Name = object.Name(t)
	current, err := s.engine.Get(ctx, target, "")
	if err != nil {
		return nil, err
	}
	object.SetResourceVersion(t, fmt.Sprint(current.Revision))
	caller, warnings := newCaller(target.Version)
	_, _, err = s.engine.Update(ctx, target, verb.Body{Tree: t}, caller)
	return *warnings, err
}

// newCaller returns a caller for one request at version v, and a pointer to the warnings for that request.
func newCaller(v *resource.Version) (verb.Caller, *[]string) {
	var warnings []string
	if v.Deprecated {
		warnings = append(warnings, v.DeprecationWarning)
	}
	return verb.Caller{
		User: &user.DefaultInfo{Name: "check"}, FieldManager: "check", Validation: metav1.FieldValidationWarn,
		Warn: func(text string) { warnings = append(warnings, text) },
	}, &warnings
}

// target returns the endpoint of t's kind. It creates the namespace of t if necessary.
func (s *scratch) target(ctx context.Context, t object.Tree) (verb.Target, error) {
	catalog, err := s.engine.Live.Current(ctx)
	if err != nil {
		return verb.Target{}, err
	}
	gvk := schema.FromAPIVersionAndKind(object.String(t, "apiVersion"), object.String(t, "kind"))
	for d := range catalog.Definitions() {
		if d.Names.Kind != gvk.Kind || d.Group != gvk.Group {
			continue
		}
		v := catalog.Find(gvk.Group, gvk.Version, d.Names.Plural)
		if v == nil {
			return verb.Target{}, unservedVersion{gvk, d}
		}
		target := verb.Target{Version: v}
		if d.Namespaced {
			target.Namespace = cmp.Or(object.Namespace(t), metav1.NamespaceDefault)
			err = s.ensureNamespace(ctx, target.Namespace)
		}
		return target, err
	}
	return verb.Target{}, unknownKind{gvk.GroupKind()}
}

// unservedVersion is the error for objects at a version that their kind does not serve.
type unservedVersion struct {
	schema.GroupVersionKind
	definition *resource.Definition
}

func (u unservedVersion) Error() string {
	var served []string
	for _, v := range u.definition.Versions {
		if v.Served {
			served = append(served, v.GroupVersion.Version)
		}
	}
	return fmt.Sprintf("version %q of %s is not served (served versions: %s)", u.Version, u.GroupKind(),
		cmp.Or(strings.Join(served, ", "), "none"))
}

// unknownKind is the error for objects of an unknown kind.
type unknownKind struct{ schema.GroupKind }

func (k unknownKind) Error() string {
	return "unknown kind " + k.String()
}

func (s *scratch) ensureNamespace(ctx context.Context, name string) error {
	if s.namespaces[name] {
		return nil
	}
	_, _, err := s.create(ctx, object.Tree{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object.Tree{"name": name}})
	if err == nil || apierrors.IsAlreadyExists(err) {
		s.namespaces[name] = true
		return nil
	}
	return err
}
