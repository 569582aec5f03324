package main

import (
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// Upstream's build sets the version of kubectl by linker flags for these variables. "go build" does not, and then
// "kubectl version" fails on the placeholder. So the program sets them before it runs kubectl.
//
//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

// stampRelease sets the version of kubectl to the version of its libraries, unless a linker flag has set it.
func stampRelease() {
	if !strings.Contains(gitVersion, "$Format") {
		return
	}
	_, kubernetes := versions()
	gitVersion = kubernetes
	parts := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	gitMajor, gitMinor = parts[0], parts[1]
	_ = version.SetDynamicVersion(gitVersion) // fails only if the version differs from gitVersion
}
