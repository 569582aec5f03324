package server

import (
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// packets is a stream of packets, of an API server or an agent.
type packets struct {
	tunnel.Packets
	over func(*h2.Stream, error) // is told of the end, perhaps several times
}

// Header implements h2.Receiver: there is only the end.
func (p *packets) Header(s *h2.Stream, _ []hpack.HeaderField, end bool) {
	if end {
		p.over(s, nil)
	}
}

// Data implements h2.Receiver.
func (p *packets) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil {
		if err := p.Read(b); err != nil {
			p.Reset(err)
			end = true
		}
	}
	if end {
		p.over(s, nil)
	}
}

// Ended implements h2.Receiver.
func (p *packets) Ended(s *h2.Stream, err error) { p.over(s, err) }

// refuse answers a stream with a status of gRPC.
func refuse(s *h2.Stream, code int, why string) h2.Receiver {
	s.Header(wire.Refusal(code, why), true)
	return h2.Unserved{}
}
