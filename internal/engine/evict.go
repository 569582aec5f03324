package engine

import (
	"k8s.io/apiserver/pkg/authentication/user"
)

// itself is the server, where it writes an object that nobody has asked it to write.
var itself = Caller{User: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, FieldManager: "kube-apiserver"}

// delete deletes the object as what is posted (an Eviction) asks, or begins to. What it changes besides goes with it in one commit.
func (w *write) delete() error {
	d := w.onObject(removes)
	defer d.end()
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
	if how.Related != nil {
		if err := d.with(how.Related); err != nil {
			return err
		}
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
