package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// isolatedVariable is an environment variable. It is set if this test process runs in a separate network namespace.
const isolatedVariable = "CLUSTER_TEST_APART"

// isolateNetwork starts this program again in a separate network namespace, and exits with the exit code of the new
// process. In the new process, isolateNetwork only configures the network. The namespace has one address, and a
// default route to a gateway that does not exist. kube-proxy has one set of rules per network namespace, and the tests
// must not change the rules of the machine or of another run.
func isolateNetwork() {
	if os.Getenv(isolatedVariable) != "" {
		if err := configureNetwork(); err != nil {
			panic(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	runtime.LockOSThread() // Pdeathsig kills the child when the parent's thread ends
	c := exec.Command(self, os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), isolatedVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); c.ProcessState == nil {
		panic(err)
	}
	os.Exit(c.ProcessState.ExitCode())
}

// configureNetwork adds the interfaces, the address and the default route of a test process.
func configureNetwork() error {
	link := netlink.NewLinkAttrs()
	link.Name = "route0"
	errs := []error{netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: "route1"})}
	for _, name := range []string{"lo", "route0", "route1"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		errs = append(errs, err)
	}
	route, err := netlink.LinkByName(link.Name)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 99, 2), Mask: net.CIDRMask(24, 32)}}
	gateway := net.IPv4(172, 31, 99, 1)
	errs = append(errs, netlink.AddrAdd(route, address),
		netlink.RouteAdd(&netlink.Route{LinkIndex: route.Attrs().Index, Gw: gateway}))
	return errors.Join(errs...)
}

// runInHostNetwork runs a command in the network namespace of the parent process. The go command needs this network to
// download modules.
func runInHostNetwork(t *testing.T, c *exec.Cmd) (out []byte, err error) {
	t.Helper()
	if os.Getenv(isolatedVariable) == "" {
		return c.CombinedOutput()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		host, missing := netns.GetFromPid(os.Getppid())
		if err = missing; err != nil {
			return
		}
		defer host.Close()
		if err = netns.Set(host); err == nil {
			out, err = c.CombinedOutput()
		}
	}()
	<-done
	if err != nil {
		err = fmt.Errorf("in the network of the host: %w", err)
	}
	return out, err
}
