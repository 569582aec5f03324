package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/fixture/program"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

const (
	size = 3 // of the etcd cluster, and the number of replicas
	// startTimeout limits the time until a restarted or healed process serves again.
	startTimeout = 40 * time.Second
	// diskSize is the size of the file system of a member. etcd keeps up to five logs of 64 MB, and allocates two more
	// in advance.
	diskSize = 1 << 30
)

// cluster is an etcd cluster of three members and three replicas of Trellis, each on a host of its own. The clients
// run in the process of the test and connect from another host.
type cluster struct {
	t        *testing.T
	net      *network
	clients  *host
	members  []*member
	replicas []*replica
	keys     *pki.Bundle
	keysDir  string
	tally    *tally
	etcd     *clientv3.Client // of the operator who moves leaders, compacts and defragments
	// compacted is the highest revision that the operator has compacted. Only the faults use it, one after the other,
	// and the checks after them.
	compacted int64
}

type member struct {
	*process
	url string
	dir string
}

type replica struct {
	*process
	url   string
	admin *api // for health checks and the checks at the end
}

// programs skips the test if this machine lacks one of its needs. It returns the path of etcd.
func programs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces require root")
	}
	needed := []string{"ip"}
	if os.Getenv("REPLICAS") != "" {
		needed = append(needed, "strace") // only random faults include a slow disk
	}
	for _, name := range needed {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	etcd, found := storagetest.Program(t, "etcd")
	if !found {
		t.Skip("bin/peers/etcd is missing: run \"make oracle\" to build it")
	}
	return etcd
}

// newCluster starts the members and the replicas, and waits until all of them serve.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	etcd := programs(t)
	flags := []string{}
	if os.Getenv("REPLICAS_RACE") != "" {
		flags = append(flags, "-race")
	}
	trellis := program.Build(t, flags...)
	c := &cluster{t: t, net: newNetwork(t), tally: newTally()}
	c.clients = c.net.newHost(t)
	c.startMembers(etcd)
	c.startReplicas(trellis)
	return c
}

func (c *cluster) startMembers(program string) {
	c.t.Helper()
	hosts, peers, urls := []*host{}, []string{}, []string{}
	for i := range size {
		h := c.net.newHost(c.t)
		hosts, urls = append(hosts, h), append(urls, "http://"+h.address+":2379")
		peers = append(peers, fmt.Sprintf("m%d=http://%s:2380", i, h.address))
	}
	for i, h := range hosts {
		dir := c.t.TempDir()
		c.must(h.run("mount", "-t", "tmpfs", "-o", fmt.Sprint("size=", diskSize), "tmpfs", dir))
		peer := strings.TrimPrefix(peers[i], fmt.Sprintf("m%d=", i))
		m := &member{url: urls[i], dir: dir, process: newProcess(c.t, fmt.Sprint("etcd-", i), h, program,
			fmt.Sprint("--name=m", i), "--data-dir="+filepath.Join(dir, "data"),
			"--listen-client-urls="+urls[i]+",http://127.0.0.1:2379", "--advertise-client-urls="+urls[i],
			"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
			"--initial-cluster="+strings.Join(peers, ","), "--log-level=warn")}
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		if err := m.start(); err != nil {
			c.t.Fatal(err)
		}
	}
	var err error
	c.etcd, err = clientv3.New(clientv3.Config{
		Endpoints: urls, Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
		DialOptions: c.dialOptions(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = c.etcd.Close() })
	c.must(c.waitMembers())
}

// dialOptions returns the options of clients of etcd.
func (c *cluster) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return c.clients.dial(ctx, "tcp", address)
	})}
}

// startReplicas starts replicas that share the keys of authorities and service accounts.
func (c *cluster) startReplicas(program string) {
	c.t.Helper()
	c.keysDir = c.t.TempDir()
	var err error
	c.keys, err = pki.Ensure(c.keysDir, nil, time.Now())
	c.must(err)
	servers := []string{}
	for _, m := range c.members {
		servers = append(servers, m.url)
	}
	for i := range size {
		h, dir := c.net.newHost(c.t), c.t.TempDir()
		c.must(os.Chmod(dir, 0o700))
		c.must(os.Mkdir(filepath.Join(dir, "pki"), 0o700))
		for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"} {
			data, err := os.ReadFile(filepath.Join(c.keysDir, name))
			c.must(err)
			c.must(os.WriteFile(filepath.Join(dir, "pki", name), data, 0o600))
		}
		r := &replica{url: "https://" + h.address + ":6443", process: newProcess(c.t, fmt.Sprint("replica-", i), h,
			program, "serve", "--data-dir="+dir, "--bind-address="+h.address, "--secure-port=6443",
			"--etcd-servers="+strings.Join(servers, ","))}
		r.admin = c.newAPI(i, r.url, c.adminCertificate(), 10*time.Second)
		c.replicas = append(c.replicas, r)
		c.must(r.start())
		c.must(c.waitReady(r))
	}
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// eventually waits until a condition returns nil.
func eventually(what string, condition func() error) error {
	tick, deadline := time.NewTicker(50*time.Millisecond), time.Now().Add(startTimeout)
	defer tick.Stop()
	for range tick.C {
		err := condition()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: timed out after %v: %w", what, startTimeout, err)
		}
	}
	return nil
}

// waitMembers waits until each member has a leader and serves linearizable reads.
func (c *cluster) waitMembers() error {
	for _, m := range c.members {
		err := eventually(m.name+" serves", func() error {
			if !m.running() {
				return errors.New("the process has exited")
			}
			_, err := c.status(m)
			return err
		})
		if err != nil {
			return err
		}
	}
	return eventually("etcd serves", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.etcd.Get(ctx, "any")
		return err
	})
}

func (c *cluster) status(m *member) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := c.etcd.Status(ctx, m.url)
	if err == nil && s.Leader == 0 {
		err = errors.New("the member has no leader")
	}
	return s, err
}

// leader returns the index of the member that leads, or -1.
func (c *cluster) leader() int {
	for i, m := range c.members {
		if s, err := c.status(m); err == nil && s.Leader == s.Header.MemberId {
			return i
		}
	}
	return -1
}

// waitReady waits until a replica serves. It must not need a restart.
func (c *cluster) waitReady(r *replica) error {
	return eventually(r.name+" is ready", func() error {
		if !r.running() {
			return fmt.Errorf("the process has exited: %s", r.tail())
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		for _, path := range []string{"/readyz", "/livez", "/api/v1/namespaces/default"} {
			if a := r.admin.do(ctx, "GET", path, "", nil); a.code != 200 {
				return fmt.Errorf("GET %s: %v", path, a)
			}
		}
		return nil
	})
}

// waitAll waits until all members and replicas serve.
func (c *cluster) waitAll() error {
	if err := c.waitMembers(); err != nil {
		return err
	}
	for _, r := range c.replicas {
		if err := c.waitReady(r); err != nil {
			return err
		}
	}
	return nil
}
