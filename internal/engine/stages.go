package engine

// opKind is which kind of write this is.
type opKind uint8

const (
	opStore   opKind = 1 << iota // an object is to be created or changed
	opDelete                  // an object is to be deleted, or marked as going
	opReview                     // a question (TokenReview and the like): answered, never stored
	opAction                     // what is posted to a subresource (a Binding): done to the object, never stored
	opConnect                 // options of a connection to what runs behind an object: judged, never stored
	opBody   = opStore | opReview | opAction
	opAll      = opBody | opDelete | opConnect
)

// stage is one step of a write. An error ends the attempt.
type stage struct {
	name string
	kinds   opKind
	run  func(*write) error
}

// stages are what every write goes through, in upstream's order: of its handlers, then of its rest.BeforeCreate,
// BeforeUpdate and BeforeDelete, then of its store. What is overtaken by another write goes through all of them again, from
// the newest state.
var stages = []stage{
	{"decode", opBody | opConnect, (*write).decode}, // the object that the caller wants, with defaults
	{"locate", opBody, (*write).locate},            // its name and namespace are those of the request
	{"limit", opBody, (*write).limit},              // no list or map has too many items for what follows
	{"own", opBody, (*write).updateManagedFields},                  // who manages which fields
	{"find", opDelete, (*write).find},               // what is to go, as the caller has seen it
	{"mutate", opAll, (*write).mutate},               // admission that may change it
	{"permit", opStore, (*write).authorize},            // may this caller write just this?
	{"identify", opStore, (*write).identify},        // generated name, uid, times; is it the object that was meant?
	{"prepare", opStore, (*write).prepare},          // what the caller may not set is as it was
	{"mark", opDelete, (*write).mark},               // what is left of an object that is to go
	{"validate", opStore, (*write).validate},
	{"check", opAction, (*write).check}, // what is posted, by itself
	{"warn", opStore, (*write).warnings},
	{"canonicalize", opStore, (*write).canonicalize},
	{"admit", opAll, (*write).admit}, // admission that may only refuse
	{"answer", opReview, (*write).review},
	{"act", opAction, (*write).act},
	{"convert", opStore, (*write).convert}, // to the version it is stored at
	{"along", opStore | opDelete, (*write).relatedWrites},
	{commitStage, opStore | opDelete, (*write).commit},
}

// commitStage is the last: what went before has changed nothing.
const commitStage = "commit"

// attempt takes a write once through the stages up to the one named, or through all of them.
func (w *write) attempt(upTo string) error {
	w.beginAttempt()
	for i := range stages {
		s := &stages[i]
		if s.name == upTo {
			return nil
		}
		if s.kinds&w.kind == 0 {
			continue
		}
		if err := w.ctx.Err(); err != nil { // no one waits for the answer
			return err
		}
		end := w.step(s.name)
		err := s.run(w)
		end(err)
		if err != nil {
			return err
		}
	}
	return nil
}
