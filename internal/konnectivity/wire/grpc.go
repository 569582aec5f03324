package wire

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// The methods of gRPC.
const (
	ProxyMethod   = "/ProxyService/Proxy"
	ConnectMethod = "/AgentService/Connect"
)

// NoAgent is what a server answers to which no agent is connected, or none for the destination: clients of the reference know the text.
const NoAgent = "No agent available"

// What agents and servers tell each other of themselves (the reference's proto/header), by the names of HTTP/2.
const (
	AgentID          = "agentid"
	AgentIdentifiers = "agentidentifiers"
	ServerID         = "serverid"
	ServerCount      = "servercount"
	Authorization    = "authorization"
	// Tunnel is Trellis' own: an agent says by it what it speaks beside packets, and the server what it has chosen.
	Tunnel = "tunnel"
	// HalfClose is Trellis' own: an API server, and then the tunnel server, say by it that the end of what one side of a connection sends
	// is not the end of the connection.
	HalfClose = "half-close"
	// TunnelByConnect, as Tunnel, is a stream of HTTP/2 for each connection, opened by the server with CONNECT (RFC 9113, 8.5).
	TunnelByConnect = "connect"
	// HalfCloseYes is the value of HalfClose.
	HalfCloseYes = "yes"
)

// The codes of gRPC that are used here.
const (
	OK              = 0
	Unknown         = 2
	Unavailable     = 14
	Unimplemented   = 12
	Unauthenticated = 16
)

// Request returns the header of a call, with metadata in pairs of name and value.
func Request(method, authority string, secure bool, metadata ...string) []hpack.HeaderField {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return appendMetadata([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":path", Value: method}, {Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}, {Name: "user-agent", Value: "trellis"},
	}, metadata)
}

// Response returns the header of the answer to a call, with metadata in pairs.
func Response(metadata ...string) []hpack.HeaderField {
	return appendMetadata([]hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"}}, metadata)
}

func appendMetadata(fields []hpack.HeaderField, metadata []string) []hpack.HeaderField {
	for i := 0; i+1 < len(metadata); i += 2 {
		fields = append(fields, hpack.HeaderField{Name: metadata[i], Value: metadata[i+1], Sensitive: metadata[i] == Authorization})
	}
	return fields
}

// Trailer is the end of an answer.
func Trailer(code int, message string) []hpack.HeaderField {
	fields := []hpack.HeaderField{{Name: "grpc-status", Value: strconv.Itoa(code)}}
	if message != "" { // percent-encoded (gRPC over HTTP/2, Status-Message)
		fields = append(fields, hpack.HeaderField{Name: "grpc-message", Value: strings.ReplaceAll(url.QueryEscape(message), "+", "%20")})
	}
	return fields
}

// TrailersOnly is a whole answer to a call that is not served.
func TrailersOnly(code int, message string) []hpack.HeaderField {
	return append(Response(), Trailer(code, message)...)
}

// Field returns the value of a field, the first if there are several; ok says that there is one.
func Field(fields []hpack.HeaderField, name string) (value string, ok bool) {
	for _, f := range fields {
		if f.Name == name {
			return f.Value, true
		}
	}
	return "", false
}

// StatusError is the error that a header or trailer is; nil if it is none.
func StatusError(fields []hpack.HeaderField) error {
	if status, ok := Field(fields, ":status"); ok && status != "200" {
		return fmt.Errorf("answered with HTTP status %s", quoted(status))
	}
	code, ok := Field(fields, "grpc-status")
	if !ok || code == "0" {
		return nil
	}
	message, _ := Field(fields, "grpc-message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	return fmt.Errorf("answered with gRPC status %s: %s", quoted(code), quoted(message))
}

// quoted is a text of the other side, for an error.
func quoted(s string) string {
	quoted := strconv.Quote(s[:min(len(s), 512)])
	return quoted[1 : len(quoted)-1]
}
