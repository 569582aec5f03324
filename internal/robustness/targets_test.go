package robustness_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// baseObjects holds objects of the kinds that the function samples does not return.
var baseObjects = map[string]string{
	"LocalSubjectAccessReview": `{"metadata":{"namespace":"ns"},
		"spec":{"user":"u","resourceAttributes":{"namespace":"ns","verb":"get","resource":"pods"}}}`,
	"SelfSubjectAccessReview": `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`,
	"SubjectAccessReview":     `{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}`,
	"SelfSubjectRulesReview":  `{"spec":{"namespace":"ns"}}`,
	"TokenReview":             `{"spec":{"token":"t"}}`,
	"Binding":                 `{"metadata":{"name":"base"},"target":{"kind":"Node","name":"n"}}`,
	"Eviction":                `{"metadata":{"name":"base"}}`,
	"TokenRequest":            `{"metadata":{"name":"base"},"spec":{"expirationSeconds":3600}}`,
	"CustomResourceDefinition": `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"bases.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"bases","kind":"Base"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
}

// targets returns every served version of every kind, and the bodies of subresources. It creates an object of each
// stored kind on the server.
func (s *sweep) targets() (out []target) {
	samples := s.samples()
	for _, d := range kinds.Definitions(kinds.Config{}) {
		for _, v := range d.Versions {
			if !v.Served {
				continue
			}
			o := target{version: v, path: "/apis/" + v.APIVersion + "/", base: samples[v.APIVersion+" "+d.Names.Kind]}
			if d.Group == "" && v.GroupVersion.Group == "" {
				o.path = "/api/" + v.APIVersion + "/"
			}
			if d.Namespaced {
				o.path += "namespaces/ns/"
			}
			o.path += d.Names.Plural
			if o.base == nil {
				o.base = baseObject(v)
			}
			if d.Strategy != nil {
				for name := range d.Strategy.Subresources {
					o.subresources = append(o.subresources, "/"+name)
				}
			}
			if d.Stored() {
				s.send(http.MethodPost, o.path, asJSON, o.base)
			}
			out = append(out, o)
			for _, sub := range v.Subresources {
				if sub.Body != nil {
					out = append(out, target{version: sub.Body, path: o.path + "/base/" + sub.Name,
						base: baseObject(sub.Body)})
				}
			}
		}
	}
	return out
}

// baseObject returns the object of baseObjects for the kind, or {}.
func baseObject(v *resource.Version) []byte {
	if text := baseObjects[v.Definition.Names.Kind]; text != "" {
		return []byte(text)
	}
	return []byte(`{}`)
}

// samples returns an object of most kinds, by apiVersion and kind. Objects are named base, except those whose kind
// requires another name.
func (s *sweep) samples() map[string][]byte {
	s.t.Helper()
	data, err := os.ReadFile("../kinds/testdata/objects.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	request, certificate := s.certificates()
	text := strings.NewReplacer(`"@request"`, request, `"@stub"`, request, `"@certificate"`,
		certificate).Replace(string(data))
	all := map[string][]byte{}
	for _, doc := range strings.Split(text, "\n---\n")[1:] {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			s.t.Fatal(err)
		}
		if md := o["metadata"].(map[string]any); md["name"] == "a" {
			md["name"] = "base"
		}
		js, err := json.Marshal(o)
		if err != nil {
			s.t.Fatal(err)
		}
		all[o["apiVersion"].(string)+" "+o["kind"].(string)] = js
	}
	return all
}

// certificates returns a certificate signing request and a CA certificate. The results can be inserted into YAML.
func (s *sweep) certificates() (request, certificate string) {
	s.t.Helper()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	quoted, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})))
	if err != nil {
		s.t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		string(quoted)
}
