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

// copyAll is like io.Copy, but treats a connection reset by the peer as the end.
func copyAll(to io.Writer, from net.Conn) (int64, error) {
	n, err := io.Copy(to, from)
	if err != nil && strings.Contains(err.Error(), "connection reset") {
		err = nil
	}
	return n, err
}

// TestAborted checks that no goroutine remains after a client has disconnected. The client disconnects in the middle
// of a stream, or while it waits for a kubelet that never responds.
func TestAborted(t *testing.T) {
	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": "SPDY/3.1",
		"X-Stream-Protocol-Version": "v4.channel.k8s.io"}
	t.Run("stream", func(t *testing.T) {
		c := newCluster(t)
		for range 5 {
			for _, url := range []string{
				c.serve("p", &core.PodExecOptions{Stdin: true, Stdout: true, Command: []string{"cat"}}),
				c.serve("p", &core.PodAttachOptions{Stdin: true, Stdout: true}),
				c.serve("p", &core.PodPortForwardOptions{}),
			} {
				c.abandon(url, upgrade, func(conn net.Conn) { c.read(conn) })
			}
			c.abandon(c.serve("p", &core.PodLogOptions{Follow: true}), nil, func(conn net.Conn) { c.read(conn) })
		}
		nothingLeft(t)
	})
	t.Run("mute", func(t *testing.T) {
		dialed := make(chan struct{})
		c := newCluster(t, func(c *nodes.Config) {
			c.Dialer.Cluster = func(context.Context, string, string) (net.Conn, error) {
				clientSide, serverSide := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, serverSide) }() // reads until the other side is closed
				dialed <- struct{}{}
				return clientSide, nil
			}
		})
		for range 5 {
			for _, url := range []string{
				c.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"cat"}}),
				c.serve("p", &core.PodPortForwardOptions{}),
				c.serve("p", &core.PodProxyOptions{Path: "/"}),
				c.serve("n", &core.NodeProxyOptions{Path: "/"}),
			} {
				c.abandon(url, upgrade, func(net.Conn) { <-dialed })
			}
			c.abandon(c.serve("p", &core.PodLogOptions{Follow: true}), nil, func(net.Conn) { <-dialed })
		}
		nothingLeft(t)
	})
}

// abandon sends a request, and disconnects after inFlight has returned.
func (c *cluster) abandon(url string, headers map[string]string, inFlight func(net.Conn)) {
	c.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	r, err := http.NewRequest("GET", url+"/", nil)
	if err != nil {
		c.Fatal(err)
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	r.Header.Add("X-Stream-Protocol-Version", "portforward.k8s.io")
	if err := r.Write(conn); err != nil {
		c.Fatal(err)
	}
	inFlight(conn)
}

func (c *cluster) read(from net.Conn) {
	c.Helper()
	if _, err := from.Read(make([]byte, 1)); err != nil {
		c.Fatal(err)
	}
}

// nothingLeft waits until no goroutine proxies a request.
func nothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			all := make([]byte, 4<<20)
			left = nil
			for _, stack := range strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n") {
				for _, function := range []string{"/util/proxy.", "/internal/proxy.",
					"net/http.(*Transport).dialConn"} {
					if strings.Contains(stack, function) && !strings.Contains(stack, "TestAborted") {
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
