package write

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/object"
)

// opKind is a set of kinds of writes. Each kind is one bit.
type opKind uint8

const (
	opStore   opKind = 1 << iota // creates or changes an object
	opDelete                     // deletes an object, or marks it for deletion
	opReview                     // evaluates an object that is never stored, such as a TokenReview
	opAction                     // handles a POST to a subresource, such as a Binding, whose body is never stored
	opConnect                    // checks the options of a connection (exec, proxy), which are never stored
	opBody    = opStore | opReview | opAction
	opAll     = opBody | opDelete | opConnect
)

// Stage is one step of a write. If run returns an error, the attempt ends.
type Stage struct {
	Name  string
	kinds opKind // the kinds of writes that have this stage
	run   func(*write) error
}

// Stages are the steps of every write. They are in upstream's order: first the steps of its handlers, then of
// rest.BeforeCreate, BeforeUpdate and BeforeDelete, then of its store. After a conflict with another write, all
// stages run again on the newest state.
var Stages = []Stage{
	{"decode", opBody | opConnect, (*write).decode},         // builds the desired object, with defaults
	{"locate", opBody, (*write).locate},                     // compares its name and namespace with the request
	{"limit", opBody, (*write).limit},                       // checks the number of items in its lists and maps
	{"managedFields", opBody, (*write).updateManagedFields}, // records the field manager in managedFields
	{"find", opDelete, (*write).find},                       // finds the object to delete and checks the preconditions
	{"mutate", opAll, (*write).mutate},                      // runs mutating admission
	{"authorize", opStore, (*write).Authorize},              // checks RBAC escalation
	{"identify", opStore, (*write).identify},                // sets name, UID and times; checks resourceVersion
	{"prepare", opStore, (*write).prepare},                  // resets fields that the caller may not set
	{"mark", opDelete, (*write).mark},                       // computes the object's state after the deletion request
	{"validate", opStore, (*write).validate},
	{"check", opAction, (*write).check}, // validates the body of a POST to a subresource
	{"warn", opStore, (*write).warnings},
	{"canonicalize", opStore, (*write).canonicalize},
	{"admit", opAll, (*write).admit}, // runs validating admission
	{"review", opReview, (*write).review},
	{"act", opAction, (*write).act},
	{"convert", opStore, (*write).convert},                  // converts the object to its storage version
	{"related", opStore | opDelete, (*write).relatedWrites}, // adds the writes of other objects to the commit
	{commitStage, opStore | opDelete, (*write).commit},
}

// commitStage is the name of the last stage. The earlier stages do not change the store.
const commitStage = "commit"

func (w *write) prepare() error { return w.rules.Prepare(&w.Write) }

func (w *write) canonicalize() error { return w.rules.Canonicalize(&w.Write) }

func (w *write) warnings() error {
	w.rules.AddWarnings(&w.Write)
	return nil
}

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
