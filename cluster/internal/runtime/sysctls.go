package runtime

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaceOf maps prefixes of sysctls to the namespace that has a value of its own.
var namespaceOf = map[string]int{
	"net.": unix.CLONE_NEWNET, "fs.mqueue.": unix.CLONE_NEWIPC,
	"kernel.shm": unix.CLONE_NEWIPC, "kernel.msg": unix.CLONE_NEWIPC, "kernel.sem": unix.CLONE_NEWIPC,
}

// checkSysctls refuses a sysctl that would change the machine: one of no namespace, or of a namespace that the pod shares
// with the node.
func checkSysctls(sysctls map[string]string, spaces int) error {
	for name := range sysctls {
		own := false
		for prefix, space := range namespaceOf {
			own = own || spaces&space != 0 && strings.HasPrefix(name, prefix)
		}
		if !own || strings.Contains(name, "..") || strings.Contains(name, "/") {
			return fmt.Errorf("cannot set the sysctl %s: it is the machine's, and not the pod's own", name)
		}
	}
	return nil
}
