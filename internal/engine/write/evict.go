package write

import (
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// serverCaller is the caller of writes that the server makes on its own behalf.
var serverCaller = verb.Caller{
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
	deletion, err := w.action.sub.Delete(d.head, obj, w.Typed.Obj, w.Caller.DryRun)
	if err != nil {
		return verb.Unknown(err)
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
	d.deletion.options, d.Caller.DryRun, d.modified = deletion.Options, len(deletion.Options.DryRun) > 0, obj
	w.action.deletion = d
	if err := d.mark(); err != nil {
		return err
	}
	return d.commit()
}
