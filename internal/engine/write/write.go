// Package write implements the verbs that write: create, update, patch, delete and actions. Stages lists the steps of
// a write.
package write

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Writer implements the verbs that write.
type Writer struct {
	*read.Reader
	// Admission holds the admission plugins for writes. They run after admission.Lifecycle.
	Admission admission.Plugins

	queues queues

	// upToCommit runs a write through all stages before the commit. It is a field because a direct reference from a
	// stage to the list of stages would be an initialization cycle in Go.
	upToCommit func(*write) error
}

// New returns a Writer to the store of r.
func New(r *read.Reader, plugins admission.Plugins) *Writer {
	return &Writer{
		Reader: r, Admission: plugins, upToCommit: func(w *write) error { return w.attempt(commitStage) },
	}
}

// write is the state of one write request while the stages run.
type write struct {
	strategy.Write
	state

	writer  *Writer
	kind    opKind
	rules   strategy.Rules
	fields  merge.ManagedFields
	change  changeFunc    // builds the desired object; nil for a deletion
	upserts bool          // the write creates a missing object
	outer   *write        // the write that contains this write, or nil
	queued  chan struct{} // the queue if this write is at its head, or nil
	now     time.Time
	wantUID string // the required UID of the live object; "" allows any

	action    action
	deletion  deletion
	admission admissionState

	generatedNames int // how many names have been generated
	// newName and newUID are the generated name and UID of a new object. All attempts use the same values, except
	// that a taken name is replaced.
	newName, newUID string
}

// state is the part of a write that is reset at the start of each attempt, in addition to strategy.Attempt.
type state struct {
	head    *storage.Snapshot                   // the snapshot that the attempt reads
	loaded  bool                                // Record and Live have been looked up
	managed bool                                // the managedFields of Desired are up to date
	scale   struct{ desired, live object.Tree } // the Scales of Desired and Live, with managedFields

	packed   object.Packed     // the object to store, or the last state of a deleted object
	modified resource.Internal // the object after changes by its deletion; nil if unchanged
	related  []storage.Write   // writes of other objects in the same commit
	guards   []storage.Guard
	deleted  bool // the write deletes the object
	noop     bool // the deletion request changes nothing
	// compared means that the attempt reads the newest state of the store, or that a commit has compared it.
	compared bool
	// deleteAfterMark means that the object is deleted right after it has been stored as marked.
	deleteAfterMark bool
	// replacements is how often admission has replaced Desired.
	replacements int
	result       record.Object
}

// action is the part of a write of kind opAction.
type action struct {
	sub    *resource.Subresource
	parent verb.Target // the object to which sub belongs
	// deletion is the deletion of the parent object that an Eviction has requested, or nil.
	deletion *write
}

// deletion is the part of a write of kind opDelete.
type deletion struct {
	options metav1.DeleteOptions
	// hideName is set during a DeleteCollection. As in upstream, admission then does not see the names of the
	// objects.
	hideName bool
}

// admissionState is the part of a write that admission uses in all attempts.
type admissionState struct {
	request  admission.Request // the write in the form that plugins receive
	afterAll []func()          // called when the write has ended, after its last attempt
	// validated means that an earlier attempt of this create has passed validating admission.
	validated bool
	// skip is set for a write that is part of an opAction. The posted body has already passed admission.
	skip bool
}

// changeFunc builds the desired object of a write at the version of the request. The attempt may modify the
// result's top-level fields and the fields of its metadata.
type changeFunc func(w *write) (object.Tree, error)

// load looks up and decodes the live object, once per attempt.
func (w *write) load() error {
	if w.loaded {
		return nil
	}
	w.loaded = true
	if err := w.findRecord(); err != nil {
		return err
	}
	if w.Record == nil && !w.upserts {
		return apierrors.NewNotFound(w.Version.GroupResource(), w.Target.Name)
	}
	if err := w.checkUID(); err != nil {
		return err
	}
	if w.Record == nil {
		w.Op = admission.Create
		return nil
	}
	w.Op = admission.Update
	if w.Target.AsStored {
		if at := w.Def.Version(strings.Trim(string(apiVersion(w.Record.Value)), `"`)); at != nil {
			w.setVersion(at)
		}
	}
	var err error
	w.Live, err = w.View.TreeFor(w.Ctx, w.Record, &w.Memo)
	return err
}

// findRecord looks up the live object's record. If the attempt's snapshot does not have the record, findRecord
// looks it up in the newest state of the store. That state may include writes of another process.
func (w *write) findRecord() (err error) {
	if w.Record = w.head.Get(w.key()); w.Record != nil {
		return nil
	}
	if w.head, err = w.writer.Newest(w.Ctx); err == nil {
		w.Record, w.compared = w.head.Get(w.key()), true
	}
	return err
}

// checkUID returns upstream's conflict if the caller requires another UID than that of the live object.
func (w *write) checkUID() error {
	if w.wantUID == "" {
		return nil
	}
	var uid string
	if w.Record != nil {
		uid = string(record.MetadataOf(w.Record).Meta.UID)
	}
	if uid == w.wantUID {
		return nil
	}
	return w.storagePreconditionError("UID", w.wantUID, uid)
}

// storagePreconditionError returns the conflict that upstream's storage returns for an unmet precondition. As in
// upstream, the key in the text lacks its prefix in a dry run.
func (w *write) storagePreconditionError(field, wants, has string) error {
	key := w.key()
	if w.Caller.DryRun {
		key = strings.TrimPrefix(key, "/registry")
	}
	return apierrors.NewConflict(w.Version.GroupResource(), w.Target.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"Precondition failed: %s in precondition: %s, %[2]s in object meta: %[4]s",
		key, field, wants, has))
}

// key returns the storage key of the target.
func (w *write) key() string { return w.Def.Key(w.Target.Namespace, w.name()) }
