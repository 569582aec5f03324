package engine

import (
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// itself is the server, where it writes an object that nobody has asked it to write.
var itself = Caller{User: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, FieldManager: "kube-apiserver"}

// delete deletes the object as what is posted (an Eviction) asks, or begins to. What it changes besides goes with it in one commit.
func (w *write) delete() error {
	d := w.onObject(removes)
	if err := d.find(); err != nil {
		return err
	}
	obj, err := d.loadStored()
	if err != nil {
		return err
	}
	how, err := w.sub.Delete(d.head, obj, w.typed.obj, w.caller.DryRun)
	if err != nil {
		return asPlain(err)
	}
	d.guards = append(d.guards, how.Guards...)
	if how.With != nil {
		o, err := d.along(how.With)
		if err == nil {
			err = w.upToCommit(o)
		}
		if err != nil {
			return err
		}
		d.also, d.guards = append(d.also, o.stored()), append(d.guards, o.guards...)
	}
	if err := validateDeleteOptions(&how.Options); err != nil {
		return err
	}
	d.removal, d.caller.DryRun, d.changed = how.Options, len(how.Options.DryRun) > 0, obj
	w.deletion = d
	if err := d.mark(); err != nil {
		return err
	}
	return d.commit()
}

// along is the write of another object that goes with that of w, by the server itself.
func (w *write) along(c *resource.Change) (*write, error) {
	o, err := w.engine.newWrite(w.ctx, w.engine.targetAt(c.Of, w.target.Namespace, c.Name), itself, stores)
	if err != nil {
		return nil, err
	}
	o.change = func(o *write) (object.Tree, error) {
		if err := o.load(); err != nil {
			return nil, err
		}
		obj, err := o.v.Type.ToInternal(o.live)
		if err != nil {
			return nil, asInternal(err)
		}
		if err := c.Do(obj); err != nil {
			return nil, err
		}
		t, err := o.v.Type.FromInternal(obj)
		return t, asInternal(err)
	}
	return o, nil
}
