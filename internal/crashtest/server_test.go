package crashtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// server is a trellis process with its own data directory.
type server struct {
	t      *testing.T
	binary string
	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	output *output
	http   *http.Client
	host   string
}

// output holds the standard output and error of a process. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the server on its directory and waits until it is ready.
func (s *server) start(flags ...string) {
	s.t.Helper()
	if !s.tryStart(flags...) {
		s.t.Fatalf("the server exited: %s", s.output)
	}
}

// tryStart starts the server like start, but returns false if the server exits.
func (s *server) tryStart(flags ...string) bool {
	s.t.Helper()
	s.output, s.exited = &output{}, make(chan struct{})
	s.cmd = exec.Command(s.binary, append([]string{"serve", "--data-dir", s.dir, "--secure-port", "0"}, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	// Remove the last kubeconfig, which may refer to the same port. The server writes a new one.
	kubeconfig := filepath.Join(s.dir, "admin.kubeconfig")
	if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	var err error
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(2 * time.Millisecond); time.Now().Before(deadline); {
		if err = s.connect(kubeconfig); err == nil {
			return true
		}
		select {
		case <-s.exited:
			return false
		case <-tick.C:
		}
	}
	s.kill()
	s.t.Fatalf("the server did not become ready: %v\n%s", err, s.output)
	return false
}

func (s *server) connect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	if s.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	s.host = config.Host
	_, err = s.do("GET", "/readyz", nil)
	return err
}

// kill kills the process immediately. Data that the process has already written survive in the kernel.
func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	<-s.exited
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
}

func (s *server) do(method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		return nil, &statusError{resp.StatusCode, string(out)}
	}
	return out, nil
}

// statusError is an error response of the server. Other errors mean that there was no response.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d %s", e.code, e.body) }

// watch calls the function each with the events of a collection after the given revision. It returns when the
// connection ends or ctx is done.
func (s *server) watch(ctx context.Context, path string, revision int64, each func(event)) error {
	url := fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", s.host, path, revision)
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	decoder := json.NewDecoder(resp.Body)
	for {
		var e event
		if err := decoder.Decode(&e); err != nil {
			return err
		}
		each(e)
	}
}

// event holds the fields of a ConfigMap's watch event that tests use.
type event struct {
	Type   string
	Object configMap
}

type configMap struct {
	Metadata struct{ Name, ResourceVersion string }
	Data     map[string]string
	Message  string // of a Status
}
