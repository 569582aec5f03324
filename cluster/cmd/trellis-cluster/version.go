package main

import (
	"runtime/debug"
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// gitVersion is the variable that Kubernetes' own build sets, and `go build` does not: nodes and user agents would show a
// placeholder.
//
//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

// setVersion has the parts say which release of Kubernetes they are.
func setVersion() {
	info, ok := debug.ReadBuildInfo()
	if !ok || !strings.Contains(gitVersion, "$Format") {
		return
	}
	for _, dep := range info.Deps {
		if dep.Path == "k8s.io/kubernetes" {
			gitVersion = dep.Version
			_ = version.SetDynamicVersion(gitVersion) // refuses only what differs from gitVersion
		}
	}
}
