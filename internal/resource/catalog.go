package resource

import (
	"context"
	"iter"
)

// Catalog is all that is served at one moment. It is immutable.
type Catalog struct{}

// Revision is the newest revision of a CRD that the catalog knows of.
func (c *Catalog) Revision() int64 { panic("resource: Revision") }

// Find returns the served version for a request path, or nil.
func (c *Catalog) Find(group, version, plural string) *Version { panic("resource: Find") }

// Definition returns the kind that holds plural in group, or nil; established or not.
func (c *Catalog) Definition(group, plural string) *Definition { panic("resource: Definition") }

// Definitions yields every kind, ordered by group and plural.
func (c *Catalog) Definitions() iter.Seq[*Definition] { panic("resource: Definitions") }

// Group is what discovery says of a group.
type Group struct {
	Name      string
	Versions  []string // served, by priority
	Preferred string
	Resources map[string][]*Version // per version name, ordered by plural
}

// Groups yields the served groups in the order of discovery.
func (c *Catalog) Groups() iter.Seq[*Group] { panic("resource: Groups") }

// Live is the catalog as it changes.
type Live struct{}

// Load returns the catalog of now.
func (l *Live) Load() *Catalog { panic("resource: Load") }

// Wait returns the catalog once it has followed the store up to revision, or ctx's error.
func (l *Live) Wait(ctx context.Context, revision int64) (*Catalog, error) { panic("resource: Wait") }
