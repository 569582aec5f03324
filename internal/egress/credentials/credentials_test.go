package credentials_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
)

// pair is a self-signed certificate and its key, also in PEM.
type pair struct {
	tls.Certificate
	cert, key []byte
}

func newPair(t *testing.T, name string, hosts ...string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: hosts}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

func (p pair) user() *api.AuthInfo {
	return &api.AuthInfo{ClientCertificateData: p.cert, ClientKeyData: p.key}
}

// withToken returns a user with the certificate and a token.
func (p pair) withToken(token string) *api.AuthInfo {
	user := p.user()
	user.Token = token
	return user
}

// write writes the pair to files.
func (p pair) write(t *testing.T, dir string) {
	t.Helper()
	for name, data := range map[string][]byte{"client.crt": p.cert, "client.key": p.key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// hosts are the host names in the certificate of a webhook.
var hosts = []string{"hook.example.com", "other.example.com", "*.example.com", "web.default.svc",
	"kubernetes.default.svc"}

// webhook is a server that returns the credentials it received.
type webhook struct {
	*httptest.Server
	caPEM []byte
	calls atomic.Int64
}

// newWebhook starts a webhook. If known is not nil, clients must present the certificate in known.
func newWebhook(t *testing.T, known *pair) *webhook {
	own, w := newPair(t, "webhook", hosts...), &webhook{}
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		w.calls.Add(1)
		got := []string{r.Header.Get("Authorization"), r.Header.Get("Impersonate-User")}
		if len(r.TLS.PeerCertificates) > 0 {
			got = append(got, r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		_, _ = io.WriteString(to, strings.Join(slices.DeleteFunc(got, func(s string) bool { return s == "" }), " "))
	}))
	w.caPEM = own.cert
	w.TLS = &tls.Config{Certificates: []tls.Certificate{own.Certificate}, ClientAuth: tls.RequestClientCert}
	if known != nil {
		w.TLS.ClientAuth, w.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		w.TLS.ClientCAs.AppendCertsFromPEM(known.cert)
	}
	w.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.EnableHTTP2 = true
	w.StartTLS()
	t.Cleanup(w.Close)
	return w
}

// dialer returns a Dialer whose connections all reach the webhook.
func (w *webhook) dialer() *egress.Dialer {
	return &egress.Dialer{
		Resolve: func(context.Context, string, string, int32) (string, error) {
			return w.Listener.Addr().String(),
				nil
		},
		IsLocal: func(string, string) bool { return true },
		ControlPlane: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.Listener.Addr().String())
		},
	}
}

// call calls the webhook at target: "service HOST:PORT" for a Service, or the host and port of a URL. It returns
// the credentials that the webhook received.
func (w *webhook) call(from *credentials.Source, dialer *egress.Dialer, target string) (string, error) {
	o := egress.Options{Name: "test", CABundle: w.caPEM, MaxBytes: 1000, Timeout: 10 * time.Second,
		Address: strings.TrimPrefix(target, "service ")}
	if o.Address != target {
		o.Service = &egress.Service{Namespace: "default", Name: strings.TrimSuffix(strings.Split(o.Address, ":")[0],
			".default.svc"), Port: 443}
	}
	if err := from.Add(&o); err != nil {
		return "", err
	}
	transport, err := dialer.NewWebhookTransport(o)
	if err != nil {
		return "", err
	}
	defer transport.Close()
	resp, err := transport.Client().Post("https://"+o.Address+"/", "application/json", strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return string(got), err
}

// kubeconfig writes a kubeconfig. If users contains the name "context", this user belongs to the current context.
func kubeconfig(t *testing.T, users map[string]*api.AuthInfo) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	c := api.Config{AuthInfos: users}
	if users["context"] != nil {
		c.Contexts, c.CurrentContext = map[string]*api.Context{"c": {AuthInfo: "context"}}, "c"
	}
	if err := clientcmd.WriteToFile(c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// refused is the expected result of a call if the webhook rejects the TLS handshake. The error text varies.
const refused = "none"

// TestCredentials checks which credentials a webhook receives. If the webhook requires a client certificate, it
// receives the one from the kubeconfig. A conversion webhook receives only the credentials of the user with the
// name of its host and port. If it is called by URL, it receives no token and no password. An admission webhook
// receives the credentials that kube-apiserver sends. CNV-014
func TestCredentials(t *testing.T) {
	known := newPair(t, "known")
	demanding, open := newWebhook(t, &known), newWebhook(t, nil)
	unrelated := known.user() // ForConversion requires at least one user that can apply
	type users = map[string]*api.AuthInfo
	for name, c := range map[string]struct {
		users                 users
		target                string
		conversion, admission string // credentials that the webhook receives, or refused
		open                  bool   // the webhook does not require a certificate
	}{
		"host": {users{"hook.example.com": known.user()}, "hook.example.com:443", "known", "known",
			false},
		"host and port": {users{"hook.example.com:443": known.user()}, "hook.example.com:443", "known",
			"known", false},
		"host and other port": {users{"hook.example.com:8443": known.user()}, "hook.example.com:8443", "known",
			"known", false},
		"no port, port 8443": {users{"hook.example.com": known.user()}, "hook.example.com:8443", refused,
			refused, false},
		"port 8443, port 443": {users{"hook.example.com:8443": known.user()}, "hook.example.com:443", refused,
			refused, false},
		"another host": {users{"other.example.com": known.user()}, "hook.example.com:443", refused,
			refused, false},
		"another certificate": {users{"hook.example.com": newPair(t, "unknown").user()}, "hook.example.com:443",
			refused, refused, false},
		"every host": {users{"*": known.user(), "x": unrelated}, "hook.example.com:443", refused,
			"known", false},
		"every host, open": {users{"*": known.withToken("secret"), "x": unrelated}, "hook.example.com:443", "",
			"Bearer secret known", true},
		"every host, Service": {users{"*": known.withToken("secret"), "x": unrelated},
			"service web.default.svc:443", refused, "Bearer secret known", false},
		"wildcard": {users{"*.example.com": known.user(), "x": unrelated}, "hook.example.com:443",
			refused, "known", false},
		"wildcard of Services": {users{"*.default.svc": known.user(), "x": unrelated},
			"service web.default.svc:443", refused, "known", false},
		"a host that is a wildcard": {users{"*.example.com": known.user(), "x": unrelated}, "*.example.com:443",
			refused, "known", false},
		"current context": {users{"context": known.user()}, "hook.example.com:443", refused, "known", false},
		"token by URL": {users{"hook.example.com": known.withToken("secret")}, "hook.example.com:443", "known",
			"Bearer secret known", false},
		"token alone by URL": {users{"hook.example.com": {Token: "secret"}, "x": unrelated}, "hook.example.com:443",
			"", "Bearer secret", true},
		"password by URL": {users{"hook.example.com": {Username: "u", Password: "p"}, "x": unrelated},
			"hook.example.com:443", "", "Basic dTpw", true},
		"user by URL": {users{"hook.example.com": {Impersonate: "jane"}, "x": unrelated},
			"hook.example.com:443", "", "jane", true},
		"Service": {users{"web.default.svc": known.withToken("secret")}, "service web.default.svc:443",
			"Bearer secret known", "Bearer secret known", false},
		"Service, token alone": {users{"web.default.svc:443": {Token: "secret"}}, "service web.default.svc:443",
			"Bearer secret", "Bearer secret", true},
		"Service, password": {users{"web.default.svc": {Username: "u", Password: "p"}}, "service web.default.svc:443",
			"Basic dTpw", "Basic dTpw", true},
		"Service, other port": {users{"web.default.svc:8443": known.withToken("secret")}, "service web.default.svc:443",
			refused, refused, false},
		"Service by URL": {users{"web.default.svc": known.withToken("secret")}, "web.default.svc:443", "known",
			"Bearer secret known", false},
	} {
		t.Run(name, func(t *testing.T) {
			file, w := kubeconfig(t, c.users), demanding
			if c.open {
				w = open
			}
			conversion, _, err := credentials.ForConversion(file)
			if err != nil {
				t.Fatal(err)
			}
			admission, err := credentials.ForAdmission(file)
			if err != nil {
				t.Fatal(err)
			}
			for want, from := range map[*string]*credentials.Source{&c.conversion: conversion,
				&c.admission: admission} {
				before := w.calls.Load()
				got, err := w.call(from, w.dialer(), c.target)
				if w.calls.Load() == before {
					got = refused
				}
				if got != *want || (err != nil) != (got == refused) {
					t.Errorf("conversion %t: got %q, %v; want %q", from == conversion, got, err, *want)
				}
			}
		})
	}
}

// TestRedirectsCarryNoCredentials checks a webhook that responds with a redirect. The webhook receives
// credentials. The target of the redirect receives no request.
func TestRedirectsCarryNoCredentials(t *testing.T) {
	known := newPair(t, "known")
	other := newWebhook(t, nil)
	w := newWebhook(t, &known)
	answer := w.Config.Handler
	w.Config.Handler = http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		to.Header().Set("Location", "https://other.example.com/")
		to.WriteHeader(http.StatusTemporaryRedirect)
		answer.ServeHTTP(to, r)
	})
	file := kubeconfig(t, map[string]*api.AuthInfo{"hook.example.com": known.withToken("secret"),
		"web.default.svc": known.withToken("secret"), "other.example.com": known.withToken("secret")})
	conversion, _, err := credentials.ForConversion(file)
	if err != nil {
		t.Fatal(err)
	}
	admission, err := credentials.ForAdmission(file)
	if err != nil {
		t.Fatal(err)
	}
	dialer := w.dialer()
	dialer.ControlPlane = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "other.") {
			return new(net.Dialer).DialContext(ctx, network, other.Listener.Addr().String())
		}
		return new(net.Dialer).DialContext(ctx, network, w.Listener.Addr().String())
	}
	for _, from := range []*credentials.Source{conversion, admission} {
		for _, target := range []string{"hook.example.com:443", "service web.default.svc:443"} {
			if got, err := w.call(from, dialer, target); err != nil || !strings.Contains(got, "known") ||
				other.calls.Load() != 0 {
				t.Errorf("%s: %q, %v; %d requests at the other host", target, got, err, other.calls.Load())
			}
		}
	}
}

// TestOwnServiceGetsNoCredentials checks that requests to Service default/kubernetes use the server's own identity,
// whatever the kubeconfig contains for that host.
func TestOwnServiceGetsNoCredentials(t *testing.T) {
	known := newPair(t, "known")
	w := newWebhook(t, &known)
	dialer := w.dialer()
	dialer.Self = self{t}
	file := kubeconfig(t, map[string]*api.AuthInfo{"kubernetes.default.svc": known.withToken("secret"),
		"x": known.user()})
	conversion, _, err := credentials.ForConversion(file)
	if err != nil {
		t.Fatal(err)
	}
	admission, err := credentials.ForAdmission(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []*credentials.Source{conversion, admission} {
		for _, target := range []string{"kubernetes.default.svc:443", "service kubernetes.default.svc:443"} {
			if got, err := w.call(from, dialer, target); err != nil || got != "self" {
				t.Errorf("%s: %q, %v", target, got, err)
			}
		}
	}
}

// self is the handler that replaces connections to this server's own Service (Dialer.Self).
type self struct{ testing.TB }

func (s self) RoundTrip(r *http.Request) (*http.Response, error) {
	if got := r.Header.Get("Authorization"); got != "" {
		s.Errorf("this server received credentials %q", got)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("self"))}, nil
}

// TestFilesAreReadAgain checks that relative paths in a kubeconfig are relative to its directory, and that the
// next connection uses a renewed certificate.
func TestFilesAreReadAgain(t *testing.T) {
	known := newPair(t, "known")
	w, dir := newWebhook(t, &known), t.TempDir()
	newPair(t, "unknown").write(t, dir)
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, []byte("users: [{name: hook.example.com, user: {client-certificate: client.crt, "+
		"client-key: ./client.key}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	from, _, err := credentials.ForConversion(file)
	if err != nil {
		t.Fatal(err)
	}
	o := egress.Options{Name: "test", CABundle: w.caPEM, MaxBytes: 1000, Address: "hook.example.com:443"}
	if err := from.Add(&o); err != nil {
		t.Fatal(err)
	}
	transport, err := w.dialer().NewWebhookTransport(o)
	if err != nil {
		t.Fatal(err)
	}
	defer transport.Close()
	call := func() error {
		resp, err := transport.Client().Get("https://" + o.Address)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := call(); err == nil {
		t.Fatal("the webhook accepted an unknown certificate")
	}
	known.write(t, dir)
	deadline := time.After(20 * time.Second)
	for call() != nil {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("the renewed certificate is not used")
		}
	}
}

// TestRotations checks that a changed certificate file is counted as a rotation within a minute, and that
// connections with the old certificate are then replaced. Unreadable files do not count.
func TestRotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, dir := newPair(t, "first"), newPair(t, "second"), t.TempDir()
		first.write(t, dir)
		file := filepath.Join(dir, "kubeconfig")
		if err := os.WriteFile(file, []byte("users: [{name: hook.example.com, user: {client-certificate: "+
			"client.crt, client-key: client.key}}]"), 0o600); err != nil {
			t.Fatal(err)
		}
		from, err := credentials.ForAdmission(file)
		if err != nil {
			t.Fatal(err)
		}
		o := egress.Options{Address: "hook.example.com:443"}
		if err := from.Add(&o); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			change func()
			want   uint64
		}{
			{func() {}, 0},
			{func() { second.write(t, dir) }, 1},
			{func() {}, 1},
			{func() { _ = os.Remove(dir + "/client.key") }, 1},
			{func() { second.write(t, dir) }, 1},
			{func() { first.write(t, dir) }, 2},
		} {
			before := o.Rotations()
			step.change()
			if got := o.Rotations(); got != before {
				t.Errorf("the files are read for each request")
			}
			<-time.After(time.Minute)
			if got := o.Rotations(); got != step.want {
				t.Errorf("got %d rotations, want %d", got, step.want)
			}
		}
	})
}

// TestUnusableFiles checks that reading an unusable kubeconfig fails, and that the error contains the user's name.
func TestUnusableFiles(t *testing.T) {
	known, other := newPair(t, "known"), newPair(t, "other")
	mixed, both := known.user(), known.withToken("secret")
	mixed.ClientKeyData = other.key
	both.Username = "u"
	users := map[string]*api.AuthInfo{
		"no such file or directory": {ClientCertificate: "/none.crt",
			ClientKey: "/none.key"},
		"open /none.key: no such file or directory": {ClientCertificateData: known.cert,
			ClientKey: "/none.key"},
		"client-certificate and client-key must be set":         {ClientCertificateData: known.cert},
		"must be set together":                                  {ClientKeyData: known.key},
		"private key does not match public key":                 mixed,
		"open /none.token: no such file or directory":           {TokenFile: "/none.token"},
		"username/password or bearer token may be set, but not": both,
		"auth provider not supported":                           {AuthProvider: &api.AuthProviderConfig{Name: "gcp"}},
	}
	files := map[string]string{}
	for want, user := range users {
		files[kubeconfig(t, map[string]*api.AuthInfo{"web.default.svc": user})] = `user "web.default.svc": ` + "\x00" +
			want
	}
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	files[broken], files["/none"], files[t.TempDir()] = "error loading config file",
		"stat /none: no such file or directory", "is a directory"
	for file, want := range files {
		_, admission := credentials.ForAdmission(file)
		_, _, conversion := credentials.ForConversion(file)
		for _, part := range strings.Split("kubeconfig "+file+"\x00"+want, "\x00") {
			if admission == nil || conversion == nil || !strings.Contains(admission.Error(), part) ||
				!strings.Contains(conversion.Error(), part) {
				t.Errorf("%v, %v; want %q", admission, conversion, part)
			}
		}
	}
}

// TestIgnoredUsers checks that there is a warning for each user whose credentials can never apply to a conversion
// webhook. A kubeconfig with only such users is rejected.
func TestIgnoredUsers(t *testing.T) {
	known := newPair(t, "known")
	users := map[string]*api.AuthInfo{
		"*": known.user(), "*.example.com": known.user(), "admin@cluster": known.user(),
		"hook.example.com:https": known.user(), "hook.example.com:0": known.user(),
		"kubernetes.default.svc": known.user(), "empty.example.com": {}, "token.example.com": {Token: "secret"},
		"password.example.com:8443": {Username: "u", Password: "p"},
	}
	want := []string{
		`user "*": ignored: a wildcard does not apply to conversion webhooks (use the exact host name)`,
		`user "*.example.com": ignored: a wildcard does not apply to conversion webhooks (use the exact host name)`,
		`user "admin@cluster": ignored: the name must be the HOST or HOST:PORT of a webhook`,
		`user "empty.example.com": ignored: it has no credentials`,
		`user "hook.example.com:0": ignored: the name must be the HOST or HOST:PORT of a webhook`,
		`user "hook.example.com:https": ignored: the name must be the HOST or HOST:PORT of a webhook`,
		`user "kubernetes.default.svc": ignored: the server uses its own identity for requests to itself`,
		`user "password.example.com:8443": ignored: tokens and passwords are sent only to Services (NAME.NAMESPACE.svc), so use a client certificate`,
		`user "token.example.com": ignored: tokens and passwords are sent only to Services (NAME.NAMESPACE.svc), so use a client certificate`,
	}
	file := kubeconfig(t, users)
	if _, _, err := credentials.ForConversion(file); err == nil || err.Error() != "kubeconfig "+file+
		": no user has credentials that apply to a conversion webhook; "+strings.Join(want, "; ") {
		t.Errorf("%v", err)
	}
	file = kubeconfig(t, nil)
	if _, _, err := credentials.ForConversion(file); err == nil || err.Error() != "kubeconfig "+file+
		": no user has credentials that apply to a conversion webhook" {
		t.Errorf("without a user: %v", err)
	}
	for _, name := range []string{"127.0.0.1:8443", "[::1]:8443", "::1", "hook.example.com", "Hook.example.com:1"} {
		users[name] = known.user()
	}
	users["web.default.svc"] = &api.AuthInfo{Token: "secret"}
	users["z.example.com"] = known.withToken("secret")
	want = append(want, `user "z.example.com": only its client certificate is sent, not its token or password, because z.example.com is not a Service`)
	if _, got, err := credentials.ForConversion(kubeconfig(t, users)); err != nil || !slices.Equal(got, want) {
		t.Errorf("got warnings:\n%v\nerror: %v", strings.Join(got, "\n"), err)
	}
}

// TestNoFile checks that no credentials are added if no file is configured.
func TestNoFile(t *testing.T) {
	conversion, warnings, err := credentials.ForConversion("")
	admission, problem := credentials.ForAdmission("")
	if o := (&egress.Options{}); conversion != nil || admission != nil || warnings != nil || err != nil ||
		problem != nil || admission.Add(o) != nil || o.Wrap != nil {
		t.Errorf("%v, %v, %v, %v, %v", conversion, admission, warnings, err, problem)
	}
}
