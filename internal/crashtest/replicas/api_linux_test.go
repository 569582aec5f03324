package replicas_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// api is a client of one replica.
type api struct {
	replica int
	url     string
	http    *http.Client
}

// newAPI returns a client with a certificate. It reports a connection as broken if the replica does not answer a ping
// for the given time.
func (c *cluster) newAPI(replica int, url string, cert tls.Certificate, ping time.Duration) *api {
	roots := x509.NewCertPool()
	roots.AddCert(c.keys.CA)
	transport := &http.Transport{
		DialContext:       c.clients.dial,
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: ping / 2, PingTimeout: ping / 2},
		// A connection that cannot be opened in this time is to a host that is down or behind a partition.
		TLSHandshakeTimeout: 3 * time.Second,
	}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &api{replica: replica, url: url, http: &http.Client{Transport: transport}}
}

func (c *cluster) adminCertificate() tls.Certificate {
	c.t.Helper()
	cert, err := tls.X509KeyPair(c.keys.AdminCert, c.keys.AdminKey)
	c.must(err)
	return cert
}

// newUser returns a client certificate of a user.
func (c *cluster) newUser(caKey []byte, name string) (tls.Certificate, error) {
	signer, err := keyutil.ParsePrivateKeyPEM(caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.keys.CA, &key.PublicKey, signer)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// answer is the response to a request, or the error of a request without a response.
type answer struct {
	code int // 0 means no response
	body []byte
	err  error
}

// String describes an answer that a check rejects.
func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.code, a.body[:min(len(a.body), 500)])
}

// applied reports whether the answer proves that a write was executed.
func (a answer) applied() bool { return a.code == 200 || a.code == 201 }

// rejected reports whether the answer proves that a write was not executed.
func (a answer) rejected() bool {
	return a.code >= 400 && a.code < 500
}

// transient reports whether clients retry after the answer.
func (a answer) transient() bool {
	return a.code == 0 || a.code == 429 || a.code >= 500
}

// configMap holds the fields of an object or a Status that the tests use.
type configMap struct {
	Metadata struct {
		Name, ResourceVersion string
	}
	Data    map[string]string
	Code    int    // of a Status
	Message string // of a Status
}

func (m *configMap) value() string { return m.Data["value"] }

func (m *configMap) revision() int64 {
	n, _ := strconv.ParseInt(m.Metadata.ResourceVersion, 10, 64)
	return n
}

// list is a list of ConfigMaps.
type list struct {
	Metadata struct{ ResourceVersion string }
	Items    []configMap
}

// into decodes the body of the response.
func (a answer) into(object any) error { return json.Unmarshal(a.body, object) }

const mergePatch = "application/merge-patch+json"

// do sends a request and returns the answer. contentType "" means JSON.
func (a *api) do(ctx context.Context, method, path, contentType string, body []byte) answer {
	resp, err := a.open(ctx, method, path, contentType, body)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{err: err}
	}
	return answer{code: resp.StatusCode, body: out}
}

func (a *api) open(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	return a.http.Do(req)
}
