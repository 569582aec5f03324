package main

import (
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// What kubectl reports as its version is stamped into this package by upstream's linker flags. A program
// built with "go build" has none, and "kubectl version" fails on what stands there instead;
// so they are set before kubectl runs.
//
//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

// stampRelease sets the version of kubectl to that of the libraries it is built from, unless a
// linker flag has.
func stampRelease() {
	if !strings.Contains(gitVersion, "$Format") {
		return
	}
	_, kubernetes := versions()
	gitVersion = kubernetes
	parts := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	gitMajor, gitMinor = parts[0], parts[1]
	_ = version.SetDynamicVersion(gitVersion) // refuses only what differs from gitVersion
}
