// Package heavy_test tests a server with little memory.
package heavy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/internal/fixture/heavy"
	"github.com/trellis-k8s/trellis/internal/fixture/program"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	heavyLimit   = 512 << 20      // memory of the server
	heavyBudget  = heavyLimit / 4 // default memory budget of request bodies for a server with heavyLimit
	heavyBody    = 3<<20 - 64<<10 // a little less than the largest accepted body
	heavyClients = 64             // clients
	heavyWait    = "timeout=10s"  // timeout of a request; it gets 503 if the budget stays exhausted
	asProtobuf   = "application/vnd.kubernetes.protobuf"
	asJSON       = "application/json"
	asMergePatch = "application/merge-patch+json"
)

// TestHeavyBodiesDoNotEndTheServer checks that request bodies that need much memory do not end a server with 512 MiB.
// For each built-in kind, it sends the body of the maximum size that needs the most memory. The server rejects this
// body because of its need of memory. It also sends a body whose need of memory is just within the budget. Each body
// is sent once, and then by 64 clients concurrently. Further requests are traced writes, small patches of large
// objects, YAML with aliases, and reviews by a user without permissions.
func TestHeavyBodiesDoNotEndTheServer(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes several times the memory; .ci/run has a step for this test without it")
	}
	all, trellis := worstOfEachKind(t), program.Build(t)
	t.Run("cgroup", func(t *testing.T) {
		group := newMemoryGroup(t)
		if group == "" {
			t.Skip("this process cannot create a memory cgroup; the other subtest needs none")
		}
		s := startHeavy(t, trellis, group)
		for _, r := range all {
			if code, text := s.send(r.path, asProtobuf, r.full); code != http.StatusRequestEntityTooLarge ||
				!strings.Contains(text, "bytes of memory, the limit is") {
				t.Errorf("%s, %d bytes: %d %s", r.path, len(r.full), code, text)
			}
			s.checkReady(r.path)
			// r.most needs nearly the memory of the budget.
			if code, text := s.send(r.path, asProtobuf, r.most); code == 0 ||
				strings.Contains(text, "bytes of memory") {
				t.Errorf("%s, %d bytes: %d %s", r.path, len(r.most), code, text)
			}
			s.checkReady(r.path)
		}
		for _, r := range all {
			s.sendConcurrently("the largest", func(int) (string, string, []byte) { return r.path, asProtobuf, r.full })
			s.sendConcurrently("the heaviest", func(int) (string, string, []byte) {
				return r.path + "?timeout=500ms", asProtobuf, r.most
			})
			s.sendConcurrently("the heaviest eighth", func(int) (string, string, []byte) {
				return r.path + "?timeout=500ms", asProtobuf, r.eighth
			})
		}
		s.sendOtherRequests()
		s.checkPeak()
	})
	t.Run("GOMEMLIMIT", func(t *testing.T) {
		s := startHeavy(t, trellis, "")
		s.sendConcurrently("the largest", func(i int) (string, string, []byte) {
			r := all[i%len(all)]
			return r.path, asProtobuf, r.full
		})
		s.sendConcurrently("the heaviest", func(i int) (string, string, []byte) {
			r := all[i%len(all)]
			return r.path, asProtobuf, r.most
		})
		s.sendConcurrently("the heaviest eighth", func(i int) (string, string, []byte) {
			r := all[i%len(all)]
			return r.path, asProtobuf, r.eighth
		})
		s.sendOtherRequests()
		s.checkPeak()
	})
}

// worstOfEachKind returns the bodies that need the most memory, for each kind that accepts a body in Protobuf.
func worstOfEachKind(t *testing.T) (all []heavyRequest) {
	for _, d := range kinds.Definitions(kinds.Config{}) {
		if v := d.Storage; v.HasProtobuf() && d.Behavior.Compute == nil { // a computed kind accepts no body
			all = append(all, worstOf(v))
		}
	}
	if len(all) < 50 {
		t.Fatalf("got %d kinds, want at least 50", len(all))
	}
	return all
}

// sendOtherRequests sends requests that need much memory for other reasons than the kind of their body.
func (s *heavyServer) sendOtherRequests() {
	const maps, pods = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
	var data strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&data, `,"k%d":""`, i)
	}
	if code, text := s.send(maps, asJSON, []byte(`{"metadata":{"name":"heavy"},"data":{"a":""`+data.String()+
		`}}`)); code != http.StatusCreated {
		s.Fatalf("%d %s", code, text)
	}
	s.sendConcurrently("small patches of a heavy object", func(i int) (string, string, []byte) {
		return maps + "/heavy", asMergePatch, fmt.Appendf(nil, `{"data":{"a":"%d"}}`, i)
	})
	containers := []byte(`{"metadata":{"name":"x"},"spec":{"containers":[{}` + strings.Repeat(",{}", 8_000) + `]}}`)
	s.sendConcurrently("traced writes", func(int) (string, string, []byte) {
		return pods + "?dryRun=All&trace=true", asJSON, containers
	})
	aliases := []byte("a: &a [" + strings.Repeat("{},", 300) + "]\nb: &b [" + strings.Repeat("*a,", 300) +
		"]\nc: [*b,*b,*b]\n")
	s.sendConcurrently("aliases", func(int) (string, string, []byte) { return maps, "application/yaml", aliases })
	review := worstOf(kindNamed("selfsubjectaccessreviews"))
	s.withoutRights().sendConcurrently("reviews", func(int) (string, string, []byte) {
		return review.path, asProtobuf, review.eighth
	})
}

// withoutRights returns a client of the same server. The client uses a ServiceAccount that has no role.
func (s *heavyServer) withoutRights() *heavyServer {
	s.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	if code, text := s.send(accounts, asJSON,
		[]byte(`{"metadata":{"name":"unprivileged"}}`)); code != http.StatusCreated {
		s.Fatalf("%d %s", code, text)
	}
	code, text := s.send(accounts+"/unprivileged/token", asJSON, []byte(`{"spec":{}}`))
	token := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(text)
	if code != http.StatusCreated || token == nil {
		s.Fatalf("%d %s", code, text)
	}
	unprivileged := *s
	unprivileged.connect(&rest.Config{Host: s.host, BearerToken: token[1],
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if code, text := unprivileged.send("/api/v1/namespaces/default/configmaps", asJSON,
		[]byte(`{}`)); code != http.StatusForbidden {
		s.Fatalf("the ServiceAccount can create a ConfigMap: %d %s", code, text)
	}
	return &unprivileged
}

// heavyRequest holds the bodies of a kind that need the most memory, and the path of their create requests.
type heavyRequest struct {
	path               string
	full, most, eighth []byte // of the maximum size; of nearly the memory of the budget; of an eighth of that memory
}

func kindNamed(plural string) *resource.Version {
	for _, d := range kinds.Definitions(kinds.Config{}) {
		if d.Names.Plural == plural {
			return d.Storage
		}
	}
	return nil
}

// worstOf returns requests for a kind. Of all bodies of the kind, theirs need the most memory for their size.
func worstOf(v *resource.Version) heavyRequest {
	d, table := v.Definition, v.Type.Weights()
	r := heavyRequest{path: "/apis/" + v.APIVersion}
	if v.GroupVersion.Group == "" {
		r.path = "/api/v1"
	}
	if d.Namespaced {
		r.path += "/namespaces/default"
	}
	r.path += "/" + d.Names.Plural
	var worst heavy.Body
	var heaviest int64
	for _, b := range heavy.RepeatedFields(reflect.TypeOf(v.Type.New()).Elem()) {
		if w := table.Protobuf(b.Fill(v.APIVersion, d.Names.Kind, "x", 64<<10)); w > heaviest {
			worst, heaviest = b, w
		}
	}
	r.full = worst.Fill(v.APIVersion, d.Names.Kind, "x", heavyBody)
	size := int(int64(len(r.full)) * (heavyBudget - heavyBudget/20) / table.Protobuf(r.full))
	r.most = worst.Fill(v.APIVersion, d.Names.Kind, "x", size)
	r.eighth = worst.Fill(v.APIVersion, d.Names.Kind, "x", size/8)
	return r
}

// heavyServer is a process of `trellis serve` with limited memory. It holds a client with the rights of the
// administrator.
type heavyServer struct {
	*testing.T
	process *exec.Cmd
	host    string
	client  *http.Client
	limiter string // the mechanism that enforces the limit, for logs
}

// startHeavy starts the program trellis in the memory cgroup whose folder is group. If group is "", it limits the
// memory with GOMEMLIMIT.
func startHeavy(t *testing.T, trellis, group string) *heavyServer {
	t.Helper()
	dir := t.TempDir()
	s := &heavyServer{T: t, limiter: "GOMEMLIMIT"}
	ctx, cancel := context.WithCancel(context.Background())
	s.process = exec.CommandContext(ctx, trellis, "serve", "--data-dir", dir, "--secure-port", "0")
	s.process.Env = append(os.Environ(), "GOMEMLIMIT="+strconv.Itoa(heavyLimit))
	if group != "" {
		s.limiter = "the cgroup " + group
		s.process = exec.CommandContext(ctx, "sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, trellis,
			"serve", "--data-dir", dir, "--secure-port", "0")
	}
	s.process.Stderr = os.Stderr
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.process.Wait() }()
	t.Cleanup(func() { cancel(); <-ended })
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	for {
		if config, err := clientcmd.BuildConfigFromFlags("", kubeconfig); err == nil {
			s.connect(config)
			if code, _ := s.send("/readyz", "", nil); code == http.StatusOK {
				return s
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("the server has ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// newMemoryGroup creates a memory cgroup and returns its folder, or "" if it cannot create one.
func newMemoryGroup(t *testing.T) string {
	for _, c := range []struct{ root, limit string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(c.root, fmt.Sprintf("trellis-heavy-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for range 100 { // a cgroup can be removed after its last process has ended
				if os.Remove(dir) == nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		})
		if os.WriteFile(filepath.Join(dir, c.limit), []byte(strconv.Itoa(heavyLimit)), 0o644) == nil {
			return dir
		}
	}
	return ""
}

func (s *heavyServer) connect(config *rest.Config) {
	s.Helper()
	c, err := rest.TLSConfigFor(config)
	if err != nil {
		s.Fatal(err)
	}
	c.NextProtos = []string{"http/1.1"}
	s.host = config.Host
	transport := &http.Transport{
		TLSClientConfig:     c,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: heavyClients,
	}
	authenticated, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		s.Fatal(err)
	}
	s.client = &http.Client{Transport: authenticated}
}

// send sends a body and returns the response. The code is 0 if there is no response.
func (s *heavyServer) send(path, contentType string, body []byte) (code int, text string) {
	method := http.MethodPost
	switch contentType {
	case "":
		method = http.MethodGet
	case asMergePatch:
		method = http.MethodPatch
	}
	url := s.host + path
	switch {
	case strings.Contains(path, "timeout="):
	case strings.Contains(path, "?"):
		url += "&" + heavyWait
	default:
		url += "?" + heavyWait
	}
	r, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Content-Type", contentType)
	response, err := s.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	start, _ := io.ReadAll(io.LimitReader(response.Body, 4000))
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, string(start)
}

// sendConcurrently sends one request of each client concurrently, and checks that each gets a response.
func (s *heavyServer) sendConcurrently(what string, request func(i int) (path, contentType string, body []byte)) {
	s.Helper()
	var wait sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range heavyClients {
		wait.Go(func() {
			path, contentType, body := request(i)
			code, text := s.send(path, contentType, body)
			if code == 0 {
				s.Errorf("%s: %s: no response: %s", what, path, text)
			}
			mu.Lock()
			defer mu.Unlock()
			codes[code]++
		})
	}
	wait.Wait()
	s.Logf("%s: %v, at most %d MiB so far", what, codes, s.peak()>>20)
	s.checkReady(what)
}

func (s *heavyServer) checkReady(after string) {
	s.Helper()
	if code, text := s.send("/readyz", "", nil); code != http.StatusOK {
		s.Fatalf("after %s: %d %s", after, code, text)
	}
}

func (s *heavyServer) checkPeak() {
	s.Helper()
	s.Logf("the server used at most %d MiB; its limit is enforced by %s", s.peak()>>20, s.limiter)
	if s.peak() > heavyLimit {
		s.Errorf("the server used %d bytes, the limit is %d", s.peak(), heavyLimit)
	}
}

// peak returns the peak memory of the server in bytes. It excludes the pages of the program, which the kernel can drop.
func (s *heavyServer) peak() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	sizes := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			sizes[fields[0]], _ = strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return (sizes["VmHWM:"] - sizes["RssFile:"]) << 10
}
