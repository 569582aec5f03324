package main

import (
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// The build of kubectl sets these variables, which hold its version, with linker flags. "go build" without these
// flags leaves placeholders, and then "kubectl version" fails. So the program sets the variables before it runs
// kubectl.
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
