package storagetest

import (
	"math/rand/v2"
	"testing"
)

// testLinearizable checks that concurrent operations on several stores are linearizable (CRD-053).
func testLinearizable(t *testing.T, p backend) {
	h := NewHistory(2)
	for range 5 {
		h.Client(p.open(t), 40)
	}
	h.Check(t)
}

// TestLostResponses checks that operations stay linearizable when responses are lost.
func TestLostResponses(t *testing.T) {
	for seed := range uint64(30) {
		l, random := NewLog(seed), rand.New(rand.NewPCG(seed, 4))
		l.LoseResponse = func() (before, after bool) { return random.IntN(20) == 0, random.IntN(20) == 0 }
		h := NewHistory(seed)
		for range 8 {
			h.Client(closeAtEnd(t, l.Open()), 30)
		}
		h.Check(t)
	}
}
