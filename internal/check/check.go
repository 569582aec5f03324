// Package check says without a server what a server would say of manifests: of
// CustomResourceDefinitions, of objects of the kinds they define, and of what a new state of a
// CustomResourceDefinition does to objects that are stored already.
package check

import (
	"context"
	"fmt"
	"slices"

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

// Manifests checks the CRDs in files (YAML or JSON; folders are searched, "-" is standard input),
// then every other object: against the CRD among them that defines its kind, or as the built-in kind that
// it is. An error is a file that cannot be read.
func Manifests(ctx context.Context, files []string) (*Report, error) {
	c := &checker{report: &Report{Findings: []Finding{}}}
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
	return c.report, nil
}

// Upgrade checks a CRD that is to replace another of the same name, and says what that means for
// stored objects.
func Upgrade(ctx context.Context, oldFile, newFile string) (*Report, error) {
	c := &checker{report: &Report{Findings: []Finding{}}}
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
	return c.report, nil
}

// checker is one run.
type checker struct {
	report  *Report
	scratch *scratch
}

func (c *checker) add(d *document, s Severity, reason, path, message string) {
	line, column := d.position(path)
	c.report.Findings = append(c.report.Findings, Finding{
		File: d.file, Line: line, Column: column, Object: d.String(),
		Severity: s, Reason: reason, Path: path, Message: message,
	})
}

func (c *checker) check(ctx context.Context, d *document) {
	c.report.Checked++
	created, warnings, err := c.scratch.create(ctx, object.Copy(d.tree))
	c.warnings(d, warnings)
	c.refusal(d, err)
	switch {
	case d.isCRD():
		c.costs(d)
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
	c.costs(after)
	for _, change := range compare(before.tree, after.tree) {
		c.add(after, change.severity(), string(change.Effect), change.Path, change.What)
	}
}

func (c *checker) loadAll(files []string) (all []*document, err error) {
	for _, f := range files {
		documents, err := load(f, c)
		if err != nil {
			return nil, err
		}
		all = append(all, documents...)
	}
	if len(all) == 0 && len(c.report.Findings) == 0 {
		return nil, fmt.Errorf("no manifests in %v", files)
	}
	return all, nil
}
