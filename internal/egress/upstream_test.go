package egress

import (
	"testing"

	"k8s.io/client-go/rest"
)

// TestRESTClient checks that a Transport can be used in a rest.Config.
func TestRESTClient(t *testing.T) {
	d := newDestination(t, host, writes("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := newCaller(t, d, Options{MaxBytes: 1000})
	defer c.Close()
	client, err := rest.HTTPClientFor(&rest.Config{Host: "https://" + host, Transport: c.Transport})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get("https://" + host)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := c.metricValues()["rest_client_requests_total{200,"+c.host+",GET}"]; got != 1 {
		t.Errorf("counted %v requests, want 1", got)
	}
}
