package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ServerAddress returns the host and port of the API server in a kubeconfig.
func ServerAddress(kubeconfig string) (string, error) {
	client, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return serverAddress(client)
}

func serverAddress(client *rest.Config) (string, error) {
	base, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return withPort(base), nil
}

// withPort returns the host of u with its port or the default port of its scheme.
func withPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
}

// relayService adds the address of the Service `kubernetes` to a network device, and forwards connections to the API
// server until ctx ends. Pods on a bridge reach the server at this address, even if it listens only on loopback or is
// behind a proxy.
func relayService(ctx context.Context, client *rest.Config, device string) error {
	dial, err := apiServerDialer(client)
	if err != nil {
		return err
	}
	service, err := kubernetesService(ctx, client)
	if err != nil {
		return err
	}
	ip := net.ParseIP(service.Spec.ClusterIP)
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	bits := 8 * net.IPv4len
	if ip.To4() == nil {
		bits = 8 * net.IPv6len
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}}
	if err := netlink.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot add the address %s of the Service kubernetes to %s: %w", ip, device, err)
	}
	// The listener is bound to the device, so other machines with a route to the address cannot connect.
	listenConfig := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }), err)
	}}
	for _, port := range service.Spec.Ports {
		l, err := listenConfig.Listen(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(int(port.Port))))
		if err != nil {
			return fmt.Errorf("cannot listen on the address of the Service kubernetes: %w", err)
		}
		context.AfterFunc(ctx, func() { l.Close() })
		go relay(ctx, l, dial)
	}
	return nil
}

// kubernetesService returns the Service `kubernetes`. It blocks until the API server returns the Service or denies
// access, or until ctx ends.
func kubernetesService(ctx context.Context, client *rest.Config) (s *corev1.Service, err error) {
	c, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var err error
		s, err = c.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if apierrors.IsForbidden(err) {
			return false, err
		}
		return err == nil, nil
	})
	return s, err
}

// relay forwards the connections of a listener to the API server until the listener is closed. The function dial
// connects to the API server.
func relay(ctx context.Context, l net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example too many open files
			klog.FromContext(ctx).Error(err, "Cannot accept a connection to the Service kubernetes")
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		go forward(ctx, conn, dial)
	}
}

// forward copies data between a Pod's connection and the API server until one side closes its connection. It then
// closes both connections.
func forward(ctx context.Context, pod net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer pod.Close()
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	server, err := dial(dialCtx)
	cancel()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot connect a Pod to the API server")
		return
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	go func() {
		io.Copy(server, pod)
		server.Close()
	}()
	io.Copy(pod, server)
	server.Close()
}
