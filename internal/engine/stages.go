package engine

// way is which kind of write this is.
type way uint8

const (
	stores   way = 1 << iota // an object is to be created or changed
	removes                  // an object is to be deleted, or marked as going
	asks                     // a question (TokenReview and the like): answered, never stored
	acts                     // what is posted to a subresource (a Binding): done to the object, never stored
	connects                 // options of a connection to what runs behind an object: judged, never stored
	brings   = stores | asks | acts
	all      = brings | removes | connects
)

// stage is one step of a write. An error ends the attempt.
type stage struct {
	name string
	of   way
	run  func(*write) error
}

// stages are what every write goes through, in upstream's order: of its handlers, then of its rest.BeforeCreate,
// BeforeUpdate and BeforeDelete, then of its store. What is overtaken by another write goes through all of them again, from
// the newest state.
var stages = []stage{
	{"decode", brings | connects, (*write).decode}, // the object that the caller wants, with defaults
	{"locate", brings, (*write).locate},            // its name and namespace are those of the request
	{"limit", brings, (*write).limit},              // no list or map has too many items for what follows
	{"own", brings, (*write).own},                  // who manages which fields
	{"find", removes, (*write).find},               // what is to go, as the caller has seen it
	{"mutate", all, (*write).mutate},               // admission that may change it
	{"permit", stores, (*write).permit},            // may this caller write just this?
	{"identify", stores, (*write).identify},        // generated name, uid, times; is it the object that was meant?
	{"prepare", stores, (*write).prepare},          // what the caller may not set is as it was
	{"mark", removes, (*write).mark},               // what is left of an object that is to go
	{"validate", stores, (*write).validate},
	{"check", acts, (*write).check}, // what is posted, by itself
	{"warn", stores, (*write).warnings},
	{"canonicalize", stores, (*write).canonicalize},
	{"admit", all, (*write).admit}, // admission that may only refuse
	{"answer", asks, (*write).reply},
	{"act", acts, (*write).act},
	{"convert", stores, (*write).convert}, // to the version it is stored at
	{"along", stores | removes, (*write).along},
	{commitStage, stores | removes, (*write).commit},
}

// commitStage is the last: what went before has changed nothing.
const commitStage = "commit"

// attempt takes a write once through the stages up to the one named, or through all of them.
func (w *write) attempt(upTo string) error {
	w.begin()
	for i := range stages {
		s := &stages[i]
		if s.name == upTo {
			return nil
		}
		if s.of&w.way == 0 {
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
