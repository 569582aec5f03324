package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// server is a client of one of the two compared servers.
type server struct {
	name, host string
	http       *http.Client
	anonymous  *http.Client // without credentials
	// last holds the values of {rv}, {uid} and {continue} from the last object or list that the server returned.
	last map[string]string
}

func newServer(t *testing.T, name string, config *rest.Config) *server {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	return &server{name, config.Host, client, anonymous, map[string]string{}}
}

// request is a request to both servers. In path and body, {rv}, {uid} and {continue} are replaced by the values of the
// server's last response.
type request struct {
	method, path, body string
	contentType        string // "" is application/json
	accept             string
	header             http.Header
	anonymous          bool
	events             int // number of events to read from a watch, 0 for other requests
}

const (
	asJSON      = "application/json"
	asYAML      = "application/yaml"
	asApply     = "application/apply-patch+yaml"
	asMerge     = "application/merge-patch+json"
	asJSONPatch = "application/json-patch+json"
	asStrategic = "application/strategic-merge-patch+json"
	asTable     = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
)

// response holds the compared parts of a response. body is decoded JSON, the events of a watch, or text.
type response struct {
	code        int
	contentType string
	warnings    []string
	body        any
}

func (a response) String() string {
	body, _ := json.Marshal(a.body)
	return fmt.Sprintf("%d %s %q %.3000s", a.code, a.contentType, a.warnings, body)
}

// fill replaces the placeholders {rv}, {uid} and {continue}.
func (s *server) fill(text string) string {
	for name, value := range s.last {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

func (s *server) send(ctx context.Context, r request) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.host+s.fill(r.path), strings.NewReader(s.fill(r.body)))
	if err != nil {
		return response{}, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.body != "" {
		req.Header.Set("Content-Type", asJSON)
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	req.Header.Set("User-Agent", "conformance")
	client := s.http
	if r.anonymous {
		client = s.anonymous
	}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	a := response{code: resp.StatusCode, contentType: resp.Header.Get("Content-Type"),
		warnings: resp.Header.Values("Warning")}
	if r.events > 0 && a.code == http.StatusOK {
		a.body, err = events(resp.Body, r.events)
		return a, err
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, err
	}
	if a.body = decode(data); a.contentType == asYAML {
		err = yaml.Unmarshal(data, &a.body)
	}
	s.remember(a)
	return a, err
}

// events reads n events of a watch.
func events(body io.Reader, n int) (any, error) {
	var all []any
	for d := json.NewDecoder(body); len(all) < n; {
		var e any
		if err := d.Decode(&e); err != nil {
			return all, fmt.Errorf("read watch after %d events: %w", len(all), err)
		}
		all = append(all, e)
	}
	return all, nil
}

// decode decodes a JSON value, or the events of a closed watch. It returns data as a string if it is not JSON.
func decode(data []byte) any {
	var all []any
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var body any
		d.UseNumber()
		switch err := d.Decode(&body); {
		case err == io.EOF && len(all) == 1:
			return all[0]
		case err == io.EOF && len(all) > 1:
			return all
		case err != nil:
			return string(data)
		}
		all = append(all, body)
	}
}

// remember stores the placeholders' values from a successful response.
func (s *server) remember(a response) {
	for name, path := range map[string]string{"rv": "resourceVersion", "uid": "uid", "continue": "continue"} {
		if v := nested[string](a.body, "metadata", path); v != "" && a.code < 300 {
			s.last[name] = v
		}
	}
}

// nested returns the value at a path of decoded JSON, or the zero value if it is missing or has another type.
func nested[T any](v any, path ...string) T {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	out, _ := v.(T)
	return out
}
