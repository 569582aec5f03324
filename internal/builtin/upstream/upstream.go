// Package upstream is the built-in kinds as k8s.io/kubernetes defines them: a table of Go types, defaults,
// conversions and strategies, and the steps of a write that are made of them. It stores nothing and serves nothing.
//
// Three things that come with k8s.io/kubernetes are one for the whole process, however many servers run in it:
// the scheme (legacyscheme, filled when the program starts and never changed), the feature gates (a gate that is
// set is set for every server, so this package never sets one), and the registry of upstream's metrics (counts of
// all servers are added up there; Trellis does not serve it). All else is per call of Kinds.
package upstream

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/utils/clock"
)

// Config is what some kinds ask the server that they are written to. The zero Config answers nothing and allows nothing.
type Config struct {
	// Authorizer says whether the writer of a policy may read its parameters, the writer of a claim may use a
	// device, and the writer of a certificate may sign. nil: nobody may.
	Authorizer authorizer.UnconditionalAuthorizer
	// Resource is the resource that serves a kind; nil: none is known.
	Resource func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
	// ValidatingPolicy and MutatingPolicy are the policies that bindings name; nil: there are none.
	ValidatingPolicy func(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error)
	MutatingPolicy   func(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error)
	// Namespace is a namespace; nil: there are none.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	Clock     clock.PassiveClock // nil: the real one
}

// withDefaults fills in what c leaves out: the strategies call all of it without looking.
func (c Config) withDefaults() Config {
	if c.Authorizer == nil {
		c.Authorizer = nobody{}
	}
	if c.Resource == nil {
		c.Resource = func(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
			return schema.GroupVersionResource{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
		}
	}
	if c.ValidatingPolicy == nil {
		c.ValidatingPolicy = none[admissionregistration.ValidatingAdmissionPolicy](admissionregistration.Resource("validatingadmissionpolicies"))
	}
	if c.MutatingPolicy == nil {
		c.MutatingPolicy = none[admissionregistration.MutatingAdmissionPolicy](admissionregistration.Resource("mutatingadmissionpolicies"))
	}
	if c.Namespace == nil {
		c.Namespace = none[corev1.Namespace](corev1.Resource("namespaces"))
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

// none is a reader that finds nothing.
func none[T any](what schema.GroupResource) func(context.Context, string) (*T, error) {
	return func(_ context.Context, name string) (*T, error) { return nil, apierrors.NewNotFound(what, name) }
}

// nobody may do anything.
type nobody struct{}

func (nobody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}
