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

// ServerAddress is the host and port of the API server that a kubeconfig names.
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

func withPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
}

// relayService gives a device the address of the Service `kubernetes`, and passes on connections to it to the API server, until ctx
// ends. The Pods of a bridge find the server there, also where it listens on loopback alone, or is reached through a proxy.
func relayService(ctx context.Context, client *rest.Config, device string) error {
	to, err := connector(client)
	if err != nil {
		return err
	}
	at, err := kubernetesService(ctx, client)
	if err != nil {
		return err
	}
	ip := net.ParseIP(at.Spec.ClusterIP)
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
		return fmt.Errorf("address %s of the Service kubernetes: %w", ip, err)
	}
	// On the device alone: other machines, which may have a route to the address, do not get in.
	from := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }), err)
	}}
	for _, port := range at.Spec.Ports {
		l, err := from.Listen(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(int(port.Port))))
		if err != nil {
			return fmt.Errorf("the Service kubernetes: %w", err)
		}
		context.AfterFunc(ctx, func() { l.Close() })
		go relay(ctx, l, to)
	}
	return nil
}

// kubernetesService waits until the API server tells its Service.
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

// relay passes on what comes in until the listener is closed.
func relay(ctx context.Context, l net.Listener, to func(context.Context) (net.Conn, error)) {
	for {
		from, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // as when there are too many open files
			klog.FromContext(ctx).Error(err, "Cannot accept a connection to the Service kubernetes")
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		go pass(ctx, from, to)
	}
}

// pass copies both ways until one has ended, which ends the other.
func pass(ctx context.Context, from net.Conn, to func(context.Context) (net.Conn, error)) {
	defer from.Close()
	soon, cancel := context.WithTimeout(ctx, dialTimeout)
	server, err := to(soon)
	cancel()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot reach the API server for a Pod")
		return
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	go func() {
		io.Copy(server, from)
		server.Close()
	}()
	io.Copy(from, server)
	server.Close()
}
