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
	nodesAddress = "10.77.0.2"    // address of the machine of the nodes
	podsRange    = "10.86.0.0/16" // address range of their Pods
	replyTable   = 8132           // routing table for packets from the address of the control plane
)

// twoMachines is a cluster of two simulated machines: the control plane, and a machine with the nodes. Each machine
// consists of namespaces of the kernel. The nodes can dial the address of the control plane. The control plane cannot
// dial the nodes or their Pods.
type twoMachines struct {
	*terminal // on the control plane
	address   string
	control   int // PID of the process that holds the namespaces of the control plane
	nodes     int // PID of the process that holds the network namespace of the nodes
	serve     *process
}

// controlPlaneScript makes /etc a writable overlay in the mount namespace of the control plane, so that tests can
// write files below /etc/kubernetes. It then waits forever, which keeps the namespace alive.
const controlPlaneScript = `mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" none /etc
mkdir -p /etc/kubernetes
echo ready
exec sleep infinity`

// newTwoMachines creates both machines and connects them. It does not start the API server or the nodes.
func newTwoMachines(t *testing.T, address string, packages ...string) *twoMachines {
	t.Helper()
	w := &fixture{T: t}
	if os.Geteuid() != 0 {
		t.Skip("it makes network and mount namespaces: run the tests as root")
	}
	dir, err := os.MkdirTemp("", "far") // the path must be short, because it contains sockets
	w.must(err)
	w.server = &testserver.Server{Kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	f := &twoMachines{terminal: w.newTerminal(dir, packages...), address: address}
	w.Cleanup(func() { removeNodesDir(w, dir) })
	hold := func(namespace string, args ...string) int {
		p := startCommand(t, exec.Command("unshare", append([]string{namespace}, args...)...))
		p.waitForOutput(1, "ready")
		return p.cmd.Process.Pid
	}
	f.control = hold("--mount", "sh", "-eu", "-c", controlPlaneScript, t.TempDir())
	f.nodes = hold("--net", "sh", "-c", "echo ready; exec sleep infinity")
	f.prefix = enterCommand(f.control, dir)
	f.connectMachines()
	return f
}

// enterCommand returns the first words of a command. The caller appends another command, which then runs in a folder
// on a machine.
func enterCommand(machine int, dir string) []string {
	return []string{"nsenter", fmt.Sprintf("--target=%d", machine), "--mount", "--net", "--wdns=" + dir}
}

// startOn starts a program on a machine.
func (f *twoMachines) startOn(machine int, args ...string) *process {
	f.Helper()
	line := append(enterCommand(machine, f.dir), args...)
	return startCommand(f.T, exec.Command(line[0], line[1:]...))
}

// connectMachines connects the machines by a veth pair. On the control plane, only replies have a route to the nodes.
// The source of a reply is the address of the control plane.
func (f *twoMachines) connectMachines() {
	f.Helper()
	namespace, err := netns.GetFromPid(f.nodes)
	f.must(err)
	defer func() { _ = namespace.Close() }()
	there, err := netlink.NewHandleAt(namespace)
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
	f.must(there.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Gw: control.IP,
		Flags: int(netlink.FLAG_ONLINK)}))

	rule := netlink.NewRule()
	rule.Src, rule.Table, rule.Family = control, replyTable, unix.AF_INET
	f.must(netlink.RuleAdd(rule))
	f.Cleanup(func() { _ = netlink.RuleDel(rule) })
	for _, dst := range []*net.IPNet{ipNet(nodesAddress + "/32"), ipNet(podsRange)} {
		f.must(netlink.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: near.Attrs().Index, Gw: nodes.IP, Table: replyTable,
			Flags: int(netlink.FLAG_ONLINK)}))
		unreachable := &netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}
		f.must(netlink.RouteAdd(unreachable))
		f.Cleanup(func() { _ = netlink.RouteDel(unreachable) })
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

// setAddress sets the address of one end of the veth pair. It enables this end and the loopback interface.
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

// startServer starts an API server whose files are at the paths that kubeadm uses, and waits until the server is
// ready. As in kube-apiserver, requests to aggregated APIs use the addresses of Services. Only kube-proxy on the nodes
// can route these addresses.
func (f *twoMachines) startServer() {
	f.Helper()
	f.serve = f.startOn(f.control, filepath.Join(f.dir, "path", "trellis"), "serve", "--data-dir=/etc/kubernetes",
		"--bind-address="+f.address, "--egress-selector-config-file=egress-selector-configuration.yaml",
		"--enable-aggregator-routing=false")
	f.serve.waitForOutput(1, "Trellis is ready")
	f.loadKubeconfig()
}

// loadKubeconfig copies the administrator's kubeconfig from the control plane, and creates the client of the test from
// it.
func (f *twoMachines) loadKubeconfig() {
	f.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/kubernetes/admin.kubeconfig", f.control))
	f.must(err)
	f.must(os.WriteFile(f.server.Kubeconfig, data, 0o600))
	f.server.Config, err = clientcmd.BuildConfigFromFlags("", f.server.Kubeconfig)
	f.must(err)
	f.Interface = kubernetes.NewForConfigOrDie(rest.AddUserAgent(f.server.Config, "test"))
}

// startRemoteNodes starts the controllers, the scheduler and two nodes on the machine of the nodes. The parameter
// images contains the values of the flag --image.
func (f *twoMachines) startRemoteNodes(images ...string) {
	f.Helper()
	for n := range 2 {
		f.Cleanup(func() { f.cleanUpMachine(f.nodes, fmt.Sprintf("node-%d", n+1)) })
	}
	f.startOn(f.nodes, append(append([]string{f.clusterProgram()}, f.upArgs(f.dir, 2, images...)...),
		"--pod-cidr="+podsRange)...)
	f.waitForTwoNodes()
}

// clusterProgram returns the path of trellis-cluster in the folder of the test. It creates this link if necessary.
func (f *twoMachines) clusterProgram() string {
	f.Helper()
	link := filepath.Join(f.dir, "path", "trellis-cluster")
	if err := os.Symlink(program(f.T, ""), link); err != nil && !os.IsExist(err) {
		f.Fatal(err)
	}
	return link
}

// startControlPlaneNode starts a node on the control plane, which runs the static Pods of /etc/kubernetes/manifests.
func (f *twoMachines) startControlPlaneNode(images ...string) {
	f.Helper()
	const name = "control-plane"
	f.Cleanup(func() { f.cleanUpMachine(f.control, name) })
	args := []string{f.clusterProgram(), "node", "--kubeconfig=" + f.server.Kubeconfig, "--hostname-override=" + name,
		"--node-ip=" + f.address, "--port=0",
		"--root-dir=" + filepath.Join(f.dir, ".trellis-cluster", name), "--pod-manifest-path=/etc/kubernetes/manifests"}
	for _, i := range images {
		args = append(args, "--image="+i)
	}
	f.startOn(f.control, args...)
	f.waitForNode(name)
}

// cleanUpMachine removes the Pods and the bridge that a node has left on a machine.
func (f *twoMachines) cleanUpMachine(machine int, name string) {
	folder := filepath.Join(f.dir, ".trellis-cluster", name, "runtime")
	if _, err := os.Stat(folder); err != nil {
		return // the node has never started
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

// checkUnreachable checks that the control plane cannot dial an address directly.
func (f *twoMachines) checkUnreachable(address string) {
	f.Helper()
	conn, err := net.DialTimeout("tcp", address, testTimeout)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "no route to host") {
		f.Errorf("dial %s from the control plane: got %v, want no route to host", address, err)
	}
}
