// Package check validates manifests without a server. It reports the errors and warnings of a server for
// CustomResourceDefinitions and for objects of their kinds. It also compares two versions of a
// CustomResourceDefinition and reports the effects on stored objects.
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

// Severity classifies a Finding.
type Severity string

const (
	// Error marks a manifest that a server rejects.
	Error Severity = "error"
	// Warning marks a manifest that a server accepts, but that probably contains a mistake.
	Warning Severity = "warning"
	// Note marks additional information.
	Note Severity = "note"
)

// Finding is one result at a position in a file.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
	Object   string   `json:"object,omitempty"` // kind and name
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`         // type of a field error, or Pruned, Defaulted, Cost, ...
	Path     string   `json:"path,omitempty"` // in upstream's notation
	Message  string   `json:"message"`
}

// Report holds all findings in the order of the files.
type Report struct {
	Findings []Finding `json:"findings"`
	Rules    []Rule    `json:"rules,omitempty"`
	Checked  int       `json:"checked"` // number of CRDs and objects
}

// Count returns the number of findings with severity s.
func (r *Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Total returns the number of findings with severity s as text, such as "1 error" or "2 errors".
func (r *Report) Total(s Severity) string {
	if n := r.Count(s); n != 1 {
		return fmt.Sprintf("%d %ss", n, s)
	}
	return "1 " + string(s)
}

// Manifests validates the CRDs in files, then every other object. Files contain YAML or JSON. Directories are
// searched, and "-" is standard input. Objects are validated against the CRDs in the files or as built-in kinds. It
// returns an error if a file cannot be read.
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

// Upgrade validates the CRDs in newFile as updates of the CRDs with the same name in oldFile. It reports the
// effects on stored objects.
func Upgrade(ctx context.Context, oldFile, newFile string) (*Report, error) {
	if oldFile == "-" && newFile == "-" {
		return nil, errors.New("only one of the two files can be standard input")
	}
	c := newChecker()
	var crds [2][]*document
	files := []string{oldFile, newFile}
	for i, file := range files {
		documents, err := c.loadAll([]string{file})
		if err != nil {
			return nil, err
		}
		crds[i] = slices.DeleteFunc(documents, func(d *document) bool { return !d.isCRD() })
	}
	for i, file := range files {
		if len(crds[i]) == 0 && len(c.report.Findings) == 0 { // findings would explain why there is no CRD
			return nil, fmt.Errorf("%s has no CustomResourceDefinition to compare", file)
		}
	}
	var err error
	if c.scratch, err = newScratch(ctx); err != nil {
		return nil, err
	}
	defer c.scratch.close()
	before, after := crds[0], crds[1]
	for _, d := range after {
		if old := sameName(before, d); old != nil {
			c.upgrade(ctx, old, d)
			continue
		}
		c.add(d, Note, "New", "", "the CustomResourceDefinition is not in "+oldFile)
		c.check(ctx, d)
	}
	for _, d := range before {
		if sameName(after, d) == nil {
			c.add(d, Note, "Gone", "", "the CustomResourceDefinition is not in "+newFile+
				": deleting it from a server deletes all its objects")
		}
	}
	return c.finish(), nil
}

// sameName returns the document with the name of d, or nil.
func sameName(documents []*document, d *document) *document {
	for _, other := range documents {
		if object.Name(other.tree) == object.Name(d.tree) {
			return other
		}
	}
	return nil
}

func newChecker() *checker {
	return &checker{report: &Report{Findings: []Finding{}}, rejected: map[schema.GroupKind]bool{}}
}

// checker is the state of one run.
type checker struct {
	report   *Report
	scratch  *scratch
	files    []string                  // in the order of reading
	rejected map[schema.GroupKind]bool // kinds with an invalid CRD
}

func (c *checker) add(d *document, s Severity, reason, path, message string) {
	line, column := d.position(path)
	c.addAt(d, line, column, Finding{Severity: s, Reason: reason, Path: path, Message: message})
}

// addAt adds the finding f for the document d at a position in its file.
func (c *checker) addAt(d *document, line, column int, f Finding) {
	f.File, f.Line, f.Column, f.Object = d.file, line, column, d.String()
	c.report.Findings = append(c.report.Findings, f)
}

// finish sorts the findings in the order of the files.
func (c *checker) finish() *Report {
	order := map[string]int{}
	for i, file := range slices.Backward(c.files) { // a file that was read twice has its first place
		order[file] = i
	}
	slices.SortStableFunc(c.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column))
	})
	return c.report
}

func (c *checker) check(ctx context.Context, d *document) {
	c.report.Checked++
	c.scratch.webhookSkipped = false
	created, warnings, err := c.scratch.create(ctx, object.Copy(d.tree))
	c.warnings(d, warnings)
	c.addRejection(d, err)
	if d.isCRD() && err != nil {
		spec := specOf(d.tree)
		c.rejected[schema.GroupKind{Group: object.String(spec, "group"),
			Kind: object.String(child(spec, "names"), "kind")}] = true
	}
	switch {
	case d.isCRD():
		c.schemas(d)
	case c.scratch.webhookSkipped:
		c.add(d, Note, "NotConverted", "apiVersion",
			"the object was not converted to the storage version, because this command calls no conversion webhooks")
	case err == nil:
		c.defaulted(d, created)
	}
}

// upgrade creates a CRD in its old state and then updates it to its new state.
func (c *checker) upgrade(ctx context.Context, before, after *document) {
	c.report.Checked++
	if _, _, err := c.scratch.create(ctx, object.Copy(before.tree)); err != nil {
		c.add(before, Note, "Refused", "",
			"the update was not checked, because the old CustomResourceDefinition is invalid: "+err.Error())
	} else {
		warnings, err := c.scratch.update(ctx, object.Copy(after.tree))
		c.warnings(after, warnings)
		c.addRejection(after, err)
	}
	c.schemas(after)
	for _, change := range compare(before.tree, after.tree) {
		c.add(after, severities[change.Effect], string(change.Effect), change.Path, change.What)
	}
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
		return nil, fmt.Errorf("found no objects in %s: a file must contain objects in YAML or JSON, and a directory "+
			"must contain files with the suffix .yaml, .yml or .json", strings.Join(files, ", "))
	}
	return all, nil
}
