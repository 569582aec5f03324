package schematest

import "math/rand/v2"

// source is where the generator's choices come from: a seed, or a fuzzer's bytes. Bytes that have run out
// choose the first of all, which ends the schema.
type source struct {
	data []byte
	rng  *rand.Rand
}

func seeded(seed int) *source { return &source{rng: rand.New(rand.NewPCG(uint64(seed), 0x7265))} }

// n is less than max.
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

// once is true one time of k.
func (s *source) once(k int) bool { return s.n(k) == k-1 }

func pick[T any](s *source, of ...T) T { return of[s.n(len(of))] }
