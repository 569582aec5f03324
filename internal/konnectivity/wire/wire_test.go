package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// referencePacket returns a packet as the type of the reference implementation.
func referencePacket(p Packet, data []byte) *client.Packet {
	out := &client.Packet{Type: client.PacketType(p.Type)}
	switch p.Type {
	case DialReq:
		out.Payload = &client.Packet_DialRequest{DialRequest: &client.DialRequest{Protocol: p.Protocol,
			Address: p.Address, Random: p.Random}}
	case DialRsp:
		out.Payload = &client.Packet_DialResponse{DialResponse: &client.DialResponse{Error: p.Error,
			ConnectID: p.ConnectID, Random: p.Random}}
	case CloseReq:
		out.Payload = &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: p.ConnectID}}
	case CloseRsp:
		out.Payload = &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{Error: p.Error,
			ConnectID: p.ConnectID}}
	case Data:
		out.Payload = &client.Packet_Data{Data: &client.Data{ConnectID: p.ConnectID, Error: p.Error, Data: data}}
	case DialCls:
		out.Payload = &client.Packet_CloseDial{CloseDial: &client.CloseDial{Random: p.Random}}
	case Drain:
		out.Payload = &client.Packet_Drain{Drain: &client.Drain{}}
	}
	return out
}

var samples = []Packet{
	{Type: DialReq, Protocol: "tcp", Address: "10.0.0.1:443", Random: 1 << 62},
	{Type: DialReq, Address: "[::1]:80", Random: -1},
	{Type: DialRsp, ConnectID: 7, Random: 3},
	{Type: DialRsp, Error: "dial tcp: refused", Random: 3},
	{Type: CloseReq, ConnectID: 1},
	{Type: CloseRsp, ConnectID: 1, Error: "why"},
	{Type: Data, ConnectID: 1},
	{Type: DialCls, Random: 9},
	{Type: Drain},
}

// TestPacketEncoding checks that packets are encoded to the same bytes as in the reference implementation, and can
// be decoded from these bytes (KON-050).
func TestPacketEncoding(t *testing.T) {
	for _, p := range samples {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(referencePacket(p, nil))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%v is encoded as %x, want %x", p, got, want)
		}
		if got, _, err := parse(want); err != nil || got != p {
			t.Errorf("%v is decoded as %v, error %v", p, got, err)
		}
	}
	data := []byte("some data")
	b := h2.BufferOf(data)
	EncodeData(b, 1<<40)
	want, err := proto.Marshal(referencePacket(Packet{Type: Data, ConnectID: 1 << 40}, data))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes()[prefixBytes:], want) {
		t.Errorf("data is encoded as %x, want %x", b.Bytes()[prefixBytes:], want)
	}
}

// TestMessagesInPieces checks that packets and data do not depend on how the stream is split, and that every
// byte is credited (KON-050).
func TestMessagesInPieces(t *testing.T) {
	var stream []byte
	var want [][]byte
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		data := make([]byte, []int{0, 1, 100, 16 << 10, 100 << 10}[random.IntN(5)])
		for j := range data {
			data[j] = byte(i + j)
		}
		want = append(want, data)
		m, err := proto.Marshal(referencePacket(Packet{Type: Data, ConnectID: int64(i)}, data))
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, 0, byte(len(m)>>24), byte(len(m)>>16), byte(len(m)>>8), byte(len(m)))
		stream = append(stream, m...)
	}
	for _, limit := range []int{3, 1000, 16 << 10, h2.MaxPiece} {
		var reader PacketReader
		var credit creditCounter
		got := make([][]byte, len(want))
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(limit))
			if err := reader.Read(bufferWithCredit(rest[:n], &credit), func(p Packet, b *h2.Buffer) error {
				if b != nil {
					got[p.ConnectID] = append(got[p.ConnectID], b.Bytes()...)
				}
				b.Release()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			if held := len(stream) - len(rest) - int(credit); held > maxUncredited+h2.MaxPiece {
				t.Fatalf("%d bytes have no credit", held)
			}
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("pieces of up to %d bytes: packet %d has %d bytes, want %d", limit, i, len(got[i]),
					len(want[i]))
			}
		}
		if int(credit) != len(stream) {
			t.Errorf("pieces of up to %d bytes: credit for %d of %d bytes", limit, credit, len(stream))
		}
	}
}

// TestCreditPerMessage checks that the credit for a message is returned when its own data is released. Small
// packets before or after the data must not return it earlier (KON-050).
func TestCreditPerMessage(t *testing.T) {
	data, drain := h2.NewBuffer(60<<10), Packet{Type: Drain}.Message()
	EncodeData(data, 1)
	all := slices.Concat(drain.Bytes(), data.Bytes(), drain.Bytes())
	const padding = 200
	for _, cut := range []int{0, 20 << 10, len(all) - 1} {
		var reader PacketReader
		var credit creditCounter
		var received *h2.Buffer
		for _, piece := range [][]byte{all[:cut], all[cut:]} {
			b := h2.BufferOf(piece)
			b.SetWindow(&credit, len(piece)+padding)
			if err := reader.Read(b, func(p Packet, b *h2.Buffer) error {
				if p.Type == Data {
					received = b
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if limit := 2*drain.Len() + 2*padding; int(credit) > limit {
			t.Errorf("cut at %d: credit for %d bytes before the data is released, want at most %d", cut, credit, limit)
		}
		if received.Release(); int(credit) != len(all)+2*padding {
			t.Errorf("cut at %d: credit for %d of %d bytes at the end", cut, credit, len(all)+2*padding)
		}
	}
}

// TestSmallDataOfLargeMessage checks that small data does not retain the memory of the large message that
// contained it (KON-050).
func TestSmallDataOfLargeMessage(t *testing.T) {
	packet, err := proto.Marshal(referencePacket(Packet{Type: Data, ConnectID: 1}, []byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	// an unknown field
	packet = protowire.AppendBytes(protowire.AppendTag(packet, 1000, protowire.BytesType), make([]byte, 60<<10))
	b := h2.BufferOf(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(packet))), packet...))
	all := b.Len()
	var reader PacketReader
	var credit creditCounter
	var data *h2.Buffer
	b.SetWindow(&credit, all)
	if err := reader.Read(b, func(_ Packet, b *h2.Buffer) error {
		data = b
		return nil
	}); err != nil || string(data.Bytes()) != "x" {
		t.Fatalf("%q, %v", data.Bytes(), err)
	}
	if n := cap(data.Bytes()); n > 512 {
		t.Errorf("a byte of data retains %d bytes", n)
	}
	if credit != 0 {
		t.Errorf("credit for %d bytes before the data is released", credit)
	}
	if data.Release(); int(credit) != all {
		t.Errorf("credit for %d of %d bytes at the end", credit, all)
	}
}

// creditCounter counts returned credit.
type creditCounter int

func (c *creditCounter) Credit(n int) { *c += creditCounter(n) }

// bufferWithCredit returns a Buffer that occupies a window.
func bufferWithCredit(p []byte, window h2.Window) *h2.Buffer {
	b := h2.BufferOf(p)
	b.SetWindow(window, len(p))
	return b
}

// FuzzMessages decodes arbitrary bytes. It checks that each packet which the reference implementation can decode
// is decoded to the same values.
func FuzzMessages(f *testing.F) {
	for _, p := range samples {
		f.Add(p.Append(nil), 3)
	}
	f.Add([]byte{0x08, 4, 0x22, 3, 0x1a, 1, 'x'}, 1)
	f.Add([]byte("\b\x01\n\x1100000000000000000"), 10) // uses one field number with different wire types
	f.Fuzz(func(t *testing.T, message []byte, cut int) {
		if len(message) > 32<<10 {
			return
		}
		whole := append([]byte{0, 0, byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}, message...)
		cut = int(uint(cut) % uint(len(whole)))
		var got []Packet
		var data []byte
		var reader PacketReader
		var credit creditCounter
		var readErr error
		for _, piece := range [][]byte{whole[:cut], whole[cut:]} {
			readErr = errors.Join(readErr, reader.Read(bufferWithCredit(piece, &credit),
				func(p Packet, b *h2.Buffer) error {
					got = append(got, p)
					if b != nil {
						data = append(data, b.Bytes()...)
					}
					b.Release()
					return nil
				}))
		}
		ref := &client.Packet{}
		if err := proto.Unmarshal(message, ref); err != nil {
			return // PacketReader may accept a packet that the reference implementation rejects
		}
		if readErr != nil || len(got) != 1 || int(credit) != len(whole) {
			t.Fatalf("packets %v, error %v, credit for %d of %d bytes", got, readErr, credit, len(whole))
		}
		if int(ref.Type) < 0 || int(ref.Type) > int(Drain) {
			return
		}
		p := got[0]
		if client.PacketType(p.Type) != ref.Type {
			t.Fatalf("type %v, want %v", p.Type, ref.Type)
		}
		if d := ref.GetData(); p.Type == Data && d != nil &&
			(d.ConnectID != p.ConnectID || !bytes.Equal(d.Data, data)) {
			t.Fatalf("data %x of connection %d, want %x of connection %d", data, p.ConnectID, d.Data, d.ConnectID)
		}
		if d := ref.GetDialRequest(); p.Type == DialReq && d != nil &&
			(d.Random != p.Random || len(d.Address) <= maxStringBytes && d.Address != p.Address) {
			t.Fatalf("packet %v, want %v", p, d)
		}
	})
}

// BenchmarkReadData decodes packets of 16 KiB. Each packet arrives in one piece or in two.
func BenchmarkReadData(b *testing.B) {
	d := h2.NewBuffer(16 << 10)
	EncodeData(d, 1)
	packet := d.Bytes()
	for name, cut := range map[string]int{"whole": len(packet), "cut": len(packet) / 2} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(16 << 10)
			b.ReportAllocs()
			var reader PacketReader
			for b.Loop() {
				for rest := packet; len(rest) > 0; rest = rest[min(cut, len(rest)):] {
					if err := reader.Read(h2.BufferOf(rest[:min(cut, len(rest))]),
						func(_ Packet, b *h2.Buffer) error { b.Release(); return nil }); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// TestInvalidStrings checks that the reference implementation can decode packets whose strings were too long or
// not valid UTF-8 (KON-050).
func TestInvalidStrings(t *testing.T) {
	for _, text := range []string{"x" + strings.Repeat("é", maxStringBytes), "broken \xff"} {
		var got client.Packet
		if err := proto.Unmarshal(Packet{Type: DialRsp, Error: text, Random: 1}.Append(nil), &got); err != nil ||
			got.GetDialResponse().Error == "" {
			t.Errorf("%.10q: decoded as %v, error %v", text, &got, err)
		}
	}
}
