package engine

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// mutate asks admission to change or refuse what is wanted: the life cycle of namespaces and kinds first.
func (w *write) mutate() error {
	if w.admitted {
		return nil
	}
	r := w.admission()
	if err := (admission.Lifecycle{Namespaces: w.engine.namespaces}).Admit(w.ctx, r); err != nil {
		return err
	}
	if err := w.engine.Admission.Admit(w.ctx, r); err != nil {
		return err
	}
	if w.way == stores && (w.patches || w.replaced > 0) {
		w.dedup(" after mutating admission happens")
	}
	return nil
}

func (e *Engine) namespaces() *resource.Definition { return e.Live.Load().Definition("", "namespaces") }

// defaultAgain fills in what admission has left out.
func (w *write) defaultAgain() (err error) {
	if w.replaced == 0 {
		return nil
	}
	if w.wanted, err = w.rules.fill(w, w.wanted); err != nil {
		return err
	}
	return w.locate()
}

// admit asks admission to refuse what would be stored.
func (w *write) admit() error {
	if w.op == admission.Create && !w.posts && w.caller.MayCreate != nil { // here, as upstream has it: what is invalid is refused before
		if err := w.caller.MayCreate(); err != nil {
			return err
		}
	}
	if w.admitted || !w.engine.Admission.Handles(w.op) {
		return nil
	}
	return w.engine.Admission.Validate(w.ctx, w.admission())
}

// admission is the write as plugins see it.
func (w *write) admission() *admission.Request {
	r := &admission.Request{
		Operation: w.op, Version: w.v, Resource: w.resource(), Subresource: w.target.Subresource, Namespace: w.target.Namespace, Name: w.target.Name,
		User: w.caller.User, DryRun: w.caller.DryRun, Options: optionsOf(w.op, w.caller.Options), Objects: admitted{w},
		Warn:     func(text string) { w.warn(text) },
		Annotate: w.caller.Annotate,
	}
	if r.Annotate == nil {
		r.Annotate = func(string, string) {}
	}
	if r.Name == "" {
		r.Name = object.Name(w.wanted)
	}
	return r
}

// resource is what the request addresses: of what is posted to a subresource not the kind of that.
func (w *write) resource() schema.GroupVersionResource {
	v := w.target.Version
	return v.GroupVersion.WithResource(v.Definition.Names.Plural)
}

// optionsOf are the options of a verb as admission sees them: those of the operation, as upstream has it.
func optionsOf(op admission.Operation, sent runtime.Object) runtime.Object {
	var dryRun []string
	var manager, validation string
	switch o := sent.(type) {
	case *metav1.PatchOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.UpdateOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	default:
		return sent
	}
	if op == admission.Create {
		return &metav1.CreateOptions{DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
	}
	return &metav1.UpdateOptions{DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
}

// admitted are the objects of a write for plugins.
type admitted struct{ w *write }

// New implements admission.Objects.
func (a admitted) New(ctx context.Context, at *resource.Version) (object.Tree, error) {
	t := a.w.wanted
	if a.w.obj != nil {
		t = a.w.obj
	}
	if t == nil {
		return nil, nil
	}
	out, err := a.w.at(ctx, object.Copy(t), at)
	if a.w.reader.remote {
		out = object.Copy(out) // of what the write knows of conversions
	}
	return out, err
}

// Old implements admission.Objects.
func (a admitted) Old(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if a.w.rec == nil {
		return nil, nil
	}
	if a.w.live != nil && at == a.w.v {
		return object.Copy(a.w.live), nil
	}
	return a.w.engine.reader(at).tree(ctx, packed(a.w.rec), a.w.rec.Modified)
}

// Replace implements admission.Objects.
func (a admitted) Replace(ctx context.Context, t object.Tree, at *resource.Version) (err error) {
	a.w.replaced++
	a.w.wanted, err = a.w.at(ctx, t, a.w.v)
	return err
}

// Replaced implements admission.Objects.
func (a admitted) Replaced() int { return a.w.replaced }

// Read implements admission.Objects.
func (a admitted) Read(d *resource.Definition, namespace, name string) *object.Meta {
	guard := storage.Guard{Key: d.Key(namespace, name)}
	rec := a.w.head.Get(guard.Key)
	if rec != nil {
		guard.Revision = rec.Modified
	}
	a.w.guards = append(a.w.guards, guard)
	if rec == nil {
		return nil
	}
	return metaOf(rec).meta
}

// at is t, which belongs to the caller, at a version of the kind.
func (w *write) at(ctx context.Context, t object.Tree, to *resource.Version) (object.Tree, error) {
	from := versionOf(w.def, object.String(t, "apiVersion"))
	if from == to {
		return t, nil
	}
	if w.reader.remote {
		return w.convertRemote(t, to)
	}
	return w.engine.convert(ctx, t, from, to)
}
