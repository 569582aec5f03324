package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/testserver"
)

const (
	nodesAddress = "10.77.0.2"    // of the nodes' machine
	podsRange    = "10.86.0.0/16" // of their Pods
	replyTable   = 8132           // of routes for what answers those that have called
)

// twoMachines is a cluster of two machines: the control plane, and one of nodes. These can dial the control plane at its address. The control
// plane cannot dial the nodes, nor their Pods.
type twoMachines struct {
	*terminal // of the control plane
	address   string
	control   int // the processes that hold the machines
	nodes     int
	serve     *process
}

// controlPlaneScript holds a machine where /etc is a copy of its own, in which the control plane's files go.
const controlPlaneScript = `mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" none /etc
mkdir -p /etc/kubernetes
echo there
exec sleep infinity`

// newTwoMachines makes both machines. Nothing runs there yet.
func newTwoMachines(t *testing.T, address string, packages ...string) *twoMachines {
	t.Helper()
	w := &fixture{T: t}
	if os.Geteuid() != 0 {
		t.Skip("it makes network and mount namespaces: run the tests as root")
	}
	dir, err := os.MkdirTemp("", "far") // a short name: there are sockets in it
	w.must(err)
	w.server = &testserver.Server{Kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	f := &twoMachines{terminal: w.newTerminal(dir, packages...), address: address}
	w.Cleanup(func() { removeNodesDir(w, dir) })
	hold := func(spaces string, args ...string) int {
		p := startCommand(t, exec.Command("unshare", append([]string{spaces}, args...)...))
		p.waitForOutput(1, "there")
		return p.cmd.Process.Pid
	}
	f.control = hold("--mount", "sh", "-eu", "-c", controlPlaneScript, t.TempDir())
	f.nodes = hold("--net", "sh", "-c", "echo there; exec sleep infinity")
	f.prefix = enterCommand(f.control, dir)
	f.connectMachines()
	return f
}

// enterCommand is what begins a command line that is run on a machine.
func enterCommand(machine int, dir string) []string {
	return []string{"nsenter", fmt.Sprintf("--target=%d", machine), "--mount", "--net", "--wdns=" + dir}
}

// startOn starts a program on a machine.
func (f *twoMachines) startOn(machine int, args ...string) *process {
	f.Helper()
	line := append(enterCommand(machine, f.dir), args...)
	return startCommand(f.T, exec.Command(line[0], line[1:]...))
}

// connectMachines lays a cable. The control plane has a route to the nodes for what answers at its address alone.
func (f *twoMachines) connectMachines() {
	f.Helper()
	space, err := netns.GetFromPid(f.nodes)
	f.must(err)
	defer func() { _ = space.Close() }()
	there, err := netlink.NewHandleAt(space)
	f.must(err)
	defer there.Close()
	here, err := netlink.NewHandle()
	f.must(err)
	defer here.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "near0"
	f.must(here.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "far0", PeerNamespace: netlink.NsPid(f.nodes)}))
	control, nodes := ipNet(f.address+"/32"), ipNet(nodesAddress+"/24")
	near, far := setAddress(f.fixture, here, "near0", control), setAddress(f.fixture, there, "far0", nodes)
	f.Cleanup(func() { _ = here.LinkDel(near) })
	f.must(there.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Gw: control.IP, Flags: int(netlink.FLAG_ONLINK)}))

	rule := netlink.NewRule()
	rule.Src, rule.Table, rule.Family = control, replyTable, unix.AF_INET
	f.must(netlink.RuleAdd(rule))
	f.Cleanup(func() { _ = netlink.RuleDel(rule) })
	for _, dst := range []*net.IPNet{ipNet(nodesAddress + "/32"), ipNet(podsRange)} {
		f.must(netlink.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: near.Attrs().Index, Gw: nodes.IP, Table: replyTable, Flags: int(netlink.FLAG_ONLINK)}))
		no := &netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}
		f.must(netlink.RouteAdd(no))
		f.Cleanup(func() { _ = netlink.RouteDel(no) })
	}
}

func ipNet(text string) *net.IPNet {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	n.IP = ip.To4()
	return n
}

// setAddress gives an end of the cable its address.
func setAddress(f *fixture, at *netlink.Handle, name string, address *net.IPNet) netlink.Link {
	f.Helper()
	for _, n := range []string{"lo", name} {
		l, err := at.LinkByName(n)
		f.must(err)
		f.must(at.LinkSetUp(l))
	}
	l, err := at.LinkByName(name)
	f.must(err)
	f.must(at.AddrAdd(l, &netlink.Addr{IPNet: address}))
	return l
}

// startServer starts an API server, which has its files where kubeadm has them, and returns once it answers. It calls aggregated APIs by the addresses
// of their Services, as kube-apiserver does: only the nodes, by kube-proxy, know where these lead.
func (f *twoMachines) startServer() {
	f.Helper()
	f.serve = f.startOn(f.control, filepath.Join(f.dir, "path", "trellis"), "serve", "--data-dir=/etc/kubernetes", "--bind-address="+f.address, "--egress-selector-config-file=egress-selector-configuration.yaml",
		"--enable-aggregator-routing=false")
	f.serve.waitForOutput(1, "Trellis is ready")
	f.loadKubeconfig()
}

// loadKubeconfig has the machines, and the test, come to the API server.
func (f *twoMachines) loadKubeconfig() {
	f.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/kubernetes/admin.kubeconfig", f.control))
	f.must(err)
	f.must(os.WriteFile(f.server.Kubeconfig, data, 0o600))
	f.server.Config, err = clientcmd.BuildConfigFromFlags("", f.server.Kubeconfig)
	f.must(err)
	f.Interface = kubernetes.NewForConfigOrDie(rest.AddUserAgent(f.server.Config, "test"))
}

// startRemoteNodes starts two nodes, with the controllers and the scheduler, on the far machine. Images are what stands for them.
func (f *twoMachines) startRemoteNodes(images ...string) {
	f.Helper()
	for n := range 2 {
		f.Cleanup(func() { f.cleanUpMachine(f.nodes, fmt.Sprintf("node-%d", n+1)) })
	}
	f.startOn(f.nodes, append(append([]string{f.clusterProgram()}, f.upArgs(f.dir, 2, images...)...), "--pod-cidr="+podsRange)...)
	f.waitForTwoNodes()
}

// clusterProgram is the program trellis-cluster.
func (f *twoMachines) clusterProgram() string {
	f.Helper()
	link := filepath.Join(f.dir, "path", "trellis-cluster")
	if err := os.Symlink(program(f.T, ""), link); err != nil && !os.IsExist(err) {
		f.Fatal(err)
	}
	return link
}

// startControlPlaneNode starts the node that the control plane is, which runs the static Pods of a folder.
func (f *twoMachines) startControlPlaneNode(images ...string) {
	f.Helper()
	const name = "control-plane"
	f.Cleanup(func() { f.cleanUpMachine(f.control, name) })
	args := []string{f.clusterProgram(), "node", "--kubeconfig=" + f.server.Kubeconfig, "--hostname-override=" + name, "--node-ip=" + f.address, "--port=0",
		"--root-dir=" + filepath.Join(f.dir, ".trellis-cluster", name), "--pod-manifest-path=/etc/kubernetes/manifests"}
	for _, i := range images {
		args = append(args, "--image="+i)
	}
	f.startOn(f.control, args...)
	f.waitForNode(name)
}

// cleanUpMachine ends what a node has left on a machine.
func (f *twoMachines) cleanUpMachine(machine int, name string) {
	folder := filepath.Join(f.dir, ".trellis-cluster", name, "runtime")
	if _, err := os.Stat(folder); err != nil {
		return // it has never been there
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	f.must(err)
	there, err := netns.GetFromPid(machine)
	f.must(err)
	f.must(netns.Set(there))
	defer func() { f.must(netns.Set(here)) }()
	f.cleanUpNode(folder)
}

// checkUnreachable fails where the control plane can dial an address by itself.
func (f *twoMachines) checkUnreachable(address string) {
	f.Helper()
	conn, err := net.DialTimeout("tcp", address, testTimeout)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "no route to host") {
		f.Errorf("the control plane dials %s: %v", address, err)
	}
}
