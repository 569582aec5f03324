package write

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	// nameAttempts is the maximum number of names that are tried for a generateName.
	nameAttempts = 8
	// longestBase and randomLength limit generated names to 63 characters.
	longestBase, randomLength = 58, 5
)

// locate compares the object's name and namespace with those of the request.
func (w *write) locate() error {
	if err := w.inNamespace(w.Desired); err != nil {
		return err
	}
	if !w.CreateOnly {
		if err := w.checkName(w.Desired); err != nil {
			return err
		}
	}
	if !w.IsPatch {
		w.dedup("")
	}
	return nil
}

// inNamespace sets the object's namespace to that of the request. It returns an error if they differ.
func (w *write) inNamespace(t object.Tree) error {
	md := object.EnsureMetadata(t)
	namespace := ""
	if w.Def.Namespaced {
		namespace = w.Target.Namespace
	}
	if got := object.String(md, "namespace"); got != "" && namespace != "" && got != namespace {
		return apierrors.NewBadRequest(
			"the namespace of the provided object does not match the namespace sent on the request")
	}
	object.SetString(md, "namespace", namespace)
	return nil
}

// checkName compares the object's name with the name in the URL.
func (w *write) checkName(t object.Tree) error {
	switch name := object.Name(t); name {
	case w.Target.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s based on URL) was undeterminable: name must be provided", w.Target.Name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", name, w.Target.Name))
	}
}

const duplicateOwners = ".metadata.ownerReferences contains duplicate entries%s; " +
	"API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; " +
	"please fix your requests; duplicate UID(s) observed: %v"

// dedup drops duplicate owner references and adds upstream's warning.
func (w *write) dedup(when string) {
	if duplicates := dedupOwners(object.Metadata(w.Desired)); duplicates != nil {
		w.Warn(fmt.Sprintf(duplicateOwners, when, strings.Join(duplicates, ", ")))
	}
}

// updateManagedFields records in managedFields the fields that the caller changes. For an apply this has already
// been done.
func (w *write) updateManagedFields() error {
	if err := w.load(); err != nil || w.managed {
		return err
	}
	w.setEmptyObject(w.Live)
	owned, err := w.fields.Update(w.Live, w.Desired, w.Caller.FieldManager, w.now)
	w.Desired = owned
	return verb.Unknown(err)
}

// setEmptyObject sets the empty object that field management uses as its starting point. It is needed for a
// built-in kind if the live object has no managedFields.
func (w *write) setEmptyObject(live object.Tree) {
	if object.Metadata(live)["managedFields"] != nil || w.Version.Type == nil || w.fields.Empty != nil {
		return
	}
	if t, err := w.Version.Empty(); err == nil {
		w.fields.Empty = t
	}
}

// identify sets the name, UID and creation time of a new object. For an existing object it checks the
// resourceVersion, and keeps the UID and the times.
func (w *write) identify() error {
	md := object.EnsureMetadata(w.Desired)
	if w.Op == admission.Create {
		if _, err := parseVersion(object.ResourceVersion(w.Desired)); err != nil && w.upserts {
			return err
		}
		w.generateName(md)
		strategy.WipeSystemFields(md)
		md["creationTimestamp"] = timestamp(w.now)
		if w.newUID == "" {
			w.newUID = uuid.NewString()
		}
		md["uid"] = w.newUID
		return nil
	}
	if err := w.checkVersion(); err != nil {
		return err
	}
	live := object.Metadata(w.Live)
	if object.String(md, "uid") == "" {
		object.CopyField(md, live, "uid")
	}
	for _, key := range []string{"creationTimestamp", "deletionTimestamp"} {
		if object.String(live, key) != "" {
			object.CopyField(md, live, key)
		}
	}
	if _, ok := md["deletionGracePeriodSeconds"]; !ok {
		object.CopyField(md, live, "deletionGracePeriodSeconds")
	}
	return nil
}

// generateName sets the name of an object that has only a generateName.
func (w *write) generateName(md object.Tree) {
	base := object.String(md, "generateName")
	if base == "" || object.String(md, "name") != "" {
		return
	}
	if w.newName == "" {
		w.newName = base[:min(len(base), longestBase)] + utilrand.String(randomLength)
		w.generatedNames++
	}
	md["name"] = w.newName
}

// retryWithNewName reports whether the write should be retried with another generated name, because the previous
// name was taken.
func (w *write) retryWithNewName(err error) bool {
	w.newName = ""
	return w.generatedNames > 0 && w.generatedNames < nameAttempts && apierrors.IsAlreadyExists(err)
}

// parseVersion parses the resourceVersion that a client sent. The result for "" is 0.
func parseVersion(rv string) (uint64, error) {
	revision, err := strconv.ParseUint(rv, 10, 64)
	if rv != "" && err != nil {
		return 0, verb.Unknown(err)
	}
	return revision, nil
}

// checkVersion compares the resourceVersion of the request with that of the live object.
func (w *write) checkVersion() error {
	gr := w.Version.GroupResource()
	switch revision, err := parseVersion(object.ResourceVersion(w.Desired)); {
	case err != nil:
		return err
	case revision == uint64(w.Record.Modified):
		return nil
	case revision != 0:
		return apierrors.NewConflict(gr, w.Target.Name, errors.New(
			"the object has been modified; please apply your changes to the latest version and try again"))
	}
	if w.Def.Behavior.UnconditionalUpdate {
		object.SetResourceVersion(w.Desired, strconv.FormatInt(w.Record.Modified, 10))
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, w.Target.Name, field.ErrorList{
		field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update"),
	})
}

// timestamp formats t for metadata.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// dedupOwners drops duplicate owner references and returns their UIDs.
func dedupOwners(md object.Tree) (duplicates []string) {
	list, _ := md["ownerReferences"].([]any)
	if len(list) < 2 {
		return nil
	}
	unique := make([]any, 0, len(list))
	seen := make(map[string]bool, len(list)) // a map by JSON, because the list may have tens of thousands of entries
	for _, ref := range list {
		m, _ := ref.(object.Tree)
		text := string(object.AppendJSON(nil, object.Tree{"": ref}))
		if seen[text] {
			duplicates = append(duplicates, object.String(m, "uid"))
			continue
		}
		seen[text] = true
		unique = append(unique, ref)
	}
	if duplicates != nil {
		md["ownerReferences"] = unique
	}
	return duplicates
}
