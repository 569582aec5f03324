package runtime

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctlNamespaces maps prefixes of sysctls to a kind of namespace. Each namespace of this kind has a separate value
// of these sysctls.
var sysctlNamespaces = map[string]int{
	"net.": unix.CLONE_NEWNET, "fs.mqueue.": unix.CLONE_NEWIPC,
	"kernel.shm": unix.CLONE_NEWIPC, "kernel.msg": unix.CLONE_NEWIPC, "kernel.sem": unix.CLONE_NEWIPC,
}

// checkSysctls returns an error for a sysctl that would change the machine. Such a sysctl is not separate for each
// namespace, or the Pod shares its namespace with the node. The parameter namespaces contains the separate namespaces
// of the Pod.
func checkSysctls(sysctls map[string]string, namespaces int) error {
	for name := range sysctls {
		separate := false
		for prefix, namespace := range sysctlNamespaces {
			separate = separate || namespaces&namespace != 0 && strings.HasPrefix(name, prefix)
		}
		if !separate || strings.Contains(name, "..") || strings.Contains(name, "/") {
			return fmt.Errorf("cannot set the sysctl %s: it would affect the machine outside of the pod", name)
		}
	}
	return nil
}
