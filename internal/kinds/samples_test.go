package kinds_test

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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

var tester = &user.DefaultInfo{Name: "tester", UID: "u", Groups: []string{"system:masters", "system:authenticated"}}

// cluster is a server of all built-in kinds that has the namespace "ns".
type cluster struct {
	*fixture.Env
	user user.Info

	mu       sync.Mutex
	warnings []string
}

func serveCluster(t testing.TB, c kinds.Config) *cluster {
	t.Helper()
	s := &cluster{Env: fixture.Open(t, c), user: tester}
	s.mustCreate(s.version("v1", "Namespace"), "ns", "{metadata: {name: ns}}")
	return s
}

// version returns the version of a built-in kind.
func (c *cluster) version(apiVersion, kind string) *resource.Version {
	c.Helper()
	for d := range c.Live.Load().Definitions() {
		for _, v := range d.Versions {
			if v.APIVersion == apiVersion && d.Names.Kind == kind {
				return v
			}
		}
	}
	c.Fatalf("%s of %s is not served", kind, apiVersion)
	return nil
}

func (c *cluster) at(v *resource.Version, name, subresource string) verb.Target {
	t := verb.Target{Version: v, Name: name, Subresource: subresource}
	if v.Definition.Namespaced {
		t.Namespace = "ns"
	}
	return t
}

func (c *cluster) by() verb.Caller {
	return verb.Caller{User: c.user, FieldManager: "test", Validation: "Strict", Warn: func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.warnings = append(c.warnings, text)
	}}
}

func (c *cluster) tree(o record.Object) object.Tree {
	c.Helper()
	t, err := o.Tree()
	if err != nil {
		c.Fatal(err)
	}
	return t
}

// body decodes YAML to a request body.
func (c *cluster) body(v *resource.Version, text string) verb.Body {
	c.Helper()
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		c.Fatal(err)
	}
	d, err := v.Type.Decode(js)
	if err != nil {
		c.Fatal(err)
	}
	d.Tree["apiVersion"], d.Tree["kind"] = v.APIVersion, v.Definition.Names.Kind
	return verb.Body{Tree: d.Tree, Internal: d.Internal, Strict: d.Strict, Typed: true}
}

// create creates an object from YAML.
func (c *cluster) create(v *resource.Version, text string) (object.Tree, error) {
	c.Helper()
	o, err := c.Engine.Create(c.Context(), c.at(v, "", ""), c.body(v, text), c.by())
	if err != nil {
		return nil, err
	}
	return c.tree(o), nil
}

// mustCreate creates an object, and returns the stored JSON.
func (c *cluster) mustCreate(v *resource.Version, name, text string) []byte {
	c.Helper()
	if _, err := c.create(v, text); err != nil {
		c.Fatalf("%s: %v", text, err)
	}
	return c.stored(v, name)
}

// put updates an object, or one of its subresources.
func (c *cluster) put(v *resource.Version, name, subresource, text string) (object.Tree, error) {
	c.Helper()
	b := c.body(v, text)
	if rec := c.Store.Head().Get(v.Definition.Key(c.at(v, "", "").Namespace, name)); rec != nil {
		object.EnsureMetadata(b.Tree)["resourceVersion"] = strconv.FormatInt(rec.Modified, 10)
	}
	o, _, err := c.Engine.Update(c.Context(), c.at(v, name, subresource), b, c.by())
	if err != nil {
		return nil, err
	}
	return c.tree(o), nil
}

// stored returns the stored JSON of an object, or nil if it does not exist.
func (c *cluster) stored(v *resource.Version, name string) []byte {
	c.Helper()
	rec := c.Store.Head().Get(v.Definition.Key(c.at(v, "", "").Namespace, name))
	if rec == nil {
		return nil
	}
	return rec.Value
}

// sample is an object as a client sends it.
type sample struct {
	name, apiVersion, kind, object string
	text                           string
}

// samples returns the objects in testdata/objects.yaml.
func samples(t testing.TB) []sample {
	t.Helper()
	text, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	var all []sample
	for _, doc := range strings.Split(string(text), "\n---\n")[1:] {
		doc = strings.ReplaceAll(doc, `"@request"`, signingRequest(t, key))
		doc = strings.ReplaceAll(doc, `"@stub"`, base64.StdEncoding.EncodeToString(stubRequest(t, key)))
		doc = strings.ReplaceAll(doc, `"@certificate"`, certificate(t, key))
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, sample{strings.ReplaceAll(o.APIVersion, "/", "-") + "-" + o.Kind, o.APIVersion, o.Kind,
			o.Metadata.Name, doc})
	}
	return all
}

func findSample(t testing.TB, name string) sample {
	t.Helper()
	all := samples(t)
	i := slices.IndexFunc(all, func(s sample) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no sample %s", name)
	}
	return all[i]
}

// with returns the JSON of the sample after the function change has modified it.
func (s sample) with(t testing.TB, change func(map[string]any)) string {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(s.text), &o); err != nil {
		t.Fatal(err)
	}
	change(o)
	js, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(js)
}

func stubRequest(t testing.TB, key ed25519.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// signingRequest returns a PEM certificate request in base64.
func signingRequest(t testing.TB, key ed25519.PrivateKey) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: stubRequest(t, key)}))
}

// certificate returns a PEM certificate of a CA, as a JSON string.
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

// TestEveryKindHasSample checks that testdata/objects.yaml has an object of each version of each stored kind.
func TestEveryKindHasSample(t *testing.T) {
	known := map[string]bool{}
	for _, s := range samples(t) {
		known[s.apiVersion+" "+s.kind] = true
	}
	for _, d := range kinds.Definitions(kinds.Config{}) {
		for _, v := range d.Versions {
			if d.Strategy != nil && !known[v.APIVersion+" "+d.Names.Kind] {
				t.Errorf("testdata/objects.yaml has no %s of %s", d.Names.Kind, v.APIVersion)
			}
		}
	}
}
