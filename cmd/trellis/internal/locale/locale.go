// Package locale prevents the loading of kubectl's translations in processes that do not run kubectl, because loading
// them takes a quarter of the start time of a server. It reads only the command line.
package locale

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

// The packages of kubectl translate texts during their initialization, so this package must be initialized before
// them. If several packages are ready for initialization, Go initializes them in the order of their paths. The path
// of this package sorts before k8s.io. A test checks the order.
var _ = i18n.SetLoadTranslationsFunc(func() error {
	if !IsKubectl(os.Args) {
		return nil
	}
	return i18n.LoadTranslations("kubectl", nil)
})

// IsKubectl reports whether a command line runs kubectl or completes a kubectl command line. It runs kubectl if the
// name of the program or its first argument is kubectl.
func IsKubectl(args []string) bool {
	if Program(args) == "kubectl" {
		return true
	}
	return len(args) > 1 && args[1] == "kubectl" ||
		len(args) > 2 && strings.HasPrefix(args[1], "__complete") && args[2] == "kubectl"
}

// Program returns the name under which the program runs. This can be the name of a link or a copy. It returns "" if
// args is empty.
func Program(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(args[0]), ".exe")
}
