package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tokens is the token file of all servers. The user stranger has no rights. The attacker and the victim have rights in
// one namespace each.
const tokens = `admin,admin,,"system:masters"
stranger,stranger,
attacker,attacker,
victim,victim,
`

// maxData is the maximum size of a server's private memory in bytes. It protects this machine if an attack makes the
// memory grow without bound.
const maxData = 8 << 30

// server is a server to measure.
type server struct {
	name    string
	host    string
	command func(dir, port string) [][]string
	*processes
}

// processes holds the processes of a running server. Its processor time and memory are the sums over all of them.
type processes struct {
	dir     string
	running []*exec.Cmd
	ended   []chan error
}

// servers returns Trellis and, if peers is not "", kube-apiserver with etcd.
func servers(trellis, peers string) []server {
	all := []server{{name: "trellis", command: func(dir, port string) [][]string {
		return [][]string{{trellis, "serve", "--data-dir=" + dir + "/data", "--secure-port=" + port,
			"--token-auth-file=" + dir + "/tokens.csv"}}
	}}}
	if peers == "" {
		return all
	}
	return append(all, server{name: "kube-apiserver", command: func(dir, port string) [][]string {
		client, peer := "http://127.0.0.1:"+freePort(), "http://127.0.0.1:"+freePort()
		return [][]string{
			{peers + "/etcd", "--data-dir=" + dir + "/etcd", "--listen-client-urls=" + client,
				"--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" +
					peer, "--log-level=error"},
			{peers + "/kube-apiserver", "--etcd-servers=" + client, "--bind-address=127.0.0.1", "--secure-port=" + port,
				"--cert-dir=" + dir + "/certs",
				"--token-auth-file=" + dir + "/tokens.csv", "--authorization-mode=Node,RBAC",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + dir + "/sa.key", "--service-account-signing-key-file=" + dir +
					"/sa.key"},
		}
	}})
}

// start starts the server on processor 0 in a new folder, and waits until it is ready.
func (s *server) start() {
	dir, err := os.MkdirTemp("", "tenant-")
	check(err)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(err)
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	check(os.WriteFile(dir+"/sa.key", pem.EncodeToMemory(block), 0o600))
	check(os.WriteFile(dir+"/tokens.csv", []byte(tokens), 0o600))
	port := freePort()
	s.host, s.processes = "127.0.0.1:"+port, &processes{dir: dir}
	for _, args := range s.command(dir, port) {
		out, err := os.Create(filepath.Join(dir, filepath.Base(args[0])+".log"))
		check(err)
		cmd := exec.Command("prlimit", append([]string{"--data=" + strconv.Itoa(maxData), "taskset", "-c", "0"},
			args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		check(cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		s.running, s.ended = append(s.running, cmd), append(s.ended, ended)
	}
	client := clientOf("admin")
	for range 600 {
		resp, err := client.Get("https://" + s.host + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		<-time.After(100 * time.Millisecond)
	}
	log.Fatalf("%s is not ready after a minute: see the logs in %s", s.name, dir)
}

// stop kills the server's processes and removes its folder.
func (s *server) stop() {
	for i, cmd := range s.running {
		_ = cmd.Process.Kill()
		<-s.ended[i]
	}
	check(os.RemoveAll(s.dir))
}

// state returns "alive" if all processes of the server are running, or else the error of one that exited.
func (p *processes) state() string {
	for i := range p.running {
		select {
		case err := <-p.ended[i]:
			p.ended[i] <- err
			return fmt.Sprintf("ENDED: %v", err)
		default:
		}
	}
	return "alive"
}

// processorTime returns the total processor time of all running processes, with a resolution of 10 ms.
func (p *processes) processorTime() (sum time.Duration) {
	for _, cmd := range p.running {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		for _, f := range fields[11:13] {
			ticks, err := strconv.ParseInt(f, 10, 64)
			check(err)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// followMemory samples the total resident memory of all processes until ctx ends. The returned channel then receives
// the peak in MiB.
func (p *processes) followMemory(ctx context.Context) <-chan int {
	result := make(chan int, 1)
	go func() {
		peak := 0
		for ctx.Err() == nil {
			sum := 0
			for _, cmd := range p.running {
				status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
				_, after, _ := strings.Cut(string(status), "VmRSS:")
				kib := 0
				_, _ = fmt.Sscanf(after, "%d", &kib)
				sum += kib / 1024
			}
			peak = max(peak, sum)
			<-time.After(50 * time.Millisecond)
		}
		result <- peak
	}()
	return result
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(err)
	return port
}

// raiseLimit raises the limit of open files of this process to the maximum.
func raiseLimit() {
	var l syscall.Rlimit
	check(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l))
	l.Cur = l.Max
	check(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l))
}
