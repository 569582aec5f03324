package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
)

// maxFile is how large a file may be, in bytes.
const maxFile = 64 << 20

// document is one object of a file.
type document struct {
	file string
	line int        // lines of the file in front of it
	node *yaml.Node // where everything stands
	tree object.Tree
}

func (d *document) String() string {
	return strings.TrimSpace(object.String(d.tree, "kind") + " " + object.Name(d.tree))
}

func (d *document) isCRD() bool {
	return object.String(d.tree, "kind") == "CustomResourceDefinition" &&
		strings.HasPrefix(object.String(d.tree, "apiVersion"), "apiextensions.k8s.io/")
}

// load reads the documents of a file, of all manifests in a folder, or of standard input ("-").
// What cannot be parsed goes to the report.
func load(path string, c *checker) (all []*document, err error) {
	if path == "-" {
		return parse("-", os.Stdin, c)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return loadFile(path, c)
	}
	err = filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			return err
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
		return nil, err
	}
	defer f.Close()
	return parse(path, f, c)
}

func parse(file string, r io.Reader, c *checker) (all []*document, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", file, maxFile>>20)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	from := 0
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		at := max(bytes.Index(data[from:], text), 0) + from
		from = at + len(text)
		d := &document{file: file, line: bytes.Count(data[:at], []byte("\n"))}
		all = append(all, d.decode(text, c)...)
	}
}

// decode reads the text of d, which may be a list of objects.
func (d *document) decode(text []byte, c *checker) []*document {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		c.add(d, Error, "Syntax", "", err.Error())
		return nil
	}
	if len(root.Content) == 0 {
		return nil
	}
	d.node = root.Content[0]
	t, duplicates, err := object.DecodeYAML(text)
	if err != nil {
		c.add(d, Error, "Syntax", "", err.Error())
		return nil
	}
	d.tree = t
	for _, duplicate := range duplicates {
		c.add(d, Error, "Duplicate", "", duplicate)
	}
	items, ok := t["items"].([]any)
	if !ok || !strings.HasSuffix(object.String(t, "kind"), "List") {
		return []*document{d}
	}
	return d.elements(items)
}

// elements are the objects of a list.
func (d *document) elements(items []any) (all []*document) {
	_, list, ok := find(d.node, "items")
	for i, item := range items {
		t, isTree := item.(object.Tree)
		if isTree && ok && i < len(list.Content) {
			all = append(all, &document{file: d.file, line: d.line, node: list.Content[i], tree: t})
		}
	}
	return all
}
