package write

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// relatedWrites adds related writes to the commit: those that the kind requires, and those of records that reserve
// capacity.
func (w *write) relatedWrites() error {
	if w.kind == opDelete && !w.deleted {
		return nil
	}
	obj := w.Obj
	if w.deleted {
		obj = nil
	}
	if relatedWrites := w.Def.Behavior.RelatedWrites; relatedWrites != nil {
		for _, c := range relatedWrites(w.Record, obj) {
			if err := w.addRelated(&c); err != nil {
				return err
			}
		}
	}
	if w.Def.Behavior.ReserveCapacity == nil {
		return nil
	}
	return w.reserveCapacity(obj)
}

// reserveCapacity adds the writes and guards of Behavior.ReserveCapacity to the commit. If that function returns an
// error, it is called again with the newest state of the store.
func (w *write) reserveCapacity(obj object.Tree) error {
	extra, err := w.Def.Behavior.ReserveCapacity(w.Record, w.Old, obj, w.packed.JSON())
	if err != nil {
		if _, err := w.writer.Newest(w.Ctx); err != nil {
			return err
		}
		extra, err = w.Def.Behavior.ReserveCapacity(w.Record, w.Old, obj, w.packed.JSON())
	}
	w.related, w.guards = append(w.related, extra.Writes...), append(w.guards, extra.Guards...)
	return verb.Unknown(err)
}

// addRelated adds a write of another object to the commit. The server itself makes this write.
func (w *write) addRelated(c *resource.RelatedWrite) error {
	kind := opStore
	if c.Delete {
		kind = opDelete
	}
	o, err := w.writer.newWrite(w.Ctx, w.writer.targetAt(c.Endpoint, w.Target.Namespace, c.Name), serverCaller, kind)
	if err != nil {
		return err
	}
	o.outer, o.CreateOnly = w, c.Create != nil
	o.change = func(o *write) (object.Tree, error) { return o.applyRelated(c) }
	err = w.writer.upToCommit(o)
	w.admission.afterAll = append(w.admission.afterAll, o.admission.afterAll...) // both writes end together
	switch {
	case c.Delete && apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !o.noop:
		w.related = append(append(w.related, o.storageWrite()), o.related...)
		w.guards = append(w.guards, o.guards...)
	}
	return nil
}

// applyRelated returns the object that c creates, or the live object after the change by c.
func (w *write) applyRelated(c *resource.RelatedWrite) (object.Tree, error) {
	if c.Create != nil {
		return object.ShallowCopy(c.Create), nil
	}
	if err := w.load(); err != nil {
		return nil, err
	}
	obj, err := w.Version.Type.ToInternal(w.Live)
	if err != nil {
		return nil, verb.Status(err)
	}
	if err := c.Do(obj); err != nil {
		return nil, err
	}
	t, err := w.Version.Type.FromInternal(obj)
	return t, verb.Status(err)
}

// serverCaller is the caller of writes that the server makes on its own behalf.
var serverCaller = verb.Caller{
	User:         &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}},
	FieldManager: "kube-apiserver",
}
