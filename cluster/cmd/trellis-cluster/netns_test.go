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

// isolatedVariable is set where the tests have a network of their own.
const isolatedVariable = "CLUSTER_TEST_APART"

// isolateNetwork returns in a network namespace with one address, and a way out that leads nowhere: kube-proxy's rules are one for such a
// namespace, and must not be mixed with those of the machine, or of another run of the tests.
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
	runtime.LockOSThread() // whose end the process takes for ours
	c := exec.Command(self, os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), isolatedVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); c.ProcessState == nil {
		panic(err)
	}
	os.Exit(c.ProcessState.ExitCode())
}

func configureNetwork() error {
	link := netlink.NewLinkAttrs()
	link.Name = "way0"
	errs := []error{netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: "way1"})}
	for _, name := range []string{"lo", "way0", "way1"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		errs = append(errs, err)
	}
	way, err := netlink.LinkByName(link.Name)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 99, 2), Mask: net.CIDRMask(24, 32)}}
	errs = append(errs, netlink.AddrAdd(way, address), netlink.RouteAdd(&netlink.Route{LinkIndex: way.Attrs().Index, Gw: net.IPv4(172, 31, 99, 1)}))
	return errors.Join(errs...)
}

// runInHostNetwork runs a command in the network that the tests were started in: go may want a module.
func runInHostNetwork(t *testing.T, c *exec.Cmd) (out []byte, err error) {
	t.Helper()
	if os.Getenv(isolatedVariable) == "" {
		return c.CombinedOutput()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
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
		err = fmt.Errorf("in the network outside: %w", err)
	}
	return out, err
}
