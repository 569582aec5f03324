// Package konnectivity_test holds what tunnel servers, agents and API servers do together, ours and the reference's.
package konnectivity_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func listen(t testing.TB, network, address string) net.Listener {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func echo(t testing.TB) string {
	l := listen(t, "tcp", "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestSmoke(t *testing.T) {
	cert, pool := certificate(t)
	s := server.New(server.Options{ID: "s", Count: 1, KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Metrics: &server.Metrics{}})
	agents := tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	go s.ServeAgents(agents)
	uds := filepath.Join(t.TempDir(), "s")
	go s.ServeFronts(listen(t, "unix", uds), server.ModeGRPC)
	a, err := agent.Connect(t.Context(), agents.Addr().String(), agent.Options{ID: "a", TLS: &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}},
		KeepaliveTime: time.Minute, Dial: (&net.Dialer{}).DialContext, Metrics: &agent.Metrics{}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for !s.Ready() {
		time.Sleep(time.Millisecond)
	}
	c := client.New(func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", uds) })
	defer c.Close()
	to := echo(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			conn, err := c.DialContext(t.Context(), "tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			data := make([]byte, 5<<20)
			_, _ = rand.Read(data)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			_ = conn.Close()
		})
	}
	all.Wait()
	if _, err := c.DialContext(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		t.Error("connected to nobody")
	} else {
		t.Log(err)
	}
}
