package upstream

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

var (
	born   = metav1.NewTime(time.Unix(1767323045, 0))
	tester = &user.DefaultInfo{Name: "tester", UID: "u", Groups: []string{"system:masters", "system:authenticated"}}
)

// steps is a write as a pipeline makes it, of the steps of this package.
type steps struct {
	t        testing.TB
	endpoint *Endpoint
	warnings []string
}

func (s *steps) context(verb, subresource string, obj map[string]any) context.Context {
	md, _ := obj["metadata"].(map[string]any)
	r := Request{Endpoint: s.endpoint, Verb: verb, Subresource: subresource, User: tester, Warn: s.warn}
	r.Name, _ = md["name"].(string)
	r.Namespace, _ = md["namespace"].(string)
	return r.Context(context.Background())
}

func (s *steps) warn(text string) { s.warnings = append(s.warnings, text) }

// read decodes a body.
func (s *steps) read(body []byte) Object {
	s.t.Helper()
	versioned, strict, err := s.endpoint.Type.Read(body)
	if err != nil || len(strict) > 0 {
		s.t.Fatalf("read %s: %v %v", body, strict, err)
	}
	s.endpoint.Default(versioned)
	obj, err := s.endpoint.Internal(versioned)
	if err != nil {
		s.t.Fatal(err)
	}
	return obj
}

// create stores what a POST sends.
func (s *steps) create(ctx context.Context, body []byte) ([]byte, error) {
	s.t.Helper()
	obj, c := s.read(body), s.endpoint.Kind.Create()
	obj.SetUID("uid")
	obj.SetCreationTimestamp(born)
	c.Prepare(ctx, obj)
	if errs := c.Validate(ctx, obj); len(errs) > 0 {
		return nil, apierrors.NewInvalid(s.endpoint.Kind.ErrorKind, obj.GetName(), errs)
	}
	s.warnings = append(s.warnings, c.Warnings(ctx, obj)...)
	c.Canonicalize(obj)
	return s.store(obj), nil
}

// update stores what a PUT makes of an object that is stored as old.
func (s *steps) update(ctx context.Context, subresource string, body, old []byte) ([]byte, error) {
	s.t.Helper()
	live, err := s.endpoint.Kind.Load(old)
	if err != nil {
		s.t.Fatal(err)
	}
	live.SetResourceVersion("7")
	u, ok := s.endpoint.Kind.Update(subresource)
	if !ok {
		s.t.Fatalf("no subresource %q", subresource)
	}
	obj := s.read(body)
	u.Prepare(ctx, obj, live)
	if errs := u.Validate(ctx, obj, live); len(errs) > 0 {
		return nil, apierrors.NewInvalid(s.endpoint.Kind.ErrorKind, obj.GetName(), errs)
	}
	s.warnings = append(s.warnings, u.Warnings(ctx, obj, live)...)
	u.Canonicalize(obj)
	return s.store(obj), nil
}

func (s *steps) store(obj Object) []byte {
	s.t.Helper()
	stored, err := s.endpoint.Kind.Stored(obj)
	if err != nil {
		s.t.Fatal(err)
	}
	return encode(s.t, stored)
}

// oracle is the same write as upstream's store makes it.
type oracle struct {
	t        testing.TB
	endpoint *Endpoint
}

func (o oracle) decode(e *Endpoint, body []byte) Object {
	o.t.Helper()
	obj, _, err := legacyscheme.Codecs.UniversalDecoder(e.internal).Decode(body, nil, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return obj.(Object)
}

func (o oracle) create(ctx context.Context, body []byte) ([]byte, error) {
	o.t.Helper()
	obj := o.decode(o.endpoint, body)
	obj.SetUID("uid")
	obj.SetCreationTimestamp(born)
	if err := rest.BeforeCreate(o.endpoint.Kind.main, ctx, obj); err != nil {
		return nil, err
	}
	return o.store(obj), nil
}

func (o oracle) update(ctx context.Context, subresource string, body, old []byte) ([]byte, error) {
	o.t.Helper()
	live := o.decode(o.endpoint.Kind.Storage(), old)
	live.SetResourceVersion("7")
	obj := o.decode(o.endpoint, body)
	var strategy rest.RESTUpdateStrategy = o.endpoint.Kind.main
	if subresource != "" {
		strategy = o.endpoint.Kind.subresources[subresource]
	}
	if err := rest.BeforeUpdate(strategy, ctx, obj, live); err != nil {
		return nil, err
	}
	return o.store(obj), nil
}

func (o oracle) store(obj Object) []byte {
	o.t.Helper()
	obj.SetResourceVersion("")
	out, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(o.endpoint.Kind.Storage().GroupVersion), obj)
	if err != nil {
		o.t.Fatal(err)
	}
	return out
}
