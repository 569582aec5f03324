package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
)

// manifest is an object and the file that contains it. The object is stored as JSON to save memory.
type manifest struct {
	kind            schema.GroupVersionKind
	namespace, name string
	json            []byte
	source          string
}

// load reads all objects in files and directories.
func load(paths []string) ([]*manifest, error) {
	var all []*manifest
	for _, path := range paths {
		names, err := files(path)
		if err != nil {
			return nil, err
		}
		before := len(all)
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read manifests: %w", err)
			}
			objects, err := parse(name, data)
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
		if len(all) == before {
			return nil, fmt.Errorf("read manifests: no objects in %s", path)
		}
	}
	return all, nil
}

// files returns path if it is a file, or the manifest files in path if it is a directory.
func files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var names []string
	for _, e := range entries {
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".yaml", ".yml", ".json":
			if !e.IsDir() {
				names = append(names, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read manifests: no .yaml, .yml or .json file in %s", path)
	}
	return names, nil
}

// parse returns the objects in a file. It replaces lists by their items.
func parse(source string, data []byte) ([]*manifest, error) {
	var all []*manifest
	documents, err := object.Documents(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	for _, doc := range documents {
		fail := func(err error) ([]*manifest, error) {
			return nil, fmt.Errorf("%s: document at line %d: %w", source, doc.Line+1, err)
		}
		text, err := sigsyaml.YAMLToJSON(doc.Text)
		if err != nil {
			return fail(err)
		}
		if string(text) == "null" {
			continue
		}
		o, _, err := unstructured.UnstructuredJSONScheme.Decode(text, nil, nil)
		if err != nil {
			return fail(err)
		}
		if all, err = flatten(all, source, text, o); err != nil {
			return fail(err)
		}
	}
	return all, nil
}

// flatten appends o to all, or the items of o if it is a list. text is the JSON of o.
func flatten(all []*manifest, source string, text []byte, o runtime.Object) ([]*manifest, error) {
	switch o := o.(type) {
	case *unstructured.Unstructured:
		if o.GetName() == "" {
			return nil, errors.New("metadata.name is missing")
		}
		return append(all, &manifest{o.GroupVersionKind(), o.GetNamespace(), o.GetName(), text, source}), nil
	case *unstructured.UnstructuredList:
		for i := range o.Items {
			text, err := o.Items[i].MarshalJSON()
			if err != nil {
				return nil, err
			}
			if all, err = flatten(all, source, text, &o.Items[i]); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("unexpected %T", o)
}

// sortForApply moves CRDs to the front, followed by namespaces, and returns the number of CRDs.
// The order of other objects does not change.
func sortForApply(objects []*manifest) (definitions int) {
	rank := func(m *manifest) int {
		switch m.kind.GroupKind() {
		case crdKind:
			return 0
		case schema.GroupKind{Kind: "Namespace"}:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(objects, func(a, b *manifest) int { return rank(a) - rank(b) })
	for definitions < len(objects) && rank(objects[definitions]) == 0 {
		definitions++
	}
	return definitions
}
