package write

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/object"
)

// limit returns an error if the object exceeds an item limit of its kind.
func (w *write) limit() error {
	var errs field.ErrorList
	for i := range w.Def.ItemLimits {
		if err := w.Def.ItemLimits[i].Check(w.Desired); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return w.invalid(errs)
}

// validate validates the object.
func (w *write) validate() error {
	if err := w.limit(); err != nil { // admission may have added items
		return err
	}
	errs, err := w.rules.Validate(&w.Write)
	if err != nil || len(errs) == 0 {
		return err
	}
	return w.invalid(errs)
}

func (w *write) invalid(errs field.ErrorList) error {
	gk := w.Version.GroupVersionKind().GroupKind()
	switch {
	case w.Version.Schema != nil: // as in upstream, the kind that the object contains
		apiVersion, kind := object.String(w.Desired, "apiVersion"), object.String(w.Desired, "kind")
		gk = schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
	case w.Def.Strategy != nil:
		gk = w.Def.Strategy.ErrorKind
	}
	return strategy.NewInvalid(gk, w.name(), errs)
}

// immediate reports whether an object's deletion has no grace period. It then waits only for finalizers.
func immediate(t object.Tree) bool {
	grace, _ := object.Metadata(t)["deletionGracePeriodSeconds"].(int64)
	return grace == 0
}
