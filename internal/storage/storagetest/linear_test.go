package storagetest

import (
	"math/rand/v2"
	"testing"
)

// Reads and writes of clients of several stores are linearizable (CRD-053).
func testLinearizable(t *testing.T, p place) {
	h := NewHistory(2)
	for range 5 {
		h.Client(p.open(t), 40)
	}
	h.Check(t)
}

// So they are where answers are lost.
func TestLostAnswers(t *testing.T) {
	for seed := range uint64(30) {
		l, random := NewLog(seed), rand.New(rand.NewPCG(seed, 4))
		l.Loses = func() (before, after bool) { return random.IntN(20) == 0, random.IntN(20) == 0 }
		h := NewHistory(seed)
		for range 8 {
			h.Client(closing(t, l.Open()), 30)
		}
		h.Check(t)
	}
}
