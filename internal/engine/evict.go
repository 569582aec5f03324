package engine

import (
	"k8s.io/apiserver/pkg/authentication/user"
)

// serverCaller is the caller of writes that the server makes on its own behalf.
var serverCaller = Caller{
	User:         &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}},
	FieldManager: "kube-apiserver",
}

// deleteParent deletes the parent object, or starts its deletion, as requested by the posted Eviction. Related
// changes are part of the same commit.
func (w *write) deleteParent() error {
	d := w.parentWrite(opDelete)
	defer d.end()
	if err := d.find(); err != nil {
		return err
	}
	obj, err := d.liveInternal()
	if err != nil {
		return err
	}
	deletion, err := w.sub.Delete(d.head, obj, w.typed.obj, w.caller.DryRun)
	if err != nil {
		return asUnknownError(err)
	}
	d.guards = append(d.guards, deletion.Guards...)
	if deletion.Related != nil {
		if err := d.addRelated(deletion.Related); err != nil {
			return err
		}
	}
	if err := validateDeleteOptions(&deletion.Options); err != nil {
		return err
	}
	d.deleteOptions, d.caller.DryRun, d.modified = deletion.Options, len(deletion.Options.DryRun) > 0, obj
	w.deletion = d
	if err := d.mark(); err != nil {
		return err
	}
	return d.commit()
}
