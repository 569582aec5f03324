// Package check says without a server what a server would say of manifests: of
// CustomResourceDefinitions, of objects of the kinds they define, and of what a new state of a
// CustomResourceDefinition does to objects that are stored already.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Severity says what a Finding means.
type Severity string

const (
	// Error is what a server refuses.
	Error Severity = "error"
	// Warning is what a server accepts, but hardly as it was meant.
	Warning Severity = "warning"
	// Note is good to know.
	Note Severity = "note"
)

// Finding is one thing to say of one place.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
	Object   string   `json:"object,omitempty"` // kind and name
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`         // the type of a field error, or Pruned, Defaulted, Cost, ...
	Path     string   `json:"path,omitempty"` // in upstream's notation
	Message  string   `json:"message"`
}

// Report is all that was found, in the order of the files.
type Report struct {
	Findings []Finding `json:"findings"`
	Rules    []Rule    `json:"rules,omitempty"`
	Checked  int       `json:"checked"` // how many CRDs and objects
}

// Count is how many findings are as severe as s.
func (r *Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Total is Count in words, as "1 error" or "2 errors".
func (r *Report) Total(s Severity) string {
	if n := r.Count(s); n != 1 {
		return fmt.Sprintf("%d %ss", n, s)
	}
	return "1 " + string(s)
}

// Manifests checks the CRDs in files (YAML or JSON; folders are searched, "-" is standard input),
// then every other object: against the CRD among them that defines its kind, or as the built-in kind that
// it is. An error is a file that cannot be read.
func Manifests(ctx context.Context, files []string) (*Report, error) {
	c := newChecker()
	documents, err := c.loadAll(files)
	if err != nil {
		return nil, err
	}
	if c.scratch, err = newScratch(ctx); err != nil {
		return nil, err
	}
	defer c.scratch.close()
	for _, crds := range []bool{true, false} {
		for _, d := range documents {
			if d.isCRD() == crds {
				c.check(ctx, d)
			}
		}
	}
	return c.finish(), nil
}

// Upgrade checks a CRD that is to replace another of the same name, and says what that means for
// stored objects.
func Upgrade(ctx context.Context, oldFile, newFile string) (*Report, error) {
	if oldFile == "-" && newFile == "-" {
		return nil, errors.New("only one of the two states can be standard input")
	}
	c := newChecker()
	before, err := c.loadAll([]string{oldFile})
	if err != nil {
		return nil, err
	}
	after, err := c.loadAll([]string{newFile})
	if err != nil {
		return nil, err
	}
	if c.scratch, err = newScratch(ctx); err != nil {
		return nil, err
	}
	defer c.scratch.close()
	if err := c.bothHave(oldFile, before, newFile, after); err != nil {
		return nil, err
	}
	for _, d := range after {
		if !d.isCRD() {
			continue
		}
		i := slices.IndexFunc(before, func(o *document) bool { return o.isCRD() && object.Name(o.tree) == object.Name(d.tree) })
		if i < 0 {
			c.add(d, Note, "New", "", "not in "+oldFile)
			c.check(ctx, d)
			continue
		}
		c.upgrade(ctx, before[i], d)
	}
	for _, o := range before {
		if o.isCRD() && !slices.ContainsFunc(after, func(d *document) bool { return d.isCRD() && object.Name(o.tree) == object.Name(d.tree) }) {
			c.add(o, Note, "Gone", "", "not in "+newFile+": who deletes it deletes its objects")
		}
	}
	return c.finish(), nil
}

func newChecker() *checker {
	return &checker{report: &Report{Findings: []Finding{}}, refused: map[schema.GroupKind]bool{}}
}

// checker is one run.
type checker struct {
	report  *Report
	scratch *scratch
	files   []string                  // as they were read
	refused map[schema.GroupKind]bool // kinds whose CRDs are
}

func (c *checker) add(d *document, s Severity, reason, path, message string) {
	line, column := d.position(path)
	c.addAt(d, line, column, Finding{Severity: s, Reason: reason, Path: path, Message: message})
}

// addAt adds f, which is of d, at a place of its file.
func (c *checker) addAt(d *document, line, column int, f Finding) {
	f.File, f.Line, f.Column, f.Object = d.file, line, column, d.String()
	c.report.Findings = append(c.report.Findings, f)
}

// finish puts the findings in the order of the files.
func (c *checker) finish() *Report {
	place := map[string]int{}
	for i, d := range c.files {
		if _, ok := place[d]; !ok {
			place[d] = i
		}
	}
	slices.SortStableFunc(c.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(place[a.File], place[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return c.report
}

func (c *checker) check(ctx context.Context, d *document) {
	c.report.Checked++
	c.scratch.unasked = false
	created, warnings, err := c.scratch.create(ctx, object.Copy(d.tree))
	c.warnings(d, warnings)
	c.refusal(d, err)
	if d.isCRD() && err != nil {
		spec := specOf(d.tree)
		c.refused[schema.GroupKind{Group: object.String(spec, "group"), Kind: object.String(child(spec, "names"), "kind")}] = true
	}
	switch {
	case d.isCRD():
		c.twoTypes(d)
		c.costs(d)
	case c.scratch.unasked:
		c.add(d, Note, "NotConverted", "apiVersion", "it would be stored at another version, by a conversion webhook, which is not called here")
	case err == nil:
		c.defaulted(d, created)
	}
}

// upgrade creates one CRD and updates it to the other.
func (c *checker) upgrade(ctx context.Context, before, after *document) {
	c.report.Checked++
	if _, _, err := c.scratch.create(ctx, object.Copy(before.tree)); err != nil {
		c.add(before, Note, "Refused", "", "the old state would not be accepted as new, so that the update was not tried: "+err.Error())
	} else {
		warnings, err := c.scratch.update(ctx, object.Copy(after.tree))
		c.warnings(after, warnings)
		c.refusal(after, err)
	}
	c.twoTypes(after)
	c.costs(after)
	for _, change := range compare(before.tree, after.tree) {
		c.add(after, change.severity(), string(change.Effect), change.Path, change.What)
	}
}

// bothHave is an error where one of the files has no CRD, unless that may be for a mistake that is reported.
func (c *checker) bothHave(oldFile string, before []*document, newFile string, after []*document) error {
	if len(c.report.Findings) > 0 {
		return nil
	}
	for _, s := range []struct {
		file string
		has  []*document
	}{{oldFile, before}, {newFile, after}} {
		if !slices.ContainsFunc(s.has, (*document).isCRD) {
			return fmt.Errorf("%s has no CustomResourceDefinition to compare", s.file)
		}
	}
	return nil
}

func (c *checker) loadAll(files []string) (all []*document, err error) {
	before := len(c.report.Findings)
	for _, f := range files {
		documents, err := load(f, c)
		if err != nil {
			return nil, err
		}
		all = append(all, documents...)
	}
	if len(all) == 0 && len(c.report.Findings) == before {
		return nil, fmt.Errorf("nothing to check in %s: a FILE has objects in YAML or JSON, a folder files named .yaml, .yml or .json", strings.Join(files, ", "))
	}
	return all, nil
}
