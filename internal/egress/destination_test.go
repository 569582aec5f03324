package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const host = "hook.example.com"

// destination is a server without a network. It takes connections over TLS, reads a request and then does what a test wants.
type destination struct {
	name        string // that its certificate is for
	certificate tls.Certificate
	ca          []byte
	answer      atomic.Pointer[func(c net.Conn, r *http.Request)]
	refuses     atomic.Bool // connections
	dials       atomic.Int64
	requests    atomic.Int64
	open        atomic.Int64 // connections
}

func newDestination(t testing.TB, name string, answer func(c net.Conn, r *http.Request)) *destination {
	d := &destination{name: name}
	d.certificate, d.ca = certificateFor(t, name)
	d.answer.Store(&answer)
	return d
}

func (d *destination) dial(context.Context, string, string) (net.Conn, error) {
	d.dials.Add(1)
	if d.refuses.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	client, server := net.Pipe()
	go d.serve(server)
	return client, nil
}

func (d *destination) serve(conn net.Conn) {
	d.open.Add(1)
	defer d.open.Add(-1)
	defer conn.Close()
	c := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{d.certificate}})
	for in := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		d.requests.Add(1)
		(*d.answer.Load())(c, r)
	}
}

// says writes text as it stands; ends does the same and hangs up.
func says(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, text) }
}

func ends(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, r *http.Request) { says(text)(c, r); c.Close() }
}

// silent says nothing until the other side hangs up.
func silent(c net.Conn, _ *http.Request) { _, _ = io.Copy(io.Discard, c) }

// repeats writes head and then text until the connection ends, with pauses.
func repeats(head, text string, pause time.Duration) func(net.Conn, *http.Request) {
	return func(c net.Conn, r *http.Request) {
		go silent(c, r) // so that the other side can hang up
		for says(head)(c, r); ; {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
			<-time.After(pause)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// caller is a client over a Transport, and the Transport's metrics.
type caller struct {
	testing.TB
	*Transport
	metrics *Metrics
}

// newCaller returns a client that calls d as the host of that name.
func newCaller(t testing.TB, d *destination, o Options) *caller {
	t.Helper()
	dialer := &Dialer{Cluster: d.dial, ControlPlane: d.dial, Metrics: NewMetrics()}
	o.Name, o.CABundle = "test", d.ca
	if o.Service == nil {
		o.Address = host + ":443"
	}
	transport, err := dialer.NewTransport(o)
	if err != nil {
		t.Fatal(err)
	}
	return &caller{t, transport, dialer.Metrics}
}

// call posts something and reads the answer.
func (c *caller) call(ctx context.Context) (code int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+"/", strings.NewReader("body"))
	if err != nil {
		c.Fatal(err)
	}
	resp, err := (&http.Client{Transport: c}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// fails calls until the circuit breaker opens.
func (c *caller) fails() {
	c.Helper()
	for range tripAfter {
		if _, _, err := c.call(c.Context()); err == nil {
			c.Fatal("it answers")
		}
	}
	if c.Err() == nil {
		c.Fatal("the circuit breaker is closed")
	}
}

// shows returns what metrics say, as "name{label,…} value".
func (c *caller) shows() map[string]float64 {
	c.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c.metrics)
	families, err := r.Gather()
	if err != nil {
		c.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			all[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] = value
		}
	}
	return all
}

// state is that of the circuit breaker, as metrics say.
func (c *caller) state() (state string) {
	c.Helper()
	for _, s := range []string{"closed", "half-open", "open"} {
		if c.shows()["trellis_egress_circuit_breakers{"+c.host+",test,"+s+"}"] == 1 {
			state += s
		}
	}
	return state
}

// certificateFor makes a certificate for a name that is its own CA, in PEM.
func certificateFor(t testing.TB, name string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(100 * time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
