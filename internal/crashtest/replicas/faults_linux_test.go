package replicas_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fault is a kind of fault. inject causes it on a random part of the cluster for a time, and removes it.
type fault struct {
	name   string
	inject func(c *cluster, r *rand.Rand, d time.Duration) error
}

// faults returns all kinds. Each one leaves two members and two replicas that work.
func faults() []fault {
	return []fault{
		{"kill a replica", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.restart(c.replicas[r.IntN(size)].process, d)
		}},
		{"kill a member", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.restart(c.members[c.anyMember(r)].process, d)
		}},
		{"pause a replica", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.pause(c.replicas[r.IntN(size)].process, d)
		}},
		{"pause a member", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.pause(c.members[c.anyMember(r)].process, d)
		}},
		{"partition a member from members", func(c *cluster, r *rand.Rand, d time.Duration) error {
			i := c.anyMember(r)
			return c.drop(d, c.net.partition(c.members[i].host, c.memberHosts(i)...))
		}},
		{"partition a member from all", func(c *cluster, r *rand.Rand, d time.Duration) error {
			i := c.anyMember(r)
			return c.drop(d, c.net.partition(c.members[i].host, append(c.memberHosts(i), c.replicaHosts()...)...))
		}},
		{"partition a replica from etcd", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.drop(d, c.net.partition(c.replicas[r.IntN(size)].host, c.memberHosts(-1)...))
		}},
		{"partition a replica from one member", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.drop(d, c.net.partition(c.replicas[r.IntN(size)].host, c.members[c.anyMember(r)].host))
		}},
		{"partition clients from a replica", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.drop(d, c.net.partition(c.clients, c.replicas[r.IntN(size)].host))
		}},
		{"drop packets from a member to members", func(c *cluster, r *rand.Rand, d time.Duration) error {
			i := c.anyMember(r)
			return c.drop(d, c.blockAll(c.memberHosts(i), c.members[i].host, false))
		}},
		{"drop packets to a member from members", func(c *cluster, r *rand.Rand, d time.Duration) error {
			i := c.anyMember(r)
			return c.drop(d, c.blockAll(c.memberHosts(i), c.members[i].host, true))
		}},
		{"drop packets from etcd to a replica", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.drop(d, c.blockAll(c.memberHosts(-1), c.replicas[r.IntN(size)].host, true))
		}},
		{"drop packets from a replica to etcd", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.drop(d, c.blockAll(c.memberHosts(-1), c.replicas[r.IntN(size)].host, false))
		}},
		{"resume a partitioned replica", func(c *cluster, r *rand.Rand, d time.Duration) error {
			return c.resumePartitioned(c.replicas[r.IntN(size)], d)
		}},
		{"slow disk of a member", (*cluster).slowDisk},
		{"full disk of a member", (*cluster).fullDisk},
		{"restart replicas in turn", (*cluster).restartInTurn},
		{"defragment a member", (*cluster).defragment},
		{"compact", (*cluster).compact},
		{"move the leader", (*cluster).moveLeader},
	}
}

// anyMember returns the index of the leader in half of all cases, or else of a random member.
func (c *cluster) anyMember(r *rand.Rand) int {
	i, lead := r.IntN(size), r.IntN(2) == 0
	if leader := c.leader(); lead && leader >= 0 {
		return leader
	}
	return i
}

// memberHosts returns the hosts of all members except one.
func (c *cluster) memberHosts(except int) (hosts []*host) {
	for i, m := range c.members {
		if i != except {
			hosts = append(hosts, m.host)
		}
	}
	return hosts
}

func (c *cluster) replicaHosts() (hosts []*host) {
	for _, r := range c.replicas {
		hosts = append(hosts, r.host)
	}
	return hosts
}

// blockAll drops the packets between hosts and one host, in one direction.
func (c *cluster) blockAll(hosts []*host, one *host, toOne bool) error {
	for _, h := range hosts {
		from, to := one, h
		if toOne {
			from, to = h, one
		}
		if err := c.net.block(from, to); err != nil {
			return err
		}
	}
	return nil
}

// drop keeps a partition for a time. err is the error of its creation.
func (c *cluster) drop(d time.Duration, err error) error {
	wait(c.t.Context(), d)
	return errors.Join(err, c.net.heal())
}

func (c *cluster) restart(p *process, d time.Duration) error {
	p.kill()
	wait(c.t.Context(), d)
	return p.start()
}

func (c *cluster) pause(p *process, d time.Duration) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	wait(c.t.Context(), d)
	return p.signal(syscall.SIGCONT)
}

// resumePartitioned pauses a replica. Meanwhile it loses the connection to etcd, so that it cannot receive the changes
// of the pause after its end.
func (c *cluster) resumePartitioned(r *replica, d time.Duration) error {
	err := c.net.partition(r.host, c.memberHosts(-1)...)
	if err == nil {
		err = c.pause(r.process, d)
	}
	return c.drop(time.Second, err)
}

// slowDisk delays each fdatasync of a member.
func (c *cluster) slowDisk(r *rand.Rand, d time.Duration) error {
	m := c.members[c.anyMember(r)]
	cmd, _ := m.current()
	delay := 20 + r.IntN(480)
	trace := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(cmd.Process.Pid),
		"-e", "trace=fdatasync,fsync", "-e", fmt.Sprintf("inject=fdatasync,fsync:delay_enter=%dms", delay))
	var output bytes.Buffer
	trace.Stderr = &output
	if err := trace.Start(); err != nil {
		return err
	}
	wait(c.t.Context(), d)
	_ = trace.Process.Signal(syscall.SIGINT) // strace detaches
	if err := trace.Wait(); err != nil && output.Len() > 0 {
		return fmt.Errorf("strace of %s: %w: %s", m.name, err, output.String())
	}
	return nil
}

// fullDisk fills the disk of a member and writes large objects, so that the member needs space. If it exits, it is
// started again after there is space.
func (c *cluster) fullDisk(r *rand.Rand, d time.Duration) error {
	m := c.members[c.anyMember(r)]
	filler := filepath.Join(m.host.path(m.dir), "filler")
	file, err := os.Create(filler)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), max(d, 2*time.Second))
	defer cancel()
	large := bytes.Repeat([]byte("x"), 200<<10)
	for i := 0; ctx.Err() == nil; i++ {
		_, _ = c.etcd.Put(ctx, fmt.Sprint("large-", i%40), string(large))
		wait(ctx, 50*time.Millisecond)
	}
	if err := errors.Join(file.Close(), os.Remove(filler)); err != nil {
		return err
	}
	if !m.running() {
		c.tally.count("members ended by a full disk", 1)
		if err := m.start(); err != nil {
			return err
		}
	}
	return eventually("delete the large objects", func() error { // there may be no leader
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, err := c.etcd.Delete(ctx, "large-", clientv3.WithPrefix())
		return err
	})
}

func (c *cluster) restartInTurn(_ *rand.Rand, _ time.Duration) error {
	for _, r := range c.replicas {
		if err := r.terminate(startTimeout); err != nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		if err := c.waitReady(r); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) defragment(r *rand.Rand, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	_, err := c.etcd.Defragment(ctx, c.members[c.anyMember(r)].url)
	return err
}

// compact drops all history before the current revision.
func (c *cluster) compact(_ *rand.Rand, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	now, err := c.etcd.Get(ctx, "any")
	if err != nil {
		return err
	}
	c.compacted = now.Header.Revision
	_, err = c.etcd.Compact(ctx, c.compacted, clientv3.WithCompactPhysical())
	return err
}

func (c *cluster) moveLeader(r *rand.Rand, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	leader := c.leader()
	if leader < 0 {
		return nil
	}
	to, err := c.status(c.members[(leader+1+r.IntN(size-1))%size])
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{c.members[leader].url}, Logger: c.etcd.GetLogger(), DialOptions: c.dialOptions(),
	})
	if err != nil {
		return err
	}
	if _, err := client.MoveLeader(ctx, to.Header.MemberId); err != nil { // after other faults, it may not be possible
		c.tally.count("leaders that could not be moved", 1)
	}
	return client.Close()
}
