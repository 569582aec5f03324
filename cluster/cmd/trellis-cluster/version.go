package main

import (
	"runtime/debug"
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// gitVersion is the version that nodes and user agents report. Kubernetes' build scripts set this variable. A build by
// the go command leaves a placeholder in it.
//
//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

// setVersion replaces the placeholder in gitVersion by the version of the module k8s.io/kubernetes.
func setVersion() {
	info, ok := debug.ReadBuildInfo()
	if !ok || !strings.Contains(gitVersion, "$Format") {
		return
	}
	for _, dep := range info.Deps {
		if dep.Path == "k8s.io/kubernetes" {
			gitVersion = dep.Version
			_ = version.SetDynamicVersion(gitVersion) // fails only for versions that differ from gitVersion
		}
	}
}
