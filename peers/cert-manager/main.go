// Command cert-manager prints the objects of cert-manager's chart, as Helm renders them. Its argument is the folder of
// cert-manager's Go module. This folder does not contain the released chart: Chart.yaml is a template, and the CRDs
// are in another folder.
package main

import (
	"fmt"
	"io/fs"
	"log"
	"os"
	"path"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

func main() {
	log.SetFlags(0)
	if err := render(os.DirFS(os.Args[1])); err != nil {
		log.Fatal(err)
	}
}

func render(module fs.FS) error {
	var files []*loader.BufferedFile
	for folder, in := range map[string]string{"deploy/charts/cert-manager": "",
		"deploy/charts/cert-manager/templates": "templates", "deploy/crds": "templates"} {
		found, err := fs.ReadDir(module, folder)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.IsDir() || path.Ext(f.Name()) == ".md" {
				continue
			}
			text, err := fs.ReadFile(module, path.Join(folder, f.Name()))
			if err != nil {
				return err
			}
			name := path.Join(in, strings.Replace(f.Name(), "Chart.template.yaml", "Chart.yaml", 1))
			files = append(files, &loader.BufferedFile{Name: name, Data: text})
		}
	}
	chart, err := loader.LoadFiles(files)
	if err != nil {
		return fmt.Errorf("load the chart: %w", err)
	}
	// startupapicheck is a Job that waits until the webhook is ready. The test that uses this program waits for the
	// webhook in another way.
	values, err := chartutil.ToRenderValues(chart, map[string]any{"startupapicheck": map[string]any{"enabled": false}},
		chartutil.ReleaseOptions{Name: "cert-manager", Namespace: "cert-manager", Revision: 1,
			IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return fmt.Errorf("compute the values of the chart: %w", err)
	}
	rendered, err := engine.Render(chart, values)
	if err != nil {
		return fmt.Errorf("render the chart: %w", err)
	}
	delete(rendered, "cert-manager/templates/NOTES.txt")
	_, manifests, err := releaseutil.SortManifests(rendered, chartutil.DefaultVersionSet, releaseutil.InstallOrder)
	for _, m := range manifests {
		fmt.Printf("---\n%s\n", m.Content)
	}
	return err
}
