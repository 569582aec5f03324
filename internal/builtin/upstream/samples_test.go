package upstream

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// sample is an object as a client sends it to an endpoint.
type sample struct {
	name     string
	endpoint *Endpoint
	object   map[string]any
}

func (s *sample) json(t testing.TB) []byte {
	t.Helper()
	out, err := json.Marshal(s.object)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// with is the JSON of the sample after a change to a copy of it.
func (s *sample) with(t testing.TB, change func(map[string]any)) []byte {
	t.Helper()
	var copied map[string]any
	if err := json.Unmarshal(s.json(t), &copied); err != nil {
		t.Fatal(err)
	}
	change(copied)
	out, err := json.Marshal(copied)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kinds are those of a server that answers nothing.
func kinds() map[schema.GroupVersionKind]*Endpoint {
	all := map[schema.GroupVersionKind]*Endpoint{}
	for _, k := range Kinds(Config{}) {
		for _, e := range k.Endpoints {
			all[e.GroupVersion.WithKind(k.Names.Kind)] = e
		}
	}
	return all
}

// samples are those of testdata/objects.yaml.
func samples(t testing.TB) []*sample {
	t.Helper()
	text, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known := kinds()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	var all []*sample
	for _, doc := range strings.Split(string(text), "\n---\n")[1:] {
		doc = strings.ReplaceAll(doc, `"@request"`, signingRequest(t, key))
		doc = strings.ReplaceAll(doc, `"@stub"`, base64.StdEncoding.EncodeToString(stubRequest(t, key)))
		doc = strings.ReplaceAll(doc, `"@certificate"`, certificate(t, key))
		s := &sample{}
		if err := yaml.Unmarshal([]byte(doc), &s.object); err != nil {
			t.Fatal(err)
		}
		gvk := (&unstructured.Unstructured{Object: s.object}).GroupVersionKind()
		if s.endpoint = known[gvk]; s.endpoint == nil {
			t.Fatalf("no line of the table is for %v", gvk)
		}
		s.name = strings.ReplaceAll(gvk.GroupVersion().String(), "/", "-") + "-" + gvk.Kind
		all = append(all, s)
	}
	return all
}

func stubRequest(t testing.TB, key ed25519.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// signingRequest is the base64 of a request in PEM.
func signingRequest(t testing.TB, key ed25519.PrivateKey) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: stubRequest(t, key)}))
}

// certificate is a certificate of an authority, in PEM, as a JSON string.
func certificate(t testing.TB, key ed25519.PrivateKey) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	if err != nil {
		t.Fatal(err)
	}
	return string(quoted)
}

func TestEveryLineHasASample(t *testing.T) {
	left := kinds()
	for _, s := range samples(t) {
		delete(left, s.endpoint.GroupVersion.WithKind(s.endpoint.Kind.Names.Kind))
	}
	for gvk := range left {
		t.Errorf("testdata/objects.yaml has no %v", gvk)
	}
}
