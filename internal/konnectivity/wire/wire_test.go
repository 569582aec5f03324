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

// theirs is a packet as the reference implementation has it.
func theirs(p Packet, data []byte) *client.Packet {
	out := &client.Packet{Type: client.PacketType(p.Type)}
	switch p.Type {
	case DialReq:
		out.Payload = &client.Packet_DialRequest{DialRequest: &client.DialRequest{Protocol: p.Protocol, Address: p.Address, Random: p.Random}}
	case DialRsp:
		out.Payload = &client.Packet_DialResponse{DialResponse: &client.DialResponse{Error: p.Error, ConnectID: p.ConnectID, Random: p.Random}}
	case CloseReq:
		out.Payload = &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: p.ConnectID}}
	case CloseRsp:
		out.Payload = &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{Error: p.Error, ConnectID: p.ConnectID}}
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

// KON-050: packets are the reference's, byte by byte, in both directions.
func TestPacketsAreTheReferences(t *testing.T) {
	for _, p := range samples {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(theirs(p, nil))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%v: %x is written, and the reference writes %x", p, got, want)
		}
		if got, _, err := parse(want); err != nil || got != p {
			t.Errorf("%v is read as %v, %v", p, got, err)
		}
	}
	data := []byte("some data")
	b := h2.BufferOf(data)
	EncodeData(b, 1<<40)
	want, err := proto.Marshal(theirs(Packet{Type: Data, ConnectID: 1 << 40}, data))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes()[prefixBytes:], want) {
		t.Errorf("data is written as %x, and the reference writes %x", b.Bytes()[prefixBytes:], want)
	}
}

// KON-050: however a stream is cut into pieces, its packets and their data are the same, and credit is given for every byte.
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
		m, err := proto.Marshal(theirs(Packet{Type: Data, ConnectID: int64(i)}, data))
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, 0, byte(len(m)>>24), byte(len(m)>>16), byte(len(m)>>8), byte(len(m)))
		stream = append(stream, m...)
	}
	for _, most := range []int{3, 1000, 16 << 10, h2.MaxPiece} {
		var m PacketReader
		var credit count
		got := make([][]byte, len(want))
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(most))
			if err := m.Read(owing(rest[:n], &credit), func(p Packet, b *h2.Buffer) error {
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
				t.Fatalf("%d bytes are held", held)
			}
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("in pieces of up to %d: packet %d has %d bytes, not %d", most, i, len(got[i]), len(want[i]))
			}
		}
		if int(credit) != len(stream) {
			t.Errorf("in pieces of up to %d: credit for %d bytes of %d", most, credit, len(stream))
		}
	}
}

// KON-050: credit for a message is given when its own data is done with, whatever stands before or behind it: else nobody would be held
// back who puts something small there.
func TestCreditIsOfItsMessage(t *testing.T) {
	data, drain := h2.NewBuffer(60<<10), Packet{Type: Drain}.Message()
	EncodeData(data, 1)
	all := slices.Concat(drain.Bytes(), data.Bytes(), drain.Bytes())
	const padding = 200
	for _, cut := range []int{0, 20 << 10, len(all) - 1} {
		var m PacketReader
		var credit count
		var kept *h2.Buffer
		for _, piece := range [][]byte{all[:cut], all[cut:]} {
			b := h2.BufferOf(piece)
			b.SetWindow(&credit, len(piece)+padding)
			if err := m.Read(b, func(p Packet, b *h2.Buffer) error {
				if p.Type == Data {
					kept = b
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if most := 2*drain.Len() + 2*padding; int(credit) > most {
			t.Errorf("cut at %d: credit for %d bytes while the data is kept, and not for %d at most", cut, credit, most)
		}
		if kept.Release(); int(credit) != len(all)+2*padding {
			t.Errorf("cut at %d: credit for %d bytes of %d in the end", cut, credit, len(all)+2*padding)
		}
	}
}

// KON-050: data keep memory for themselves alone, and not for what else was in their message: else little that waits could keep much.
func TestLittleDataOfLargeMessage(t *testing.T) {
	packet, err := proto.Marshal(theirs(Packet{Type: Data, ConnectID: 1}, []byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	packet = protowire.AppendBytes(protowire.AppendTag(packet, 1000, protowire.BytesType), make([]byte, 60<<10)) // of a field that nobody knows
	b := h2.BufferOf(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(packet))), packet...))
	all := b.Len()
	var m PacketReader
	var credit count
	var kept *h2.Buffer
	b.SetWindow(&credit, all)
	if err := m.Read(b, func(_ Packet, b *h2.Buffer) error {
		kept = b
		return nil
	}); err != nil || string(kept.Bytes()) != "x" {
		t.Fatalf("%q, %v", kept.Bytes(), err)
	}
	if n := cap(kept.Bytes()); n > 512 {
		t.Errorf("a byte keeps %d", n)
	}
	if credit != 0 {
		t.Errorf("credit for %d bytes while it is kept", credit)
	}
	if kept.Release(); int(credit) != all {
		t.Errorf("credit for %d bytes of %d in the end", credit, all)
	}
}

// count is how much credit was given.
type count int

func (c *count) Credit(n int) { *c += count(n) }

func owing(p []byte, to h2.Window) *h2.Buffer {
	b := h2.BufferOf(p)
	b.SetWindow(to, len(p))
	return b
}

// FuzzMessages: no bytes do harm, and what is a packet to the reference is the same packet here.
func FuzzMessages(f *testing.F) {
	for _, p := range samples {
		f.Add(p.Append(nil), 3)
	}
	f.Add([]byte{0x08, 4, 0x22, 3, 0x1a, 1, 'x'}, 1)
	f.Add([]byte("\b\x01\n\x1100000000000000000"), 10) // a field that comes again as bytes is another
	f.Fuzz(func(t *testing.T, message []byte, cut int) {
		if len(message) > 32<<10 {
			return
		}
		whole := append([]byte{0, 0, byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}, message...)
		cut = int(uint(cut) % uint(len(whole)))
		var got []Packet
		var data []byte
		var m PacketReader
		var credit count
		var end error
		for _, piece := range [][]byte{whole[:cut], whole[cut:]} {
			end = errors.Join(end, m.Read(owing(piece, &credit), func(p Packet, b *h2.Buffer) error {
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
			return // it may be one to us: texts need not be UTF-8
		}
		if end != nil || len(got) != 1 || int(credit) != len(whole) {
			t.Fatalf("%v, %v, credit %d of %d", got, end, credit, len(whole))
		}
		if int(ref.Type) < 0 || int(ref.Type) > int(Drain) {
			return
		}
		p := got[0]
		if client.PacketType(p.Type) != ref.Type {
			t.Fatalf("%v, not %v", p.Type, ref.Type)
		}
		if d := ref.GetData(); p.Type == Data && d != nil && (d.ConnectID != p.ConnectID || !bytes.Equal(d.Data, data)) {
			t.Fatalf("data %x of %d, not %x of %d", data, p.ConnectID, d.Data, d.ConnectID)
		}
		if d := ref.GetDialRequest(); p.Type == DialReq && d != nil && (d.Random != p.Random || len(d.Address) <= maxStringBytes && d.Address != p.Address) {
			t.Fatalf("%v, not %v", p, d)
		}
	})
}

// BenchmarkReadData reads packets of 16 KiB, of which each comes in one piece, or in two as where a window ends in it.
func BenchmarkReadData(b *testing.B) {
	d := h2.NewBuffer(16 << 10)
	EncodeData(d, 1)
	packet := d.Bytes()
	for name, cut := range map[string]int{"whole": len(packet), "cut": len(packet) / 2} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(16 << 10)
			b.ReportAllocs()
			var m PacketReader
			for b.Loop() {
				for rest := packet; len(rest) > 0; rest = rest[min(cut, len(rest)):] {
					if err := m.Read(h2.BufferOf(rest[:min(cut, len(rest))]), func(_ Packet, b *h2.Buffer) error { b.Release(); return nil }); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// KON-050: the reference can read a packet whose text is too long, or is none.
func TestTextsThatAreNone(t *testing.T) {
	for _, text := range []string{"x" + strings.Repeat("é", maxStringBytes), "broken \xff"} {
		var got client.Packet
		if err := proto.Unmarshal(Packet{Type: DialRsp, Error: text, Random: 1}.Append(nil), &got); err != nil || got.GetDialResponse().Error == "" {
			t.Errorf("%.10q: %v, %v", text, &got, err)
		}
	}
}
