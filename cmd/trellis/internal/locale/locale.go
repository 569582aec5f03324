// Package locale keeps kubectl's translations from being loaded where no kubectl
// runs: reading them takes a quarter of a server's start. It knows nothing but the command line.
package locale

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

// The packages of kubectl translate texts while they are initialised, so this has to
// come before: Go initialises packages whose imports are ready in the order of their paths,
// and this one sorts before k8s.io. A test shows that it still does.
var _ = i18n.SetLoadTranslationsFunc(func() error {
	if !IsKubectl(os.Args) {
		return nil
	}
	return i18n.LoadTranslations("kubectl", nil)
})

// IsKubectl reports whether a command line runs kubectl: the program has its name,
// or its first argument does.
func IsKubectl(args []string) bool {
	if Program(args) == "kubectl" {
		return true
	}
	return len(args) > 1 && (args[1] == "kubectl" || len(args) > 2 && strings.HasPrefix(args[1], "__complete") && args[2] == "kubectl")
}

// Program is the name that the program itself is called by (that of a link or a copy), "" if there is none.
func Program(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(args[0]), ".exe")
}
