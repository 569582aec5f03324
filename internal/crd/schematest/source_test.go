package schematest

import "math/rand/v2"

// source provides random choices for the generator, from a seed or from a fuzzer's bytes. When the bytes are used up,
// each choice is the first option, so that the schema ends.
type source struct {
	data []byte
	rng  *rand.Rand
}

func seeded(seed int) *source { return &source{rng: rand.New(rand.NewPCG(uint64(seed), 0x7265))} }

// n returns a number from 0 to max-1.
func (s *source) n(max int) int {
	if s.rng != nil {
		return s.rng.IntN(max)
	}
	if len(s.data) == 0 {
		return 0
	}
	v := int(s.data[0])
	s.data = s.data[1:]
	return v % max
}

// oneIn returns true in one of k cases.
func (s *source) oneIn(k int) bool { return s.n(k) == k-1 }

func pick[T any](s *source, of ...T) T { return of[s.n(len(of))] }
