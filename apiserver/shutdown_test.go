package apiserver

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// TestShutdownWithALateConnection checks that a client whose TLS handshake ends after the shutdown has begun, and that
// sends no request, does not delay the shutdown.
func TestShutdownWithALateConnection(t *testing.T) {
	s, err := Start(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(s.URL(), "https://")
	early, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	down := make(chan error)
	go func() { down <- s.Shutdown() }()
	for refused := false; !refused; {
		c, err := net.Dial("tcp", address)
		if refused = err != nil; !refused {
			c.Close()
		}
	}
	client := tls.Client(early, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := http2.NewFramer(client, client).WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
}
