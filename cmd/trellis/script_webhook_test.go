package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	mathbig "math/big"
	"net"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/examples/conversion-webhook/crontab"
)

// webhook runs the example of a conversion webhook. `webhook start` starts it, and `webhook stop` stops it. A second
// start uses the same address. `webhook call CRD NEW` writes a copy of the CustomResourceDefinition in the file CRD
// to the file NEW. The copy calls the webhook by URL. The variable WEBHOOK_PORT contains the port, and WEBHOOK_CA
// contains the CA in the form of a caBundle.
func webhook(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case !neg && len(args) == 1 && args[0] == "start":
		startWebhook(ts)
	case !neg && len(args) == 1 && args[0] == "stop":
		ts.Value(webhookKey{}).(*runningWebhook).stop()
	case !neg && len(args) == 3 && args[0] == "call":
		callWebhook(ts, args[1], args[2])
	default:
		ts.Fatalf("usage: webhook start | webhook stop | webhook call crd new")
	}
}

type webhookKey struct{}

// runningWebhook is the webhook of a script.
type runningWebhook struct {
	address string
	stop    func()
}

func startWebhook(ts *testscript.TestScript) {
	w := ts.Value(webhookKey{}).(*runningWebhook)
	if w.address == "" {
		w.address = "127.0.0.1:0"
		writeCertificate(ts)
	}
	l, err := net.Listen("tcp", w.address)
	ts.Check(err)
	w.address = l.Addr().String()
	_, port, err := net.SplitHostPort(w.address)
	ts.Check(err)
	ts.Setenv("WEBHOOK_PORT", port)
	ts.Setenv("WEBHOOK_CA", base64.StdEncoding.EncodeToString([]byte(ts.ReadFile("tls.crt"))))
	server := conversionwebhook.Server{CertFile: ts.MkAbs("tls.crt"), KeyFile: ts.MkAbs("tls.key"),
		Handler: crontab.Handler()}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	stopped := false
	w.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			ts.Check(<-ended)
		}
	}
	ts.Defer(w.stop)
}

// writeCertificate writes tls.crt and tls.key for the loopback address and for the Service of the documentation.
func writeCertificate(ts *testscript.TestScript) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := &x509.Certificate{SerialNumber: mathbig.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		DNSNames:              []string{"example-conversion-webhook-server.default.svc"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ts.Check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		0o600))
}

// callWebhook writes a copy of a CRD with a clientConfig that refers to the script's webhook.
func callWebhook(ts *testscript.TestScript, from, to string) {
	var crd map[string]any
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(from)), &crd))
	spec, _ := crd["spec"].(map[string]any)
	conversion, _ := spec["conversion"].(map[string]any)
	client := map[string]any{
		"url":      "https://" + ts.Value(webhookKey{}).(*runningWebhook).address + "/crdconvert",
		"caBundle": base64.StdEncoding.EncodeToString([]byte(ts.ReadFile("tls.crt"))),
	}
	if webhook, ok := conversion["webhook"].(map[string]any); ok {
		webhook["clientConfig"] = client
	} else if strings.HasSuffix(crd["apiVersion"].(string), "/v1beta1") {
		conversion["webhookClientConfig"] = client
	} else {
		ts.Fatalf("%s has no spec.conversion.webhook", from)
	}
	data, err := yaml.Marshal(crd)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(to), data, 0o600))
}
