package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	crdName  = "widgets.model.example.com"
	served   = "served"
	unserved = "not served"
)

// kinds is an administrator who changes the schema and the served versions of a custom kind, and clients that use the
// kind.
type kinds struct {
	apis   []*api // of the administrator
	tally  *tally
	random *rand.Rand
	schema *register // the only allowed value of a field
	second *register // whether the second version is served

	newest   *atomic.Int64 // generation that was written last, in all rounds
	revision string        // resourceVersion of the CRD
}

func generation(n int64) string { return fmt.Sprint("g", n) }

// crd returns the CRD at a generation.
func crd(n int64, revision string) []byte {
	version := func(name string, served, storage bool) string {
		return fmt.Sprintf(`{"name":%q,"served":%v,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object","properties":`+
			`{"spec":{"type":"object","properties":{"generation":{"type":"string","enum":[%q]}}}}}}}`,
			name, served, storage, generation(n))
	}
	return fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",`+
		`"metadata":{"name":%q,"resourceVersion":%q},"spec":{"group":"model.example.com","scope":"Namespaced",`+
		`"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[%s,%s]}}`,
		crdName, revision, version("v1", true, true), version("v2", n%2 == 1, false))
}

func secondVersion(n int64) string {
	if n%2 == 1 {
		return served
	}
	return unserved
}

// newKinds writes the CRD, so that no earlier write of it can be executed any more.
func newKinds(apis []*api, t *tally, random *rand.Rand, zero time.Time, newest *atomic.Int64) (*kinds, error) {
	k := &kinds{apis: apis, tally: t, random: random, newest: newest}
	n := newest.Add(1)
	k.schema = newRegister("schema", zero, generation(n))
	k.second = newRegister("served version", zero, secondVersion(n))
	return k, eventually("write the CRD", func() error {
		if !k.read() {
			return errors.New("cannot read it")
		}
		if a := k.update(n); !a.applied() {
			return errors.New(a.String())
		}
		return nil
	})
}

func (k *kinds) update(n int64) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*attemptTimeout)
	defer cancel()
	a := k.apis[k.random.IntN(len(k.apis))].do(ctx, "PUT", crdsPath+"/"+crdName, "", crd(n, k.revision))
	k.tally.operation("update of a CRD", a)
	return a
}

// read reads the resourceVersion of the CRD.
func (k *kinds) read() bool {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	answer := k.apis[k.random.IntN(len(k.apis))].do(ctx, "GET", crdsPath+"/"+crdName, "", nil)
	var object configMap
	if !answer.applied() || answer.into(&object) != nil {
		return false
	}
	k.revision = object.Metadata.ResourceVersion
	return true
}

// run changes the CRD until ctx is done.
func (k *kinds) run(ctx context.Context) {
	for wait(ctx, time.Duration(200+k.random.IntN(800))*time.Millisecond) {
		if !k.read() {
			continue
		}
		n := k.newest.Add(1)
		schema, second := k.schema.begin(generation(n)), k.second.begin(secondVersion(n))
		answer := k.update(n)
		schema(answer.applied())
		second(answer.applied())
		if answer.rejected() && answer.code != 409 && answer.code != 429 {
			k.tally.violation("update of the CRD: %v", answer)
		}
		if answer.applied() {
			k.tally.count("CRDs changed", 1)
		}
	}
}

// use uses the kind through one replica until ctx is done.
func (k *kinds) use(ctx context.Context, a *api) {
	var pending sync.WaitGroup
	defer pending.Wait()
	slots := make(chan struct{}, maxPending)
	for i := int64(0); wait(ctx, 60*time.Millisecond); i++ {
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		pending.Go(func() {
			defer func() { <-slots }()
			limited, cancel := context.WithTimeout(context.Background(), patientTimeout)
			defer cancel()
			k.useSchema(limited, a, k.newest.Load()-i%2)
			k.useSecond(limited, a)
		})
	}
}

// useSchema validates an object that only the schema of one generation accepts.
func (k *kinds) useSchema(ctx context.Context, a *api, n int64) {
	body := fmt.Appendf(nil, `{"apiVersion":"model.example.com/v1","kind":"Widget","metadata":{"name":"any"},`+
		`"spec":{"generation":%q}}`, generation(n))
	call := k.schema.now()
	answer := a.do(ctx, "POST", "/apis/model.example.com/v1/namespaces/model/widgets?dryRun=All", "", body)
	k.tally.operation("dry run of a custom object", answer)
	switch {
	case answer.code == 201, answer.code == 422:
		k.schema.observe(a.replica, generation(n), answer.code == 422, call)
	case !answer.transient():
		k.tally.violation("replica %d answers a dry run of a custom object with %v", a.replica, answer)
	}
}

// useSecond lists the objects at the version that is served at times.
func (k *kinds) useSecond(ctx context.Context, a *api) {
	call := k.second.now()
	answer := a.do(ctx, "GET", "/apis/model.example.com/v2/namespaces/model/widgets?resourceVersion=0&limit=1", "", nil)
	k.tally.operation("list at a changing version", answer)
	switch {
	case answer.code == 200:
		k.second.observe(a.replica, served, false, call)
	case answer.code == 404:
		k.second.observe(a.replica, unserved, false, call)
	case !answer.transient():
		k.tally.violation("replica %d answers a list of custom objects with %v", a.replica, answer)
	}
}
