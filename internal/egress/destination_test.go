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

// destination is an in-memory TLS server. It reads each request and then calls the function in its field answer.
type destination struct {
	name        string // host name in the certificate
	certificate tls.Certificate
	ca          []byte
	answer      atomic.Pointer[func(c net.Conn, r *http.Request)]
	refuses     atomic.Bool // whether dial fails
	dials       atomic.Int64
	requests    atomic.Int64
	open        atomic.Int64 // number of open connections
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

// writes returns a function for destination.answer that writes text.
func writes(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, text) }
}

// writesAndCloses returns a function for destination.answer that writes text and closes the connection.
func writesAndCloses(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, r *http.Request) { writes(text)(c, r); c.Close() }
}

// silent is a function for destination.answer. It writes nothing and returns when the client closes the
// connection.
func silent(c net.Conn, _ *http.Request) { _, _ = io.Copy(io.Discard, c) }

// repeats returns a function for destination.answer. It writes head and then repeats text, with pauses, until the
// connection ends.
func repeats(head, text string, pause time.Duration) func(net.Conn, *http.Request) {
	return func(c net.Conn, r *http.Request) {
		go silent(c, r) // detects that the client closes the connection
		for writes(head)(c, r); ; {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
			<-time.After(pause)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// caller is a client that uses a Transport, with the Transport's metrics.
type caller struct {
	testing.TB
	*Transport
	metrics *Metrics
}

// newCaller returns a caller whose connections all go to the destination d.
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

// call sends a POST request and reads the response.
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

// openBreaker sends requests that fail until the circuit breaker opens.
func (c *caller) openBreaker() {
	c.Helper()
	for range tripAfter {
		if _, _, err := c.call(c.Context()); err == nil {
			c.Fatal("the request succeeded")
		}
	}
	if c.Err() == nil {
		c.Fatal("the circuit breaker is closed")
	}
}

// metricValues returns the values of all metrics. A key consists of the metric's name and its label values:
// "name{value,…}".
func (c *caller) metricValues() map[string]float64 {
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

// state returns the state of the circuit breaker according to the metrics.
func (c *caller) state() (state string) {
	c.Helper()
	for _, s := range []string{"closed", "half-open", "open"} {
		if c.metricValues()["trellis_egress_circuit_breakers{"+c.host+",test,"+s+"}"] == 1 {
			state += s
		}
	}
	return state
}

// certificateFor creates a self-signed certificate for a host name. It also returns the certificate in PEM.
func certificateFor(t testing.TB, name string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(100 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
