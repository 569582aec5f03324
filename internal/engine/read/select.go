package read

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Values of fieldTerm.field for fields in the metadata.
const (
	fieldName = -1 - iota
	fieldNamespace
)

// selector is the compiled label and field selector of a request.
type selector struct {
	view           record.View
	labels         labels.Selector // nil selects everything
	bloomMask      uint64          // bits that are set in metadata.bloom of every match
	matchesNothing bool            // the label selector matches no object
	fields         []fieldTerm
	paths          [][]string // paths of the selectable fields; nil if no term uses one
}

// fieldTerm is one requirement of a field selector.
type fieldTerm struct {
	field int // index of a selectable field, or fieldName or fieldNamespace
	value string
	not   bool // the field must differ from value
}

// newSelector compiles the selectors of o.
func newSelector(v record.View, o *ListOptions) (*selector, error) {
	s := &selector{view: v}
	if o.Labels != nil && !o.Labels.Empty() {
		s.labels = o.Labels
		requirements, selectable := o.Labels.Requirements()
		s.matchesNothing = !selectable
		for _, q := range requirements {
			s.bloomMask |= requirementMask(q)
		}
	}
	if o.Fields == nil || o.Fields.Empty() {
		return s, nil
	}
	for _, q := range o.Fields.Requirements() {
		field, err := fieldOf(v.Version, q.Field)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		s.fields = append(s.fields, fieldTerm{field, q.Value, q.Operator == selection.NotEquals})
		if field >= 0 && s.paths == nil {
			s.paths = selectablePaths(v.Version)
		}
	}
	return s, nil
}

func selectablePaths(v *resource.Version) [][]string {
	paths := make([][]string, len(v.SelectableFields))
	for i, f := range v.SelectableFields {
		paths[i] = f.Path
	}
	return paths
}

// requirementMask returns the Bloom filter bits that are set for every object matching q.
func requirementMask(q labels.Requirement) uint64 {
	switch q.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		if values := q.ValuesUnsorted(); len(values) == 1 {
			return record.PairBits(q.Key(), values[0])
		}
		return record.KeyBits(q.Key())
	case selection.Exists, selection.GreaterThan, selection.LessThan:
		return record.KeyBits(q.Key())
	}
	return 0
}

// fieldOf returns the value of fieldTerm.field for the name of a field. The error equals upstream's.
func fieldOf(v *resource.Version, name string) (int, error) {
	switch {
	case name == "metadata.name":
		return fieldName, nil
	case name == "metadata.namespace" && (v.Definition.Namespaced || v.Schema == nil && len(v.SelectableFields) == 0):
		return fieldNamespace, nil
	}
	if i := record.FieldIndex(v, name); i >= 0 {
		return i, nil
	}
	if v.Schema == nil && len(v.SelectableFields) == 0 {
		return 0, fmt.Errorf("%q is not a known field selector: only %q, %q",
			name, "metadata.name", "metadata.namespace")
	}
	return 0, errors.New("field label not supported: " + name)
}

// empty reports whether the selector matches every object.
func (s *selector) empty() bool { return s.labels == nil && len(s.fields) == 0 }

// matches reports whether the selector matches a record. If it has evaluated the record before, it allocates no
// memory.
func (s *selector) matches(rec *storage.Record) bool {
	if s.labels == nil && len(s.fields) == 0 {
		return true
	}
	m := record.MetadataOf(rec)
	if m.Bloom&s.bloomMask != s.bloomMask || s.matchesNothing {
		return false
	}
	if s.labels != nil && !s.labels.Matches(m.Labels) {
		return false
	}
	return len(s.fields) == 0 || s.matchFields(m.Meta, rec)
}

func (s *selector) matchFields(m *object.Meta, rec *storage.Record) bool {
	var values []string
	if s.paths != nil {
		if values = s.view.Fields(rec, s.paths); values == nil {
			return true // the conversion fails: the later read returns its error
		}
	}
	for _, term := range s.fields {
		var value string
		switch term.field {
		case fieldName:
			value = m.Name
		case fieldNamespace:
			value = m.Namespace
		default:
			value = values[term.field]
		}
		if (value == term.value) == term.not {
			return false
		}
	}
	return true
}

// exact returns the value that a field selector requires for a field. It returns false if there is no such value.
func exact(f fields.Selector, name string) (string, bool) {
	if f == nil {
		return "", false
	}
	return f.RequiresExactMatch(name)
}
