package nodes_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
)

// copyAll is io.Copy, for which the end of a connection by the other side is an end.
func copyAll(to io.Writer, from net.Conn) (int64, error) {
	n, err := io.Copy(to, from)
	if err != nil && strings.Contains(err.Error(), "connection reset") {
		err = nil
	}
	return n, err
}

// What clients leave leaves nothing behind: neither in the middle of a stream, nor where a kubelet accepts connections and says nothing.
func TestAborted(t *testing.T) {
	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
	t.Run("stream", func(t *testing.T) {
		w := newWorld(t)
		for range 5 {
			for _, url := range []string{
				w.serve("p", &core.PodExecOptions{Stdin: true, Stdout: true, Command: []string{"cat"}}),
				w.serve("p", &core.PodAttachOptions{Stdin: true, Stdout: true}),
				w.serve("p", &core.PodPortForwardOptions{}),
			} {
				w.abandon(url, upgrade, func(conn net.Conn) { w.read(conn) })
			}
			w.abandon(w.serve("p", &core.PodLogOptions{Follow: true}), nil, func(conn net.Conn) { w.read(conn) })
		}
		nothingLeft(t)
	})
	t.Run("mute", func(t *testing.T) {
		dialled := make(chan struct{})
		w := newWorld(t, func(c *nodes.Config) {
			c.Dialer.Cluster = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, there) }() // until here is closed
				dialled <- struct{}{}
				return here, nil
			}
		})
		for range 5 {
			for _, url := range []string{
				w.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"cat"}}),
				w.serve("p", &core.PodPortForwardOptions{}),
				w.serve("p", &core.PodProxyOptions{Path: "/"}),
				w.serve("n", &core.NodeProxyOptions{Path: "/"}),
			} {
				w.abandon(url, upgrade, func(net.Conn) { <-dialled })
			}
			w.abandon(w.serve("p", &core.PodLogOptions{Follow: true}), nil, func(net.Conn) { <-dialled })
		}
		nothingLeft(t)
	})
}

// abandon begins a request, and leaves once it is under way.
func (w *world) abandon(url string, headers map[string]string, underWay func(net.Conn)) {
	w.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	r, err := http.NewRequest("GET", url+"/", nil)
	if err != nil {
		w.Fatal(err)
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	r.Header.Add("X-Stream-Protocol-Version", "portforward.k8s.io")
	if err := r.Write(conn); err != nil {
		w.Fatal(err)
	}
	underWay(conn)
}

func (w *world) read(from net.Conn) {
	w.Helper()
	if _, err := from.Read(make([]byte, 1)); err != nil {
		w.Fatal(err)
	}
}

// nothingLeft waits until nobody passes anything on any longer.
func nothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		all := make([]byte, 4<<20)
		left = nil
		for _, stack := range strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n") {
			for _, at := range []string{"/util/proxy.", "/internal/proxy.", "net/http.(*Transport).dialConn"} {
				if strings.Contains(stack, at) && !strings.Contains(stack, "TestAborted") {
					left = append(left, stack)
					break
				}
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
	}
}
