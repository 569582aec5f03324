package engine

import (
	"k8s.io/apiserver/pkg/authentication/user"
)

// serverCaller is the server, where it writes an object that nobody has asked it to write.
var serverCaller = Caller{User: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, FieldManager: "kube-apiserver"}

// deleteParent deletes the object as what is posted (an Eviction) asks, or begins to. What it changes besides goes with it in one commit.
func (w *write) deleteParent() error {
	d := w.parentWrite(opDelete)
	defer d.endAttempt()
	if err := d.find(); err != nil {
		return err
	}
	obj, err := d.liveInternal()
	if err != nil {
		return err
	}
	how, err := w.sub.Delete(d.head, obj, w.typed.obj, w.caller.DryRun)
	if err != nil {
		return asUnknownError(err)
	}
	d.guards = append(d.guards, how.Guards...)
	if how.Related != nil {
		if err := d.addRelated(how.Related); err != nil {
			return err
		}
	}
	if err := validateDeleteOptions(&how.Options); err != nil {
		return err
	}
	d.deleteOptions, d.caller.DryRun, d.modified = how.Options, len(how.Options.DryRun) > 0, obj
	w.deletion = d
	if err := d.mark(); err != nil {
		return err
	}
	return d.commit()
}
