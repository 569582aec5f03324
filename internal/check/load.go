package check

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/trellis-k8s/trellis/internal/object"
)

// maxFile is the maximum size of a file in bytes.
const maxFile = 64 << 20

// document is one object of a file.
type document struct {
	file string
	line int        // number of lines before the document
	size int        // number of lines of the document
	node *yaml.Node // positions of all values
	tree object.Tree
}

func (d *document) String() string {
	return strings.TrimSpace(object.String(d.tree, "kind") + " " + object.Name(d.tree))
}

func (d *document) isCRD() bool {
	return object.String(d.tree, "kind") == "CustomResourceDefinition" &&
		strings.HasPrefix(object.String(d.tree, "apiVersion"), "apiextensions.k8s.io/")
}

// load reads the documents of a file, of all manifests in a directory, or of standard input ("-"). It reports
// syntax errors as findings.
func load(path string, c *checker) (all []*document, err error) {
	if path == "-" {
		return parse("-", os.Stdin, c)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, pathErrorCause(err))
	}
	if !info.IsDir() {
		return loadFile(path, c)
	}
	err = filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", file, pathErrorCause(err))
		}
		regular := e.Type()&^fs.ModeSymlink == 0
		if !regular || !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(file))) {
			return nil
		}
		documents, err := loadFile(file, c)
		all = append(all, documents...)
		return err
	})
	return all, err
}

func loadFile(path string, c *checker) ([]*document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, pathErrorCause(err))
	}
	defer f.Close()
	return parse(path, f, c)
}

func parse(file string, r io.Reader, c *checker) (all []*document, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, pathErrorCause(err))
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", file, maxFile>>20)
	}
	c.files = append(c.files, file)
	documents, err := object.Documents(data)
	if err != nil {
		c.syntax(&document{file: file}, err)
		return nil, nil
	}
	for _, text := range documents {
		d := &document{file: file, line: text.Line, size: 1 + bytes.Count(bytes.TrimSpace(text.Text), []byte("\n"))}
		all = append(all, d.decode(text.Text, c)...)
	}
	return all, nil
}

// pathErrorCause returns the cause of an fs.PathError, because callers report the path themselves.
func pathErrorCause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// decode parses the text of d, which may be a list of objects.
func (d *document) decode(text []byte, c *checker) []*document {
	var root, more yaml.Node
	parser := yaml.NewDecoder(bytes.NewReader(text))
	switch err := parser.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		c.syntax(d, err)
		return nil
	}
	if err := parser.Decode(&more); !errors.Is(err, io.EOF) {
		c.syntax(d, cmp.Or(err, errors.New("documents must be separated by lines that contain only ---")))
		return nil
	}
	d.node = root.Content[0]
	switch d.node.Kind {
	case yaml.ScalarNode:
		if d.node.ShortTag() == "!!null" {
			return nil
		}
		fallthrough
	case yaml.SequenceNode:
		c.add(d, Error, "Syntax", "", "a manifest must be an object with apiVersion, kind and metadata")
		return nil
	}
	t, duplicates, err := object.DecodeYAML(text)
	if err != nil {
		c.syntax(d, err)
		return nil
	}
	d.tree = t
	c.booleans(d, d.node)
	for _, message := range duplicates {
		c.addParserErrors(d, "Duplicate", message)
	}
	items, ok := t["items"].([]any)
	if kind := object.String(t, "kind"); ok && strings.HasSuffix(kind, "List") || kind == "List" {
		return d.items(items, c)
	}
	return d.requireType(c)
}

// requireType returns d if it has apiVersion and kind. Otherwise it adds a finding and returns no document.
func (d *document) requireType(c *checker) []*document {
	for _, key := range []string{"apiVersion", "kind"} {
		if object.String(d.tree, key) == "" {
			c.add(d, Error, "Required", key, "Required value: must be a non-empty string")
			return nil
		}
	}
	return []*document{d}
}

// items returns the objects of a list. Objects without apiVersion and kind get those of the list.
func (d *document) items(items []any, c *checker) (all []*document) {
	_, list, _ := find(d.node, "items")
	if list.Kind == yaml.AliasNode {
		list = list.Alias
	}
	kind := strings.TrimSuffix(object.String(d.tree, "kind"), "List")
	for i, item := range items {
		t, ok := item.(object.Tree)
		if !ok || i >= len(list.Content) {
			c.add(d, Error, "Syntax", "items["+strconv.Itoa(i)+"]",
				"an item of a list must be an object with apiVersion, kind and metadata")
			continue
		}
		if t["kind"] == nil && t["apiVersion"] == nil && kind != "" {
			t["kind"], t["apiVersion"] = kind, d.tree["apiVersion"]
		}
		all = append(all, (&document{file: d.file, line: d.line, node: list.Content[i], tree: t}).requireType(c)...)
	}
	return all
}
