package wire

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// The gRPC methods of the tunnel protocol.
const (
	ProxyMethod   = "/ProxyService/Proxy"
	ConnectMethod = "/AgentService/Connect"
)

// NoAgent is the error message of a dial when no agent is connected, or none serves the destination. Reference
// clients recognize this text.
const NoAgent = "No agent available"

// The metadata that agents and servers exchange, in the lower case of HTTP/2. The reference implementation defines
// it in proto/header.
const (
	AgentID          = "agentid"
	AgentIdentifiers = "agentidentifiers"
	ServerID         = "serverid"
	ServerCount      = "servercount"
	Authorization    = "authorization"
	// Tunnel is specific to Trellis. An agent lists the transports that it supports in addition to packets, and
	// the server answers with the one that it has chosen.
	Tunnel = "tunnel"
	// HalfClose is specific to Trellis. An API server sends it to announce that it supports half-closed
	// connections, and the tunnel server confirms it. Unless both send it, the end of either direction is the end
	// of the connection.
	HalfClose = "half-close"
	// TunnelByConnect is a value of Tunnel. For each connection, the server opens an HTTP/2 stream with CONNECT
	// (RFC 9113, 8.5).
	TunnelByConnect = "connect"
	// HalfCloseYes is the value of HalfClose.
	HalfCloseYes = "yes"
)

// The gRPC status codes that this project uses.
const (
	OK              = 0
	Unknown         = 2
	Unavailable     = 14
	Unimplemented   = 12
	Unauthenticated = 16
)

// Request returns the request headers of a gRPC call. metadata lists pairs of name and value.
func Request(method, authority string, secure bool, metadata ...string) []hpack.HeaderField {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return appendMetadata([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "user-agent", Value: "trellis"},
	}, metadata)
}

// Response returns the response headers of a gRPC call. metadata lists pairs of name and value.
func Response(metadata ...string) []hpack.HeaderField {
	return appendMetadata([]hpack.HeaderField{
		{Name: ":status", Value: "200"},
		{Name: "content-type", Value: "application/grpc"},
	}, metadata)
}

func appendMetadata(fields []hpack.HeaderField, metadata []string) []hpack.HeaderField {
	for i := 0; i+1 < len(metadata); i += 2 {
		name, value := metadata[i], metadata[i+1]
		fields = append(fields, hpack.HeaderField{Name: name, Value: value, Sensitive: name == Authorization})
	}
	return fields
}

// Trailer returns the trailer of a gRPC response with a status.
func Trailer(code int, message string) []hpack.HeaderField {
	fields := []hpack.HeaderField{{Name: "grpc-status", Value: strconv.Itoa(code)}}
	if message != "" {
		encoded := strings.ReplaceAll(url.QueryEscape(message), "+", "%20") // gRPC over HTTP/2, Status-Message
		fields = append(fields, hpack.HeaderField{Name: "grpc-message", Value: encoded})
	}
	return fields
}

// TrailersOnly returns a complete gRPC response without a body: a Trailers-Only response with a status.
func TrailersOnly(code int, message string) []hpack.HeaderField {
	return append(Response(), Trailer(code, message)...)
}

// Field returns the value of the first field with a name. ok reports whether there is one.
func Field(fields []hpack.HeaderField, name string) (value string, ok bool) {
	for _, f := range fields {
		if f.Name == name {
			return f.Value, true
		}
	}
	return "", false
}

// StatusError returns the error that the fields of a header or trailer carry: an HTTP status other than 200, or
// a gRPC status other than OK. It returns nil if they carry none.
func StatusError(fields []hpack.HeaderField) error {
	if status, ok := Field(fields, ":status"); ok && status != "200" {
		return fmt.Errorf("server responded with HTTP status %s", quoted(status))
	}
	code, ok := Field(fields, "grpc-status")
	if !ok || code == "0" {
		return nil
	}
	message, _ := Field(fields, "grpc-message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	return fmt.Errorf("server responded with gRPC status %s: %s", quoted(code), quoted(message))
}

// quoted escapes and truncates a text that the peer has sent, for an error message.
func quoted(s string) string {
	quoted := strconv.Quote(s[:min(len(s), 512)])
	return quoted[1 : len(quoted)-1]
}
