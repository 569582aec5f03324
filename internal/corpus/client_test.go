package corpus_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

// client sends plain HTTP requests, so that tests can compare response bodies byte by byte.
type client struct {
	http *http.Client
	host string
}

func newClient(t *testing.T, config *rest.Config) *client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{h, config.Host}
}

const (
	asYAML  = "application/yaml"
	asApply = "application/apply-patch+yaml"
	asMerge = "application/merge-patch+json"
)

// do sends a request and returns the response body. A status of 400 or above is an error.
func (c *client) do(method, path, contentType string, body []byte) ([]byte, error) {
	resp, err := c.open(context.Background(), method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		return out, fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, out)
	}
	return out, nil
}

// open sends a request and returns the response, whose body the caller closes.
func (c *client) open(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("User-Agent", "corpus")
	return c.http.Do(req)
}
